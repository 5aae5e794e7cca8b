"""The rule that an agent of the user's own behaves the same in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparring.checks.evidence.own_agent import explore_all
from sparring.checks.evidence.subject import Subject, find_first_difference
from sparring.checks.rules.own_agent import AGAIN, same_twice
from sparring.checks.running.other_process import OTHER_HASH_SEED, SEED_VARIABLE, ask_other_process
from sparring.checks.running.second_agent import compared_lines
from sparring.findings import Finding, Severity
from sparring.types import Json


async def same_elsewhere(subject: Subject) -> Iterable[Finding]:
    """The same episodes are the same in another process, with another hash seed and in the opposite order.

    A resumed run, and an evaluation tomorrow, play in another process. A difference comes from something that the first
    episodes left behind, such as a cache that is filled once, from the order of sets, from `hash`, or from what is drawn
    when the code is imported.
    """
    if list(await same_twice(subject)):
        return []  # episodes that differ anyway are no evidence
    here = {one.task.id: one for one in await explore_all(subject) if not one.is_failure_of_agent}
    there = await _play_elsewhere(subject, list(reversed(here)))
    for task_id, episode in here.items():
        lines = there.get(task_id)
        differs = None if lines is None else find_first_difference(compared_lines(episode), lines)
        if differs is not None:
            return [
                Finding(
                    rule="agent.same_elsewhere",
                    severity=Severity.ERROR,
                    symptom=f"the episode of task {task_id} differs in another process, where other tasks were played before.",
                    evidence={"task": task_id, **differs},
                    change="Keep nothing between episodes (no cache, no counter), sort what comes from sets, and do not use "
                    "`hash`.",
                    confirm=AGAIN,
                )
            ]
    return []


async def _play_elsewhere(subject: Subject, task_ids: Sequence[str]) -> Mapping[str, Sequence[Sequence[str]] | None]:
    """Return what `second_agent.play_episodes` returns in another process. Raises UndecidedError if it returns nothing."""
    request: dict[str, Json] = {
        "recipe": str(subject.recipe.resolve()),
        "overrides": list(subject.overrides),
        "tasks": list(task_ids),
        "seconds": max(5.0, subject.timing.left),
        "call_seconds": subject.watch.seconds * subject.watch.patience,
        "start_seconds": subject.watch.start_seconds * subject.watch.patience,
    }
    return await ask_other_process(
        "sparring.checks.running.second_agent",
        request,
        limit=request["seconds"] + 2 * request["start_seconds"],
        variables={SEED_VARIABLE: OTHER_HASH_SEED},
    )
