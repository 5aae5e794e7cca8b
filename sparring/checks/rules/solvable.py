"""Rule on solvable tasks: every task must have a solution. In games and forms, there are only a few possible calls, and
the rule tries all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.walks import WalkResult, walk_states
from sparring.findings import Finding, Severity

NUM_WALKED = 24
"""The number of tasks in which all calls are tried."""
NUM_FIRST = 4
"""After this number of tasks without a solution, the other tasks are left out."""
FEWEST_SOLVED = 2


async def unsolvable(subject: Subject) -> Iterable[Finding]:
    """If there are only a few possible calls, as in a game, every task can be solved by some sequence of calls.

    The rule tries all calls, breadth first, and compares the states of the environment, until an episode is rewarded or
    no new state appears. It warns if some tasks are solved in this way, while in other tasks every reachable state was
    visited and none is rewarded. For example, a key may be in a room that only this key opens, the way may be blocked,
    or the episode may end too early. No policy can solve such a task. Generate each task from its solution, or leave
    out tasks that have no solution.
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
    return [_report(lost, solved, len(seen))]


def _report(lost: Sequence[WalkResult], solved: Sequence[WalkResult], num_tasks: int) -> Finding:
    tools = sorted({one.tool for walk in solved for one in walk.calls or ()})
    return Finding(
        rule="data.unsolvable",
        severity=Severity.WARNING,
        symptom=f"{len(lost)} of {num_tasks} tasks cannot be solved with any calls, for example "
        f"{lost[0].task.id}: none of its {lost[0].num_states} reachable states is rewarded.",
        evidence={
            "cannot_be_solved": {one.task.id: one.num_states for one in lost},
            "solved": {one.task.id: list(map(str, one.calls or ())) for one in solved[:2]},
            "tools_that_solve": tools,
        },
        change="Inspect the first of these tasks: what it requests is blocked, or comes too late. Generate tasks "
        "from their solution, or leave out tasks that have none.",
        confirm="Run `sparring check RECIPE --only data` again: the finding is gone.",
    )
