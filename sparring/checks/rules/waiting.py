"""Rules on settings with which rollouts and learning wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from sparring.checks.evidence.subject import Subject
from sparring.findings import Finding, Severity

SLOW_SECONDS = 1.0
"""The mean time of the expert's episodes, in seconds, from which the rule warns. The policy takes no time in these
episodes."""
AGAIN = "Run `sparring check RECIPE --only budgets` again: the finding is gone."


async def window(subject: Subject) -> Iterable[Finding]:
    """The window of groups is small enough that rollouts can continue while the learner trains.

    `rollout.staleness_window` lets groups overtake each other, and `rollout.max_steps_off_policy` limits their age. A
    group that waits in the window becomes older, so a wide window reduces the start allowance: the number of steps by
    which groups may start ahead. The rule warns if the start allowance is 0, because training is then synchronous
    although the recipe allows older tokens.
    """
    config = subject.config
    bound, width = config.rollout.max_steps_off_policy, config.rollout.staleness_window
    if not config.is_trainable or bound == 0 or config.start_allowance > 0:
        return []
    waits = bound - config.start_allowance
    return [
        Finding(
            rule="budgets.window",
            severity=Severity.WARNING,
            symptom=f"rollout.staleness_window = {width} uses up rollout.max_steps_off_policy = {bound}, so no group starts "
            "while the learner trains, and training is synchronous.",
            evidence={
                "staleness_window": width,
                "max_steps_off_policy": bound,
                "global_batch_size": config.batch.global_batch_size,
                "steps_that_a_group_may_wait": waits,
            },
            change=f"Set rollout.max_steps_off_policy = {bound + 1}, or rollout.staleness_window = 1.",
            confirm=AGAIN,
        )
    ]


async def slow_tools(subject: Subject) -> Iterable[Finding]:
    """Episodes do not wait for each other's slow tools.

    A synchronous run samples in deterministic rounds by default: no turn starts until every running episode requests
    one. The slowest tool call of a round then delays all episodes. The rule measures how long the expert's episodes
    take, with reset and tools, and warns if this is more than a second per episode. Allow tokens that are one step old,
    or disable the rounds, unless you need runs that repeat exactly. There is no warning if the recipe sets
    `engine.deterministic`.
    """
    config = subject.config
    if not config.is_trainable or config.engine.deterministic is not None or not config.runs_in_rounds:
        return []
    seconds = [
        (await subject.run_episode(task, expert, graded=False)).seconds
        for task in subject.sample
        if (expert := subject.expert(task)) is not None
    ]
    if not seconds or fmean(seconds) <= SLOW_SECONDS:
        return []
    return [_report(seconds)]


def _report(seconds: Sequence[float]) -> Finding:
    return Finding(
        rule="budgets.slow_tools",
        severity=Severity.WARNING,
        symptom=f"the environment takes {fmean(seconds):.1f} s per episode (at most {max(seconds):.1f} s), and in the "
        "rounds of synchronous training, all episodes wait for the slowest one.",
        evidence={
            "mean_seconds": round(fmean(seconds), 2),
            "longest_seconds": round(max(seconds), 2),
            "episodes": len(seconds),
        },
        change="Set rollout.max_steps_off_policy = 1, so that rollouts continue while the learner trains. For synchronous "
        "training without rounds, set engine.deterministic = false; with true, training uses rounds, "
        "and runs repeat exactly.",
        confirm=AGAIN,
    )
