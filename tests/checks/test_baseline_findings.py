"""A model's own episodes show a reward without spread, and one that pays for what the scorer rejects."""

from __future__ import annotations

from sparring.checks.rules.reward import baseline_findings
from sparring.environments import answer
from sparring.findings import Severity
from sparring.types import Outcome, Reward, Task, Trajectory


def episodes(*groups: list[tuple[float, float]]) -> list[Trajectory]:
    """One (reward, score) an episode, one list a task."""
    return [
        Trajectory(
            id=f"{number}-{attempt}",
            task=Task(id=str(number), messages=()),
            attempt=attempt,
            turns=(),
            messages=(answer(f"{reward}"),),
            outcome=Outcome.FINISHED,
            reward=Reward(total=reward),
            score=score,
        )
        for number, group in enumerate(groups)
        for attempt, (reward, score) in enumerate(group)
    ]


def find_problems(*groups: list[tuple[float, float]], threshold: float = 1.0) -> list[str]:
    return [f"{one.severity.value}: {one.symptom}" for one in baseline_findings(episodes(*groups), threshold)]


def test_rewards_that_differ_and_agree_with_the_score_are_fine() -> None:
    assert find_problems([(0.0, 0.0), (1.0, 1.0)], [(0.5, 0.0), (0.2, 0.0)]) == []


def test_one_value_for_all_is_an_error() -> None:
    assert find_problems([(0.0, 0.0), (0.0, 0.0)], [(0.0, 0.0)]) == [
        "error: The reward is 0 for all 3 episodes of the model."
    ]


def test_before_a_warm_start_one_value_for_all_is_a_note_and_what_is_paid_for_wrong_still_an_error() -> None:
    flat = baseline_findings(episodes([(0.0, 0.0), (0.0, 0.0)]), 1.0, may_be_flat=True)
    assert [one.severity for one in flat] == [Severity.NOTE]
    overpaid = baseline_findings(episodes([(1.0, 0.0), (1.0, 0.0)]), 1.0, may_be_flat=True)
    assert [one.severity for one in overpaid] == [Severity.NOTE, Severity.ERROR]


def test_groups_of_equal_rewards_are_a_warning_from_nine_in_ten() -> None:
    flat = [[(float(number % 2), float(number % 2))] * 2 for number in range(9)]
    assert find_problems(*flat, [(0.0, 0.0), (1.0, 1.0)]) == [
        "warning: In 9 of 10 groups of the model's episodes all rewards are equal."
    ]
    assert find_problems(*flat[:8], [(0.0, 0.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, 1.0)]) == []


def test_what_is_paid_and_rejected_is_an_error_like_with_like() -> None:
    assert find_problems([(1.0, 0.0), (0.0, 0.0)]) == [
        "error: 1 of 2 episodes of the model earn 1 while the scorer gives 0."
    ]
    # Above a threshold of 0.8, a scorer that gives parts agrees with a reward that gives the same.
    assert find_problems([(0.9, 0.9), (0.0, 0.0)], threshold=0.8) == []
    assert len(find_problems([(0.9, 0.7), (0.0, 0.0)], threshold=0.8)) == 1
