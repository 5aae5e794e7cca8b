"""Rule on permissions: a permission for one item must not give access to other items."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Iterable, Sequence

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call, explore_task
from sparring.checks.evidence.legal_calls import run_calls_apart
from sparring.checks.evidence.snapshots import mask_arguments, refuses, turns_down
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import get_documentation
from sparring.findings import Finding, Severity
from sparring.types import Task

NUM_TASKS = 4
MOST_OTHERS = 6
"""The maximum number of other items that are requested in one task."""
MOST_VALUES = 6
"""The maximum number of distinct values of a field that determines which actions are allowed."""
NUM_OF_A_VALUE = 2
"""The number of tasks that are tried per value."""
_ONLY = re.compile(
    r"\bonly (?:the )?([^.;:()\n]{2,80}?) (?:may|can|is allowed|are allowed|has the right|have the right)\b"
)
_NEAR = 80
"""A sentence that states who may act applies to a tool that is named within this number of characters around it."""


async def access(subject: Subject) -> Iterable[Finding]:
    """If a call needs a permission, a permission for one item does not give access to other items.

    The rule searches for calls that are refused in a fresh environment, but work after another tool was called with the
    same value of the same argument. It then calls that other tool, and makes the refused call with a different value.
    It warns if this call works although the value was refused before, because one permission then gives access to
    everything. To fix this, check for which item the permission was given, and not only whether any permission was
    given. The prompt or a description may state that only some values of a task field allow an action (`only admins and
    editors may delete`). The rule then calls the tool in tasks of every value. It warns if the action works for the
    other values as well, or for none of the allowed values.
    """
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[:NUM_TASKS]:
            for opening, asked, name in await _opened(subject, task):
                for other in await _others(subject, task, asked, name):
                    finding = await _opens(subject, task, opening, asked, other)
                    if finding is not None:
                        return [finding]
        return [finding async for finding in _by_value(subject)]
    return []


async def _by_value(subject: Subject) -> AsyncIterator[Finding]:
    """Yield a finding for each tool that ignores a task field, although a description states that this field determines
    who may call the tool."""
    for field, tasks in _few_values(subject).items():
        for tool, allowed in _find_allowed(subject, list(tasks)).items():
            done = {
                value: [await _is_done(subject, task, tool) for task in tasks[value][:NUM_OF_A_VALUE]]
                for value in tasks
            }
            may = [one for value in allowed for one in done[value]]
            others = [value for value in tasks if value not in allowed and all(done[value])]
            refused = [value for value in allowed if not any(done[value])]
            if not any(may) or not (others or refused):
                continue
            value = (others or refused)[0]
            yield Finding(
                rule="environment.access",
                severity=Severity.WARNING,
                symptom=f"A call of {tool} is {'accepted' if others else 'refused'} if the task's {field!r} is "
                f"{value!r}, although {'only ' if others else ''}{' and '.join(allowed)} may call it.",
                evidence={
                    "tool": tool,
                    "field": field,
                    "taken": {name: sum(ones) for name, ones in done.items()},
                    "tried": {name: len(ones) for name, ones in done.items()},
                    "tasks": [one.id for one in tasks[value][:4]],
                },
                change=f"Correct the comparison in {tool} that decides whether the call is allowed, or correct its "
                f"description.",
                confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
            )


def _few_values(subject: Subject) -> dict[str, dict[str, list[Task]]]:
    """Return the task fields that have few distinct texts, with the tasks for each text. Tasks with earlier episodes
    come first."""
    found: dict[str, dict[str, list[Task]]] = {}
    for task in {one.id: one for one in (*subject.sample, *subject.looked_at)}.values():
        for name, value in task.fields.items():
            if isinstance(value, str):
                found.setdefault(name, {}).setdefault(value, []).append(task)
    return {
        name: tasks
        for name, tasks in found.items()
        if 2 <= len(tasks) <= MOST_VALUES and all(len(one) >= NUM_OF_A_VALUE for one in tasks.values())
    }


def _find_allowed(subject: Subject, values: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each tool, the field values with which a call is allowed, if the prompt or a description allows no
    other values."""
    texts = [get_text(message) for message in subject.sample[0].messages]
    texts += [get_documentation(subject, tool) for tool in subject.tools]
    found: dict[str, list[str]] = {}
    for text in map(str.lower, texts):
        for match in _ONLY.finditer(text):
            allowed = [value for value in values if re.search(rf"\b{re.escape(value.lower())}", match[1])]
            before, after = text[max(0, match.start() - _NEAR) : match.start()], text[match.end() : match.end() + _NEAR]
            clauses = split_words(re.split(r"[^\w\s]", after)[0]), split_words(re.split(r"[.;]\s", before)[-1])[::-1]
            tools = sorted(
                (-len(set(own) & set(words)) / len(own), min(words.index(word) for word in own if word in words), tool)
                for tool in subject.tools
                for words in clauses
                if set(own := split_words(tool)) & set(words)
            )
            if tools and 0 < len(allowed) < len(values):
                found.setdefault(tools[0][-1], allowed)
    return found


