"""Rewards that are priced by tokens or by length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sparring.agents.scripted import scripted_turn
from sparring.checks.episodes import Episode, episodes_of, judged
from sparring.checks.golds import golds_of
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.findings import Finding, Severity
from sparring.types import Message, Trajectory

NUM_TASKS = 4
"""Of which a wrong episode is graded; 1 where a model judges."""
FEW, MANY = 16, 1024
"""Sampled tokens a turn of an episode that is otherwise the same."""
PADDING = "let me look at this again and think about it once more. " * 20
"""What is said beside the calls, or after the answer."""
MUCH = 0.05
"""What a wrong episode must not gain by length."""


@check("reward.length", needs=("reward",))
async def length(subject: Subject) -> Iterable[Finding]:
    """A wrong episode earns no more for being longer or shorter.

    The same wrong episode is graded with 16 and with 1,024 sampled tokens a turn, and with padding beside its calls and after
    its answer. Where that changes what it earns by 0.05 or more, a policy learns the length instead of the task. Price tokens
    of right episodes only, and bound the price below what being right earns.
    """
    golds = await golds_of(subject)
    if golds is None:
        return []
    found: dict[str, tuple[float, Episode, Episode]] = {}
    num_tasks = 1 if subject.model_judges else NUM_TASKS
    for one in [each for each in await episodes_of(subject, "wrong") if each.is_wrong and each.trajectory.turns][
        :num_tasks
    ]:
        few, many, padded = [
            await judged(subject, golds, name, one.gold, trajectory)
            for name, trajectory in (
                ("few tokens", _with_tokens(one.trajectory, FEW)),
                ("many tokens", _with_tokens(one.trajectory, MANY)),
                ("padded", _padded(one.trajectory)),
            )
        ]
        for what, before, after in (
            (f"{MANY} sampled tokens a turn instead of {FEW}", few, many),
            (f"{FEW} sampled tokens a turn instead of {MANY}", many, few),
            ("padding beside its calls and after its answer", one, padded),
        ):
            if before.reward is None or after.reward is None or not after.is_wrong:
                continue
            gain = after.reward - before.reward
            if gain > max(MUCH, found[what][0] if what in found else 0.0):
                found[what] = gain, before, after
    threshold = subject.config.evaluation.success_threshold
    return [
        Finding(
            rule="reward.length",
            severity=Severity.ERROR
            if (after.reward or 0.0) >= threshold > (before.reward or 0.0)
            else Severity.WARNING,
            symptom=f"A wrong episode earns {gain:.2g} more for {what}.",
            evidence={"task": after.gold.task.id, "before": before.shown, "after": after.shown},
            change="Price tokens and length of right episodes only, by less than being right earns.",
            confirm="The same wrong episode earns the same at any length.",
        )
        for what, (gain, before, after) in found.items()
    ]


def _with_tokens(trajectory: Trajectory, count: int) -> Trajectory:
    turns = tuple(scripted_turn(one.id, one.message, one.fingerprint, count) for one in trajectory.turns)
    return replace(trajectory, turns=turns, reward=None, score=None)


def _padded(trajectory: Trajectory) -> Trajectory:
    """Every message of the assistant longer, its tokens too."""
    messages = tuple(_longer(one) if one.get("role") == "assistant" else one for one in trajectory.messages)
    turns = tuple(scripted_turn(one.id, _longer(one.message), one.fingerprint) for one in trajectory.turns)
    return replace(trajectory, messages=messages, turns=turns, reward=None, score=None)


def _longer(message: Message) -> Message:
    return {**message, "content": f"{message.get('content') or ''} {PADDING}".strip()}
