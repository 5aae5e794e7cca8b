"""The rule that the demonstrations of the warm start open as the conversations of the user's own agent do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparring.chat.messages import canonical_json, content_text
from sparring.checks.evidence.explore import load_demonstrations
from sparring.checks.evidence.own_agent import explore_all
from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.own_agent import AGAIN
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, MessageRequest

_SYSTEM = ("system", "developer")


async def demonstrations(subject: Subject) -> Iterable[Finding]:
    """The demonstrations of the warm start open as the conversations of the agent do: with the same tools, and with the same
    messages before the first answer.

    Both are a part of the prompt. After a warm start with other tools, or without the agent's system message, the policy
    meets prompts in its episodes that it has not seen. The evidence contains the tools as the agent sends them. The texts of
    users are not compared, because they belong to the tasks.
    """
    rows = [row for row in load_demonstrations(subject) if all(isinstance(one, Mapping) for one in row["messages"])]
    requests = [one.requests[0] for one in await explore_all(subject, needs="requests") if one.requests]
    if not rows or not requests:
        return []
    return [*_other_tools(rows, requests), *_other_opening(rows, requests)]


def _other_tools(rows: Sequence[Mapping[str, Json]], requests: Sequence[MessageRequest]) -> Iterable[Finding]:
    sent = list(requests[0].tools)
    if len({canonical_json(list(one.tools)) for one in requests}) > 1:
        return  # no demonstration can have the tools of all tasks
    others = [row for row in rows if canonical_json(_tools_of(row)) != canonical_json(sent)]
    if others:
        what = (
            "other tools than the agent sends" if any(map(_tools_of, others)) else "no tools, but the agent sends some"
        )
        yield _finding(
            f"{len(others)} of {len(rows)} demonstrations have {what}.",
            {"sent": sent, "demonstration": _tools_of(others[0])},
            'Write each demonstration as {"messages": [...], "tools": [...]} with the tools that the agent sends, which '
            "`sparring check --json` shows.",
        )


def _other_opening(rows: Sequence[Mapping[str, Json]], requests: Sequence[MessageRequest]) -> Iterable[Finding]:
    systems = {_system_text(one.messages) for one in requests}
    is_constant = len(systems) == 1
    known = {_opening(one.messages, is_constant) for one in requests}
    others = [row for row in rows if _opening(row["messages"], is_constant) not in known]
    if others:
        yield _finding(
            f"{len(others)} of {len(rows)} demonstrations open with other messages than the agent sends.",
            {"sent": _shown(requests[0].messages), "demonstration": _shown(others[0]["messages"])},
            "Begin each demonstration with the messages that the agent sends, its system message among them.",
        )


def _tools_of(row: Mapping[str, Any]) -> list[Json]:
    """Return the tools of a row of a file, a function or a recording."""
    fields = (row.get("task") or {}).get("fields") or {}
    return list(row.get("tools", fields.get("tools")) or ())


def _before_the_answer(messages: Sequence[Message]) -> list[Message]:
    roles = [one.get("role") for one in messages]
    return list(messages[: roles.index("assistant")] if "assistant" in roles else messages)


def _system_text(messages: Sequence[Message]) -> str:
    return "\n".join(content_text(one.get("content")) for one in messages if one.get("role") in _SYSTEM)


def _opening(messages: Sequence[Message], with_system: bool) -> tuple[object, ...]:
    opening = _before_the_answer(messages)
    roles = ["system" if one.get("role") in _SYSTEM else str(one.get("role")) for one in opening]
    return (*roles, _system_text(opening) if with_system else "")


def _shown(messages: Sequence[Message]) -> list[Json]:
    return [{"role": one.get("role"), "content": one.get("content")} for one in _before_the_answer(messages)]


def _finding(symptom: str, evidence: dict[str, Json], change: str) -> Finding:
    return Finding(
        rule="agent.demonstrations",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=evidence,
        change=change,
        confirm=AGAIN,
    )
