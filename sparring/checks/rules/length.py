"""Rule on rewards that depend on tokens or on length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sparring.agents.scripted import scripted_turn
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.scripted_episodes import Episode, get_episodes, grade_episode
from sparring.checks.evidence.subject import Subject
from sparring.findings import Finding, Severity
from sparring.types import Message, Trajectory

NUM_TASKS = 4
"""The number of incorrect episodes that are graded. If an LLM judge grades, the number is 1."""
FEW, MANY = 16, 1024
"""The numbers of sampled tokens per turn in two otherwise equal episodes."""
PADDING = "let me look at this again and think about it once more. " * 20
"""Padding next to the calls, or after the answer."""
MUCH = 0.05
"""An incorrect episode must not gain this much reward, or more, by its length."""


async def length(subject: Subject) -> Iterable[Finding]:
    """An incorrect episode earns no more for being longer or shorter.

    The same incorrect episode is graded with 16 and with 1,024 sampled tokens per turn, and with padding next to its
    calls and after its answer. If its reward changes by 0.05 or more, a policy learns to optimize length instead of
    solving the task. Apply a length penalty only to correct episodes, and keep it below what a correct answer earns.
    """
    references = await find_references(subject)
    if references is None:
        return []
    found: dict[str, tuple[float, Episode, Episode]] = {}
    num_tasks = 1 if subject.model_judges else NUM_TASKS
    for one in [each for each in await get_episodes(subject, "wrong") if each.is_wrong and each.trajectory.turns][
        :num_tasks
    ]:
        few, many, padded = [
            await grade_episode(subject, references, name, one.reference, trajectory)
            for name, trajectory in (
                ("few tokens", _with_tokens(one.trajectory, FEW)),
                ("many tokens", _with_tokens(one.trajectory, MANY)),
                ("padded", _padded(one.trajectory)),
            )
        ]
        for what, before, after in (
            (f"{MANY} sampled tokens per turn instead of {FEW}", few, many),
            (f"{FEW} sampled tokens per turn instead of {MANY}", many, few),
            ("padding next to its calls and after its answer", one, padded),
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
            evidence={"task": after.reference.task.id, "before": before.shown, "after": after.shown},
            change="Penalize tokens and length only in correct episodes, and keep the penalty below what a correct answer "
            "earns.",
            confirm="The same wrong episode earns the same reward at any length.",
        )
        for what, (gain, before, after) in found.items()
    ]


def _with_tokens(trajectory: Trajectory, count: int) -> Trajectory:
    turns = tuple(scripted_turn(one.id, one.message, one.fingerprint, count) for one in trajectory.turns)
    return replace(trajectory, turns=turns, reward=None, score=None)


def _padded(trajectory: Trajectory) -> Trajectory:
    """Return an episode in which every message of the assistant has more text and more tokens."""
    messages = tuple(_longer(one) if one.get("role") == "assistant" else one for one in trajectory.messages)
    turns = tuple(scripted_turn(one.id, _longer(one.message), one.fingerprint) for one in trajectory.turns)
    return replace(trajectory, messages=messages, turns=turns, reward=None, score=None)


def _longer(message: Message) -> Message:
    return {**message, "content": f"{message.get('content') or ''} {PADDING}".strip()}
