"""What a scorer may return, and the error when it returns something else."""

import asyncio
from typing import Any

import pytest

from sparring.errors import InfrastructureError, RewardError
from sparring.scorers import evaluate_score
from sparring.types import Outcome, Score, Task, Trajectory


def trajectory() -> Trajectory:
    task = Task(id="t1", messages=())
    return Trajectory(
        id="t1-0", task=task, attempt=0, turns=(), messages=(), outcome=Outcome.FINISHED, reward=None, score=None
    )


@pytest.mark.parametrize("value", [None, True, "1", 1.5, -0.1, float("nan")])
def test_a_scorer_must_say_a_number_from_0_to_1(value: Any) -> None:
    def my_scorer(_: Trajectory) -> Any:
        return value

    with pytest.raises(RewardError, match=r"Scorer 'my_scorer' returned .* on trajectory t1-0"):
        asyncio.run(evaluate_score(my_scorer, trajectory()))


def test_an_async_scorer_is_awaited_and_one_that_raises_is_named() -> None:
    async def half(_: Trajectory) -> float:
        return 0.5

    def broken(_: Trajectory) -> float:
        raise KeyError("answer")

    def down(_: Trajectory) -> float:
        raise InfrastructureError("judge is down")

    assert asyncio.run(evaluate_score(half, trajectory())) == Score(0.5)
    with pytest.raises(RewardError, match="Scorer 'broken' raised"):
        asyncio.run(evaluate_score(broken, trajectory()))
    with pytest.raises(InfrastructureError):
        asyncio.run(evaluate_score(down, trajectory()))


def test_a_score_keeps_its_parts_as_floats() -> None:
    def in_parts(_: Trajectory) -> Score:
        return Score(1, {"format": 1, "tools": 0.5})

    assert asyncio.run(evaluate_score(in_parts, trajectory())) == Score(1.0, {"format": 1.0, "tools": 0.5})


@pytest.mark.parametrize(
    "score",
    [Score(2.0), Score(1.0, {"format": 1.5}), Score(1.0, {"format": True}), Score(1.0, {"x": float("nan")})],
)
def test_a_score_and_each_of_its_parts_are_numbers_from_0_to_1(score: Score) -> None:
    with pytest.raises(RewardError, match=r"Scorer 'my_scorer' returned .* on trajectory t1-0; it must be a number"):
        asyncio.run(evaluate_score(scorer_of(score), trajectory()))


def test_parts_that_are_no_mapping_are_refused() -> None:
    score: Any = Score(1.0, [0.5])  # type: ignore[arg-type]
    with pytest.raises(RewardError, match="must map names to numbers from 0 to 1"):
        asyncio.run(evaluate_score(scorer_of(score), trajectory()))


def scorer_of(score: Score) -> Any:
    def my_scorer(_: Trajectory) -> Score:
        return score

    return my_scorer
