"""Played groups to advantages by turn, and what an estimator of the user's own may not say."""

import math

import pytest

from sparring.algorithms.advantages import ADVANTAGES
from sparring.algorithms.credit import credit, rewarded
from sparring.errors import DataError
from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="t", messages=())


def turn(number: int, count: int) -> Turn:
    return Turn(
        id=number, parent=None, branch_reason=None, prompt_ids=(1,), token_ids=(2,) * count, sampled_logprobs=(-1.0,) * count,
        versions=((0, count),), fingerprint="", stop_reason=StopReason.STOP, sampling=Sampling(),
        message={"role": "assistant", "content": ""}, num_computed_tokens=0, seconds=0.0,
    )  # fmt: skip


def trajectory(name: str, reward: Reward, *counts: int) -> Trajectory:
    return Trajectory(
        id=name,
        task=TASK,
        attempt=0,
        turns=tuple(turn(number, count) for number, count in enumerate(counts)),
        messages=(),
        outcome=Outcome.FINISHED,
        reward=reward,
        score=None,
    )


def test_a_reward_of_the_whole_stands_at_the_last_turn() -> None:
    one = rewarded(trajectory("a", Reward(total=0.7), 3, 2))
    assert (one.total, one.turn_rewards, one.turn_tokens) == (0.7, (0.0, 0.7), (3, 2))


def test_rewards_per_turn_stand_where_they_were_earned() -> None:
    one = rewarded(trajectory("a", Reward(total=1.5, per_turn={1: 0.5, 2: 1.0}), 1, 1, 1))
    assert one.turn_rewards == (0.0, 0.5, 1.0)


def test_an_episode_that_never_spoke_has_a_reward_and_no_turn() -> None:
    group = TrajectoryGroup(
        task=TASK, trajectories=(trajectory("a", Reward(total=0.0)), trajectory("b", Reward(total=1.0), 2))
    )
    assert credit([group], ADVANTAGES["rloo"], sums_turn_rewards=False) == {"a": (), "b": (1.0,)}


PER_TURN = TrajectoryGroup(
    task=TASK,
    trajectories=(
        trajectory("a", Reward(total=1.0, per_turn={0: 1.0, 1: 0.0}), 1, 1),
        trajectory("b", Reward(total=0.0, per_turn={0: 0.0}), 1),
    ),
)


def test_rewards_per_turn_are_refused_by_what_would_not_read_them() -> None:
    with pytest.raises(
        DataError, match=r"the reward of trajectory a is given per turn, but algorithm\.advantage_method gives"
    ):
        credit([PER_TURN], ADVANTAGES["rloo"], sums_turn_rewards=False)


def test_rewards_per_turn_are_summed_on_demand_or_read_turn_by_turn() -> None:
    assert credit([PER_TURN], ADVANTAGES["rloo"], sums_turn_rewards=True) == {"a": (1.0, 1.0), "b": (-1.0,)}
    found = credit([PER_TURN], ADVANTAGES["return_to_go_loo"], sums_turn_rewards=None)
    assert found == {"a": (1.0, 0.0), "b": (-1.0,)}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "returned advantages for 0 of 1 groups"),
        ([[[1.0, 1.0]]], "returned 1 lists for the 2 trajectories of task t"),
        (None, "returned None; return a list of groups"),
        ([[1.0, 2.0]], r"returned \[\[1\.0, 2\.0\]\]; return a list of groups"),
        ([[[1.0], [1.0]]], "returned 1 numbers for the 2 turns of trajectory a"),
        ([[[1.0, math.nan], [1.0]]], "returned nan for a turn of trajectory a"),
    ],
)
def test_an_estimator_that_returns_the_wrong_shape_is_an_error(answer: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        credit([PER_TURN], lambda groups: answer, sums_turn_rewards=None)
