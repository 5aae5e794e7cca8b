"""Every task must be solvable. In games and forms, each call is one of a few, and the rule tries all of them."""

from __future__ import annotations

from collections.abc import Iterable

from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.walks import WalkResult, walk_states
from sparring.findings import Finding, Severity

NUM_WALKED = 24
"""The number of tasks in which all calls are tried."""
NUM_FIRST = 4
"""After this number of tasks without a solution, the other tasks are left out."""
FEWEST_SOLVED = 2


async def unsolvable(subject: Subject) -> Iterable[Finding]:
    """If each call is one of a few, as in a game, some sequence of calls solves every task.

    The rule tries all calls, breadth first, and compares the states of the environment, until an episode is paid or no
    new state appears. It warns if some tasks are solved this way, while in others every reachable state was visited and
    none is paid. Possible causes are that a key is locked behind what it opens, that the way is blocked, or that the
    episode ends too early. A policy can only lose such a task. Generate tasks from their solution, or leave out tasks
    that have none.
    """
    if not subject.lacks("expert") or subject.model_judges or (subject.lacks("scorer") and subject.lacks("reward")):
        return []
    tasks = {one.id: one for one in (*subject.sample, *subject.looked_at)}
    seen: list[WalkResult] = []
    with subject.timing.as_far_as_it_goes():
        for task in list(tasks.values())[:NUM_WALKED]:
            walk = await walk_states(subject, task)
            if walk is None or (len(seen) >= NUM_FIRST and not any(one.calls for one in seen)):
                break
            seen.append(walk)
    solved = [one for one in seen if one.calls]
    lost = [one for one in seen if one.calls is None and one.is_all]
    if len(solved) < FEWEST_SOLVED or not lost:
        return []
    tools = sorted({one.tool for walk in solved for one in walk.calls or ()})
    return [
        Finding(
            rule="data.unsolvable",
            severity=Severity.WARNING,
            symptom=f"{len(lost)} of {len(seen)} tasks cannot be solved with any calls, for example "
            f"{lost[0].task.id}: none of its {lost[0].num_states} reachable states is paid.",
            evidence={
                "cannot_be_solved": {one.task.id: one.num_states for one in lost},
                "solved": {one.task.id: list(map(str, one.calls or ())) for one in solved[:2]},
                "tools_that_solve": tools,
            },
            change="Inspect the first of these tasks: what it requests is blocked, or comes too late. Generate tasks "
            "from their solution, or leave out tasks that have none.",
            confirm="Run `sparring check RECIPE --only data` again: the finding is gone.",
        )
    ]
