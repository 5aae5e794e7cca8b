"""Does what opens one thing open that thing alone?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from sparring.checks.calls import answers_apart
from sparring.checks.explore import Call, explored
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.checks.views import refuses, turns_down, without
from sparring.findings import Finding, Severity
from sparring.types import Task

NUM_TASKS = 4
MOST_OTHERS = 6
"""Other things that are asked for in one task."""


@check("environment.access", needs=("environment",))
async def access(subject: Subject) -> Iterable[Finding]:
    """What is refused until something is done for a thing stays refused for the other things.

    Where a call is refused in a fresh environment, and works after another tool was called with the same value of the same
    argument, that tool is called, and the first one asked for another value. A warning where it works there, too, although it
    was refused with the name of that value before: a permission that was given once opens everything. Look up who was granted,
    not whether anything was.
    """
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[:NUM_TASKS]:
            for opening, asked, name in await _opened(subject, task):
                for other in await _others(subject, task, asked, name):
                    finding = await _opens(subject, task, opening, asked, other)
                    if finding is not None:
                        return [finding]
    return []


async def _opened(subject: Subject, task: Task) -> list[tuple[Call, Call, str]]:
    """Calls that are refused at first, and may be opened by another tool's call with the same value of an argument: (that one,
    the call, the argument)."""
    found: dict[str, tuple[Call, Call, str]] = {}
    tried = (await explored(subject, task)).tried
    for opening, closed in itertools.product((one.call for one in tried if one.is_legal), tried):
        if closed.is_legal or closed.call.tool == opening.tool:
            continue
        for name in closed.call.arguments.keys() & opening.arguments.keys():
            if isinstance(opening.arguments[name], str):
                asked = Call(closed.call.tool, {**closed.call.arguments, name: opening.arguments[name]})
                found.setdefault(f"{opening.tool} {asked.tool} {name}", (opening, asked, name))
    return [one for one in found.values() if await _is_opened(subject, task, *one[:2])]


async def _is_opened(subject: Subject, task: Task, opening: Call, asked: Call) -> bool:
    (before,) = await answers_apart(subject, task, [asked])
    (after,) = await answers_apart(subject, task, [asked], [opening])
    return turns_down(before, asked.arguments) and not refuses(after, asked.arguments)


async def _others(subject: Subject, task: Task, asked: Call, name: str) -> list[Call]:
    """The same call with other values, which other calls that were tried have there."""
    values: dict[str, None] = {}
    for tried in (await explored(subject, task)).tried:
        value = tried.call.arguments.get(name)
        if isinstance(value, str) and value != asked.arguments[name]:
            values.setdefault(value)
    return [Call(asked.tool, {**asked.arguments, name: value}) for value in list(values)[:MOST_OTHERS]]


async def _opens(subject: Subject, task: Task, opening: Call, asked: Call, other: Call) -> Finding | None:
    """Whether a call that opens one thing opens another one that was refused in the same words."""
    own, closed = await answers_apart(subject, task, [asked, other])
    is_alike = without(own.content, asked.arguments) == without(closed.content, other.arguments)
    named = [value for value in other.arguments.values() if isinstance(value, str) and value in closed.content]
    if not (turns_down(closed, other.arguments) and is_alike and named):
        return None
    (both,) = await answers_apart(subject, task, [other], [opening])
    if refuses(both, other.arguments):
        return None
    return Finding(
        rule="environment.access",
        severity=Severity.WARNING,
        symptom=f"{asked.tool} takes {named[0]!r}, which it refused before, after {opening}, which names another one.",
        evidence={
            "task": task.id, "call": str(other), "refused_before": closed.content[:200], "opened_by": str(opening),
            "answer_then": both.content[:200],
        },
        change=f"Have {asked.tool} look up for what {opening.tool} was called, not whether it was.",
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )  # fmt: skip
