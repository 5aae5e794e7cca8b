"""Rule on held-out tasks: tools must find items in them as they do in training tasks."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparring.checks.evidence.explore import Call, explore_task, is_nothing, is_refusal
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, make_strange
from sparring.checks.evidence.readable_values import (
    SECONDS,
    ReadableValues,
    Way,
    find_ways,
    list_calls,
    read_without_calls,
)
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.returned_rows import parse_result
from sparring.checks.evidence.subject import Subject
from sparring.environments import execute
from sparring.environments.base import reset
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

NUM_TASKS = 4
FEWEST_TASKS = 3
MOSTLY = 0.75
"""A tool must find something in this share of the training tasks before the rule reports that it finds nothing in
held-out tasks."""
MOST_READ = 24
"""The number of training tasks, and of held-out tasks, in which tools are called with values that the task itself
names."""
FEWEST_READ = 8
"""The minimum number of training tasks, in all of which a tool must find what the task names."""
LOST = 0.2
"""The rule reports a tool that finds nothing in at least this share of the held-out tasks."""
FEWEST_LOST = 3


async def held_out(subject: Subject) -> Iterable[Finding]:
    """Tools find items in held-out tasks as they do in training tasks.

    The rule calls every tool in some training tasks and in some held-out tasks, with arguments that it derives itself.
    It warns if a tool returns something in most training tasks and finds nothing in any held-out task. In that case, a
    lookup table, a limit or a file covers only the training tasks, and the evaluation does not measure what was
    learned. It also warns if a tool finds the item named by the task in every training task, yet does not find it in at
    least one in five held-out tasks.
    """
    tasks = subject.tasks.held_out if subject.tasks.train else ()
    if len(tasks) < FEWEST_TASKS or subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    findings = await _lost_in_all(subject, tasks)
    return [*findings, *await _lost_in_some(subject, tasks, {one.evidence["tool"] for one in findings})]


async def _lost_in_all(subject: Subject, tasks: Sequence[Task]) -> list[Finding]:
    tried: list[Task] = []
    with subject.timing.as_far_as_it_goes():
        known = [tool for tool in subject.tools if await _share(subject, subject.sample, tool) >= MOSTLY]
        for task in tasks[:: max(1, len(tasks) // NUM_TASKS)][:NUM_TASKS]:
            if not known:
                return []
            tried.append(task)
            known = [tool for tool in known if not await _share(subject, [task], tool)]
    if len(tried) < FEWEST_TASKS:
        return []
    return [
        _finding(
            tool,
            f"{tool} finds something in most training tasks, but nothing in any of {len(tried)} held-out tasks, for "
            f"example in {tried[0].id}.",
            [str(one.call) for one in (await explore_task(subject, subject.sample[0])).legal(tool)],
            [
                {"task": tried[0].id, "call": str(one.call), "answer": one.result.content[:200]}
                for one in (await explore_task(subject, tried[0])).of(tool)
            ],
        )
        for tool in known
    ]


def _finding(tool: str, symptom: str, found: Sequence[str], lost: Sequence[Mapping[str, Json]]) -> Finding:
    return Finding(
        rule="environment.held_out",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence={"tool": tool, "found": list(found[:3]), "held_out": list(lost[:4])},
        change=f"Give {tool} the data of the held-out tasks, or build held-out tasks from the data that it has.",
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )


async def _share(subject: Subject, tasks: Sequence[Task], tool: str) -> float:
    """Return the share of tasks in which a tool returns something."""
    found = [await explore_task(subject, task) for task in tasks]
    return sum(any(one.is_informative for one in each.legal(tool)) for each in found) / max(1, len(found))


async def _lost_in_some(subject: Subject, tasks: Sequence[Task], named: Iterable[Json]) -> list[Finding]:
    """Return findings on tools that find what a task names in all training tasks, but not in some held-out tasks."""
    train = subject.looked_at[:MOST_READ]
    reads = read_without_calls([*train, *tasks[:MOST_READ]], await find_references(subject))
    ways = [way for way in await find_ways(subject, reads[: len(train)]) if way[1] and way[0] not in named]
    trained = await _asked(subject, reads[: len(train)], ways)
    ways = [way for way, seen in trained.items() if len(seen) >= FEWEST_READ and all(one.is_found for one in seen)]
    lost: dict[str, list[tuple[Way, list[_Asked], list[_Asked]]]] = defaultdict(list)
    for way, seen in (await _asked(subject, reads[len(train) :], ways)).items():
        lost[way[0]].append((way, seen, [one for one in seen if not one.is_found]))
    findings = []
    for tool, each in lost.items():
        # If another way to call the tool finds something everywhere, the rule may have misread prompts of another form.
        if all(len(missed) >= max(FEWEST_LOST, LOST * len(seen)) for _, seen, missed in each):
            way, seen, missed = max(each, key=lambda one: len(one[1]))
            symptom = (
                f"{tool} finds what the task names in all of {len(trained[way])} training tasks, but not in "
                f"{len(missed)} of {len(seen)} held-out tasks, for example {missed[0].call} in {missed[0].task_id}."
            )
            found = [str(one.call) for one in trained[way]]
            shown = [{"task": one.task_id, "call": str(one.call), "answer": one.answer[:200]} for one in missed]
            findings.append(_finding(tool, symptom, found, shown))
    return findings


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call with a value that a task names, and whether it found something."""

    task_id: str
    call: Call
    answer: str
    is_found: bool


async def _asked(subject: Subject, reads: Sequence[ReadableValues], ways: Sequence[Way]) -> dict[Way, list[_Asked]]:
    """Return the outcomes of these calls in as many of the tasks as time allows."""
    asked: dict[Way, list[_Asked]] = defaultdict(list)
    ends = time.monotonic() + SECONDS
    with subject.timing.as_far_as_it_goes():
        for read in reads if ways else ():
            own = copy.deepcopy(read.task)
            async with subject.opened(own) as environment:
                await reset(environment, own)
                for way, call in list_calls(subject, read, ways):
                    if environment.is_done or time.monotonic() > ends:
                        return asked
                    stranger = await execute(environment, call.tool, dict(make_strange(call).arguments))
                    result = await execute(environment, call.tool, dict(call.arguments))
                    # A truth value or a number is a result, even if another item has the same value.
                    is_alike = result.content == stranger.content and isinstance(parse_result(result.content), str)
                    is_lost = is_refusal(result) or is_nothing(result.content) or is_alike
                    asked[way].append(_Asked(read.task.id, call, result.content, is_found=not is_lost))
    return asked
