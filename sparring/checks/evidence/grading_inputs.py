"""The parts of an episode that a reward or a scorer depends on, found by changing one part of correct episodes at a
time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from sparring.checks.evidence.answer_forms import canonical, get_opening, get_text
from sparring.checks.evidence.subject import GraderName, GradingFailedError, Subject
from sparring.environments import answer
from sparring.types import Message, Trajectory

NUM_PROBED = 3
"""The number of correct episodes to change."""
_FREE_WORDS = "I have looked into it."


class Aspect(Enum):
    """A part of an episode that a grade may depend on."""

    MESSAGE = "the last message"
    WORDS = "certain words in the last message, from any task"
    STATE = "the final state"
    CALLS = "the tool calls"


async def find_graded_aspects(subject: Subject, judge: GraderName, right: Sequence[Trajectory]) -> frozenset[Aspect]:
    """Return the aspects whose change lowers the grade of at least one of these correct episodes. The result is empty
    if no change lowers the grade, or if there is no such grader."""
    found: set[Aspect] = set()
    if (subject.scorer if judge == "scorer" else subject.reward) is None:
        return frozenset()
    probed = [
        (trajectory, list(_changes(trajectory, [*right[:place], *right[place + 1 :]])))
        for place, trajectory in enumerate(right[:NUM_PROBED])
    ]
    await subject.grade_ahead([one for trajectory, changes in probed for one in (trajectory, *(c for _, c in changes))])
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
        yield Aspect.WORDS, replace_last_message(trajectory, answer(_FREE_WORDS))
        for text in dict.fromkeys(get_text(one.messages[-1]) for one in others[:NUM_PROBED]):
            if text and text != get_text(last):
                yield Aspect.MESSAGE, replace_last_message(trajectory, answer(text))
    if trajectory.final_state is not None:
        states = [None, {}, *(one.final_state for one in others[:NUM_PROBED])]
        for state in states:
            if canonical(state) != canonical(trajectory.final_state):
                yield Aspect.STATE, _replace(trajectory, final_state=state)
    if trajectory.transitions:
        messages = (*get_opening(trajectory), *trajectory.messages[-1:])
        yield Aspect.CALLS, _replace(trajectory, transitions=(), messages=messages, turns=trajectory.turns[-1:])


async def grade(subject: Subject, judge: GraderName, trajectory: Trajectory) -> float | None:
    """Return one grader's value for an episode, or None if the grader fails. Raises GradingOutageError."""
    try:
        given = await subject.grade_with(judge, trajectory)
    except GradingFailedError:
        return None
    return given.value if judge == "scorer" else given.total


async def is_paid(subject: Subject, trajectory: Trajectory) -> bool:
    """Return True if the scorer (or the reward, without a scorer) gives full marks, and False if the grader fails."""
    try:
        graded = await subject.grade(trajectory)
    except GradingFailedError:
        return False
    total = graded.score if subject.scorer is not None else graded.reward.total if graded.reward is not None else None
    return total is not None and total >= 1.0


def replace_last_message(trajectory: Trajectory, message: Message) -> Trajectory:
    """Return the episode with its last message replaced."""
    turns = (*trajectory.turns[:-1], replace(trajectory.turns[-1], message=message))
    return _replace(trajectory, turns=turns, messages=(*trajectory.messages[:-1], message))


def _replace(trajectory: Trajectory, **changes: Any) -> Trajectory:
    return replace(trajectory, **changes, reward=None, score=None)
