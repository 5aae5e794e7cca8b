"""Does a tool answer a wrong call with what the policy has to find out?"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.agents.scripted import saying
from sparring.checks import actions
from sparring.checks.answers import canonical, text_of
from sparring.checks.calls import Call, answers, likely_calls
from sparring.checks.episodes import clipped
from sparring.checks.golds import Gold, Golds, golds_of
from sparring.checks.registry import check
from sparring.checks.scripts import as_text, leaves
from sparring.checks.shown_answers import shown_answers
from sparring.checks.subject import Subject, UndecidedError
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.types import Json, Trajectory

NUM_TASKS = 4
MOST_CALLS = 4
"""Calls of one script that are made wrong."""
NUM_SHOWN = 3
_LISTED = 0.5
"""Share of the other tasks' values that a result names where it lists all that are allowed."""


@dataclass(frozen=True, slots=True)
class _Leak:
    gold: Gold
    call: str
    """The wrong one."""
    said: str
    value: Json
    tool: str
    name: str
    """Of the argument, or of the part of the answer, whose value is given away."""

    @property
    def shown(self) -> dict[str, Json]:
        return {"task": self.gold.task.id, "call": self.call, "answer": self.said, "gives_away": self.value}


@check("data.leak_in_results", needs=("environment",))
async def leak_in_results(subject: Subject) -> Iterable[Finding]:
    """No wrong call is answered with what the policy has to find out.

    The expert's calls are made with a wrong value in them, one at a time. An error message or a result that then names a value of
    the right call, or of the answer, which neither prompt nor tools had said before (`expected 37`), is the shortest way to it:
    training finds out to call wrongly first. Say that the call is wrong, not what is right. Lists of all that is allowed are
    no leak. Without an expert, a warning where a tool that reads shows the whole reference answer of several tasks, under a name
    such as `answer`, or out of a file whose name begins with a dot or an underscore and of which no description speaks.
    """
    golds = await golds_of(subject)
    if golds is None:
        return []
    if not golds.has_expert:
        return await shown_answers(subject, golds)
    found: dict[tuple[str, str], list[_Leak]] = {}
    tasks = [gold for gold in golds.sampled(subject) if actions.actions_of(gold.script)][:NUM_TASKS]
    for gold in tasks:
        async for leak in _leaks(subject, golds, gold):
            found.setdefault((leak.tool, leak.name), []).append(leak)
    return [
        Finding(
            rule="data.leak_in_results", severity=Severity.ERROR,
            symptom=f"{tool} answers a wrong call with the right {name or 'answer'}: {clipped(leaks[0].said, 120)!r}.",
            evidence={"calls": [one.shown for one in leaks[:NUM_SHOWN]], "tasks": len({one.gold.task.id for one in leaks})},
            change="Say that the call is wrong, and not what would be right.",
            confirm="No answer to a wrong call names a value that the policy has to find out.",
        )
        for (tool, name), leaks in found.items()
        if len({one.gold.task.id for one in leaks}) >= min(2, len(tasks))
    ]  # fmt: skip


async def _leaks(subject: Subject, golds: Golds, gold: Gold) -> AsyncIterator[_Leak]:
    expert = await subject.play(gold.task, golds.policy(gold.task), judged=False)
    calls = actions.actions_of(gold.script)
    values = actions.argument_values(golds)
    for number, one in enumerate(calls[:MOST_CALLS]):
        secret = list(_unsaid(golds, gold, expert, calls, after=number))
        for _, wrong, script in actions.with_other_arguments(gold.script, one, values) if secret else ():
            policy = saying(f"wrong: {number} {wrong}", (*script[: one.message + 1], answer("")))
            try:
                played = await subject.play(gold.task, policy, judged=False)
            except UndecidedError:
                continue
            said = _said_to(played, number)
            for name, value in _given_away(said, wrong, secret):
                yield _Leak(gold, str(wrong), said, value, one.tool, name)
    used, secret = {one.tool for one in calls}, list(_unsaid(golds, gold, expert, calls, after=0))
    for tool in (one for name, one in subject.tools.items() if name not in used and secret):
        for wrong in (await likely_calls(subject, gold.task, tool))[:MOST_CALLS]:
            said = (await answers(subject, gold.task, [wrong]))[0]
            for name, value in _given_away(said.content, wrong, secret) if said.error is not None else ():
                yield _Leak(gold, str(wrong), said.content, value, tool.name, name)


def _given_away(said: str, call: Call, secret: Sequence[tuple[str, Json, list[Json]]]) -> Iterator[tuple[str, Json]]:
    """Name and value of the secrets in what was said, those apart that the call itself names and that may be echoed."""
    for name, value, others in secret:
        if _names(_as_text(call.arguments), value):
            continue
        listed = sum(_names(said, other) for other in others)
        if _names(said, value) and not (others and listed >= _LISTED * len(others)):
            yield name, value


def _unsaid(
    golds: Golds, gold: Gold, expert: Trajectory, calls: Sequence[actions.Action], *, after: int
) -> Iterator[tuple[str, Json, list[Json]]]:
    """What the expert gives from a call on that nothing had said to it: name, value, and what other tasks have there."""
    values = actions.argument_values(golds)
    for number, one in enumerate(calls):
        said = "\n".join([_heard(expert, before=number), *(_as_text(before.arguments) for before in calls[:number])])
        for name, value in one.arguments.items() if number >= after else ():
            if _is_telling(value) and not _names(said, value):
                yield name, value, _others(value, values[one.tool, name])
    said = "\n".join([_heard(expert, before=len(calls)), *(_as_text(before.arguments) for before in calls)])
    for name, value in (gold.parts or {}).items():
        if golds.form.tool is None and _is_telling(value) and not _names(said, value):
            yield name, value, _others(value, golds.labels()[name])


def _others(value: Json, values: Sequence[Json]) -> list[Json]:
    return list({canonical(one): one for one in values if canonical(one) != canonical(value)}.values())


def _is_telling(value: Json) -> bool:
    """Whether a value is long enough not to stand in a text by chance."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and len(as_text(value)) >= 2


def _names(text: str, value: Json) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(as_text(value))}(?!\w|\.\d)", text) is not None


def _as_text(arguments: Mapping[str, Json]) -> str:
    return "\n".join(as_text(value) for value in leaves(dict(arguments)))


def _heard(trajectory: Trajectory, *, before: int) -> str:
    """Prompt and what tools answered to the first `before` calls."""
    heard, answered = [], 0
    for message in trajectory.messages:
        if message.get("role") == "tool":
            answered += 1
            if answered > before:
                break
        if message.get("role") != "assistant":
            heard.append(text_of(message))
    return "\n".join(heard)


def _said_to(trajectory: Trajectory, number: int) -> str:
    """What the call of that number was answered with."""
    answers = [text_of(message) for message in trajectory.messages if message.get("role") == "tool"]
    return answers[number] if number < len(answers) else ""
