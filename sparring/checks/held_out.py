"""Do tools know the held-out tasks as they know those that are trained on?"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparring.checks.calls import SLOW_SECONDS, strange
from sparring.checks.explore import Call, explored, is_nothing, is_refusal
from sparring.checks.golds import golds_of
from sparring.checks.registry import check
from sparring.checks.rows import parsed
from sparring.checks.sources import SECONDS, Read, Way, calls_of, readings, ways_to_find
from sparring.checks.subject import Subject
from sparring.environments import execute
from sparring.environments.base import reset
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

NUM_TASKS = 4
FEWEST_TASKS = 3
MOSTLY = 0.75
"""Share of the training tasks in which a tool finds something, from which it is missed in held-out ones."""
MOST_READ = 24
"""Training tasks, and held-out ones, in which tools are asked for what the task itself names."""
FEWEST_READ = 8
"""Training tasks in which it must be found each time."""
LOST = 0.2
"""Share of the held-out tasks in which it is not, from which it is reported."""
FEWEST_LOST = 3


@check("environment.held_out", needs=("environment",))
async def held_out(subject: Subject) -> Iterable[Finding]:
    """Tools find something in held-out tasks as they do in training tasks.

    Every tool is called in some of both, with arguments that are found by trying. A warning where a tool says something in most
    training tasks and finds nothing in any held-out one: a table of names, a limit or a file has what is trained on alone, and
    what is measured is not what was learned. The same where a tool finds what the task itself names in every training task, and
    does not in one of five held-out tasks and more.
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
            f"{tool} finds something in most training tasks, and nothing in any of {len(tried)} held-out tasks: "
            f"{tried[0].id}, say.",
            [str(one.call) for one in (await explored(subject, subject.sample[0])).legal(tool)],
            [
                {"task": tried[0].id, "call": str(one.call), "answer": one.result.content[:200]}
                for one in (await explored(subject, tried[0])).of(tool)
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
        change=f"Have {tool} know what the held-out tasks are about, or make held-out tasks of what it knows.",
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )


async def _share(subject: Subject, tasks: Sequence[Task], tool: str) -> float:
    """In which share of tasks a tool says something."""
    found = [await explored(subject, task) for task in tasks]
    return sum(any(one.says_something for one in each.legal(tool)) for each in found) / max(1, len(found))


async def _lost_in_some(subject: Subject, tasks: Sequence[Task], named: Iterable[Json]) -> list[Finding]:
    """Tools that find what a task names in all training tasks, and in a part of the held-out ones do not."""
    train = subject.looked_at[:MOST_READ]
    reads = readings([*train, *tasks[:MOST_READ]], await golds_of(subject))
    ways = [way for way in await ways_to_find(subject, reads[: len(train)]) if way[1] and way[0] not in named]
    trained = await _asked(subject, reads[: len(train)], ways)
    ways = [way for way, seen in trained.items() if len(seen) >= FEWEST_READ and all(one.is_found for one in seen)]
    lost: dict[str, list[tuple[Way, list[_Asked], list[_Asked]]]] = defaultdict(list)
    for way, seen in (await _asked(subject, reads[len(train) :], ways)).items():
        lost[way[0]].append((way, seen, [one for one in seen if not one.is_found]))
    findings = []
    for tool, each in lost.items():
        # Where another way to call it finds something everywhere, a prompt of another form may be misread.
        if all(len(missed) >= max(FEWEST_LOST, LOST * len(seen)) for _, seen, missed in each):
            way, seen, missed = max(each, key=lambda one: len(one[1]))
            symptom = (
                f"{tool} finds what the task names in all of {len(trained[way])} training tasks, and not in {len(missed)} of "
                f"{len(seen)} held-out tasks: {missed[0].call} in {missed[0].task_id}, say."
            )
            found = [str(one.call) for one in trained[way]]
            shown = [{"task": one.task_id, "call": str(one.call), "answer": one.answer[:200]} for one in missed]
            findings.append(_finding(tool, symptom, found, shown))
    return findings


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call with what a task names."""

    task_id: str
    call: Call
    answer: str
    is_found: bool


async def _asked(subject: Subject, reads: Sequence[Read], ways: Sequence[Way]) -> dict[Way, list[_Asked]]:
    """What these ways to call tools give in tasks, as far as the time goes."""
    asked: dict[Way, list[_Asked]] = defaultdict(list)
    ends = time.monotonic() + SECONDS
    with subject.timing.as_far_as_it_goes():
        for read in reads if ways else ():
            own = copy.deepcopy(read.task)
            async with subject.opened(own) as environment:
                await reset(environment, own)
                for way, call in calls_of(subject, read, ways):
                    if environment.is_done or time.monotonic() > ends:
                        return asked
                    stranger = await execute(environment, call.tool, dict(strange(call).arguments))
                    result = await execute(environment, call.tool, dict(call.arguments))
                    # A truth value or a number is an answer, also where another thing has the same.
                    is_alike = result.content == stranger.content and isinstance(parsed(result.content), str)
                    is_lost = is_refusal(result) or is_nothing(result.content) or is_alike
                    asked[way].append(_Asked(read.task.id, call, result.content, is_found=not is_lost))
    return asked