async def _is_done(subject: Subject, task: Task, tool: str) -> bool:
    return bool((await explore_task(subject, task)).legal(tool))


async def _opened(subject: Subject, task: Task) -> list[tuple[Call, Call, str]]:
    """Return calls that are refused at first, but may be accepted after a call to another tool with the same value of
    an argument. Each result is (call to the other tool, refused call, argument)."""
    found: dict[str, tuple[Call, Call, str]] = {}
    tried = (await explore_task(subject, task)).tried
    for opening, closed in itertools.product((one.call for one in tried if one.is_legal), tried):
        if closed.is_legal or closed.call.tool == opening.tool:
            continue
        for name in closed.call.arguments.keys() & opening.arguments.keys():
            if isinstance(opening.arguments[name], str):
                asked = Call(closed.call.tool, {**closed.call.arguments, name: opening.arguments[name]})
                found.setdefault(f"{opening.tool} {asked.tool} {name}", (opening, asked, name))
    return [one for one in found.values() if await _is_opened(subject, task, *one[:2])]


async def _is_opened(subject: Subject, task: Task, opening: Call, asked: Call) -> bool:
    (before,) = await run_calls_apart(subject, task, [asked])
    (after,) = await run_calls_apart(subject, task, [asked], [opening])
    return turns_down(before, asked.arguments) and not refuses(after, asked.arguments)


async def _others(subject: Subject, task: Task, asked: Call, name: str) -> list[Call]:
    """Return the same call with other values, which come from other calls that were tried."""
    values: dict[str, None] = {}
    for tried in (await explore_task(subject, task)).tried:
        value = tried.call.arguments.get(name)
        if isinstance(value, str) and value != asked.arguments[name]:
            values.setdefault(value)
    return [Call(asked.tool, {**asked.arguments, name: value}) for value in list(values)[:MOST_OTHERS]]


async def _opens(subject: Subject, task: Task, opening: Call, asked: Call, other: Call) -> Finding | None:
    """Return a finding if a call that gives access to one item also gives access to another item that was refused with
    the same message."""
    own, closed = await run_calls_apart(subject, task, [asked, other])
    is_alike = mask_arguments(own.content, asked.arguments) == mask_arguments(closed.content, other.arguments)
    named = [value for value in other.arguments.values() if isinstance(value, str) and value in closed.content]
    if not (turns_down(closed, other.arguments) and is_alike and named):
        return None
    (both,) = await run_calls_apart(subject, task, [other], [opening])
    if refuses(both, other.arguments):
        return None
    return Finding(
        rule="environment.access",
        severity=Severity.WARNING,
        symptom=f"after {opening}, which names a different value, {asked.tool} accepts {named[0]!r}, which it refused "
        "before.",
        evidence={
            "task": task.id,
            "call": str(other),
            "refused_before": closed.content[:200],
            "opened_by": str(opening),
            "answer_then": both.content[:200],
        },
        change=f"Let {asked.tool} look up for which value {opening.tool} was called, not only whether it was called.",
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )
