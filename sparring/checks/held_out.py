"""Do tools know the held-out tasks as they know those that are trained on?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparring.checks.calls import SLOW_SECONDS
from sparring.checks.explore import explored
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.findings import Finding, Severity
from sparring.types import Task

NUM_TASKS = 4
FEWEST_TASKS = 3
MOSTLY = 0.75
"""Share of the training tasks in which a tool finds something, from which it is missed in held-out ones."""


@check("environment.held_out", needs=("environment",))
async def held_out(subject: Subject) -> Iterable[Finding]:
    """Tools find something in held-out tasks as they do in training tasks.

    Every tool is called in some of both, with arguments that are found by trying. A warning where a tool says something in most
    training tasks and finds nothing in any held-out one: a table of names, a limit or a file has what is trained on alone, and
    what is measured is not what was learned. Where every tool was reached in a held-out task no other is looked at.
    """
    tasks = subject.tasks.held_out if subject.tasks.train else ()
    if len(tasks) < FEWEST_TASKS or subject.timing.episode_seconds > SLOW_SECONDS:
        return []
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
        Finding(
            rule="environment.held_out",
            severity=Severity.WARNING,
            symptom=f"{tool} finds something in most training tasks, and nothing in any of {len(tried)} held-out tasks: "
            f"{tried[0].id}, say.",
            evidence={
                "tool": tool,
                "found": [str(one.call) for one in (await explored(subject, subject.sample[0])).legal(tool)][:3],
                "held_out": [
                    {"task": tried[0].id, "call": str(one.call), "answer": one.result.content[:200]}
                    for one in (await explored(subject, tried[0])).of(tool)[:4]
                ],
            },
            change=f"Have {tool} know what the held-out tasks are about, or make held-out tasks of what it knows.",
            confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
        )
        for tool in known
    ]


async def _share(subject: Subject, tasks: Sequence[Task], tool: str) -> float:
    """In which share of tasks a tool says something."""
    found = [await explored(subject, task) for task in tasks]
    return sum(any(one.says_something for one in each.legal(tool)) for each in found) / max(1, len(found))
