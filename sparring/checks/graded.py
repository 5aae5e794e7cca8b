"""What a reward or a scorer depends on: found by changing one thing at a time in episodes that are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from sparring.checks.answers import canonical, opening_of, text_of
from sparring.checks.subject import JudgeFailedError, JudgeName, Subject
from sparring.environments import answer
from sparring.types import Message, Trajectory

NUM_PROBED = 3
"""Right episodes in which things are changed."""
_FREE_WORDS = "I have looked into it."


class Aspect(Enum):
    """A part of an episode that a grade may depend on."""

    MESSAGE = "the last message"
    WORDS = "that the last message has certain words, whichever task they are of"
    STATE = "the final state"
    CALLS = "the tool calls"


async def graded_aspects(subject: Subject, judge: JudgeName, right: Sequence[Trajectory]) -> frozenset[Aspect]:
    """The aspects whose change lowers what the judge gives to some of these right episodes; none where no change does, and where
    there is no such judge."""
    found: set[Aspect] = set()
    if (subject.scorer if judge == "scorer" else subject.reward) is None:
        return frozenset()
    probed = [
        (trajectory, list(_changes(trajectory, [*right[:place], *right[place + 1 :]])))
        for place, trajectory in enumerate(right[:NUM_PROBED])
    ]
    await subject.judge_ahead([one for trajectory, changes in probed for one in (trajectory, *(c for _, c in changes))])
    for trajectory, changes in probed:
        best = await grade(subject, judge, trajectory)
        for aspect, changed in changes:
            if aspect not in found and best is not None:
                given = await grade(subject, judge, changed)
                if given is None or given < best - 1e-9:
                    found.add(aspect)
    return frozenset(found)


def _changes(trajectory: Trajectory, others: Sequence[Trajectory]) -> Iterator[tuple[Aspect, Trajectory]]:
    last = trajectory.messages[-1]
    if last.get("role") == "assistant":
        yield Aspect.WORDS, with_last(trajectory, answer(_FREE_WORDS))
        for text in dict.fromkeys(text_of(one.messages[-1]) for one in others[:NUM_PROBED]):
            if text and text != text_of(last):
                yield Aspect.MESSAGE, with_last(trajectory, answer(text))
    if trajectory.final_state is not None:
        states = [None, {}, *(one.final_state for one in others[:NUM_PROBED])]
        for state in states:
            if canonical(state) != canonical(trajectory.final_state):
                yield Aspect.STATE, _with(trajectory, final_state=state)
    if trajectory.transitions:
        messages = (*opening_of(trajectory), *trajectory.messages[-1:])
        yield Aspect.CALLS, _with(trajectory, transitions=(), messages=messages, turns=trajectory.turns[-1:])


async def grade(subject: Subject, judge: JudgeName, trajectory: Trajectory) -> float | None:
    """What this judge alone gives; None where it fails. Raises JudgeOutageError."""
    try:
        given = await subject.ask_judge(judge, trajectory)
    except JudgeFailedError:
        return None
    return given.value if judge == "scorer" else given.total


async def is_paid(subject: Subject, trajectory: Trajectory) -> bool:
    """Whether the scorer (or the reward, where there is none) gives all there is. A judge that fails gives nothing."""
    try:
        judged = await subject.judge(trajectory)
    except JudgeFailedError:
        return False
    total = judged.score if subject.scorer is not None else judged.reward.total if judged.reward is not None else None
    return total is not None and total >= 1.0


def with_last(trajectory: Trajectory, message: Message) -> Trajectory:
    """The same episode with another last message."""
    turns = (*trajectory.turns[:-1], replace(trajectory.turns[-1], message=message))
    return _with(trajectory, turns=turns, messages=(*trajectory.messages[:-1], message))


def _with(trajectory: Trajectory, **changes: Any) -> Trajectory:
    return replace(trajectory, **changes, reward=None, score=None)
