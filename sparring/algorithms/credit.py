"""Credit assignment: computes one advantage per turn from groups of episodes, and checks the estimator's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, SupportsFloat, TypeAlias

from sparring.algorithms.advantages import Advantages, Group, Rewarded
from sparring.errors import DataError
from sparring.types import Trajectory, TrajectoryGroup

LARGEST = 1e30
"""The largest accepted advantage. With larger advantages, a gradient in single precision overflows."""

TurnAdvantages: TypeAlias = Mapping[str, tuple[float, ...]]
"""One number for each turn of a trajectory, in order, by trajectory id."""
TokenAdvantages: TypeAlias = Mapping[str, tuple[tuple[float, ...], ...]]
"""One number for each sampled token of each turn, in order, by trajectory id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAdvantages:
    """The advantages of one step's groups."""

    turns: TurnAdvantages
    """One advantage per turn, by trajectory id. Statistics count each trajectory once."""
    tokens: TokenAdvantages | None
    """The part of each token's advantage that comes from a teacher; None without a teacher."""
    metrics: Mapping[str, float]

    def average(self) -> TurnAdvantages:
        """Return the mean advantage of the tokens of each turn."""
        tokens = self.tokens
        if tokens is None:
            return self.turns
        return {
            name: tuple(
                advantage + (fmean(own) if own else 0.0) for advantage, own in zip(turns, tokens[name], strict=True)
            )
            for name, turns in self.turns.items()
        }


class RewardedGroup(NamedTuple):
    """The episodes of one task."""

    task_id: str
    members: list[tuple[str, Rewarded]]
    """The id of each trajectory, and the trajectory in the form that estimators read."""


def credit(
    groups: Sequence[TrajectoryGroup],
    estimator: Callable[[Sequence[Group]], Advantages],
    *,
    sums_turn_rewards: bool | None,
) -> TurnAdvantages:
    """Return the advantage of every turn.

    If `sums_turn_rewards` is None, the estimator reads rewards per turn. If it is False, rewards per turn are rejected.

    Raises DataError if the estimator would not read the rewards per turn, or if a user's estimator does not return one
    finite number per turn.
    """
    if sums_turn_rewards is False:
        _refuse_turn_rewards(groups)
    return credit_rewarded(
        [RewardedGroup(group.task.id, [(one.id, rewarded(one)) for one in group.trajectories]) for group in groups],
        estimator,
    )


def credit_rewarded(
    groups: Sequence[RewardedGroup], estimator: Callable[[Sequence[Group]], Advantages]
) -> TurnAdvantages:
    """Return the advantage of every turn, like `credit`, from the rewards and the lengths of turns alone."""
    advantages = estimator([[one for _, one in group.members] for group in groups])
    named: dict[str, tuple[float, ...]] = {}
    if not _is_nested(advantages):
        raise DataError(
            f"advantage_method returned {str(advantages)[:80]}; return a list of groups of trajectories of numbers, "
            "one per turn."
        )
    if len(advantages) != len(groups):
        raise DataError(
            f"advantage_method returned advantages for {len(advantages)} of {len(groups)} groups; return one list per group."
        )
    for group, lists in zip(groups, advantages, strict=True):
        if len(lists) != len(group.members):
            raise DataError(
                f"advantage_method returned {len(lists)} lists for the {len(group.members)} trajectories of "
                "task "
                f"{group.task_id}; return one list per trajectory."
            )
        for (trajectory_id, one), turns in zip(group.members, lists, strict=True):
            named[trajectory_id] = _checked(trajectory_id, len(one.turn_rewards), turns)
    return named


def rewarded(trajectory: Trajectory) -> Rewarded:
    """Return a trajectory in the form that estimators read. A reward for the whole trajectory is assigned to the last
    turn."""
    reward = trajectory.reward
    assert reward is not None, "a trajectory without reward was admitted"
    if reward.per_turn is not None:
        turn_rewards = [reward.per_turn.get(turn.id, 0.0) for turn in trajectory.turns]
    else:
        turn_rewards = [0.0] * len(trajectory.turns)
        turn_rewards[-1:] = [reward.total] * bool(trajectory.turns)
    return Rewarded(
        total=reward.total,
        turn_rewards=tuple(turn_rewards),
        turn_tokens=tuple(len(turn.token_ids) * turn.is_trained for turn in trajectory.turns),
    )


def _is_nested(advantages: object) -> bool:
    """Return whether a value consists of lists (or tuples) of lists of lists."""
    many = (list, tuple)
    return isinstance(advantages, many) and all(
        isinstance(members, many) and all(isinstance(turns, many) for turns in members) for members in advantages
    )


def _refuse_turn_rewards(groups: Sequence[TrajectoryGroup]) -> None:
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.reward is not None and trajectory.reward.per_turn is not None:
                raise DataError(
                    f"the reward of trajectory {trajectory.id} is given per turn, but algorithm.advantage_method gives "
                    "each "
                    "trajectory one advantage and does not read rewards per turn. Use 'group_based_per_turn', or set "
                    "algorithm.turn_rewards = 'sum'."
                )


def _checked(trajectory_id: str, num_turns: int, turns: Sequence[float]) -> tuple[float, ...]:
    if len(turns) != num_turns:
        raise DataError(
            f"advantage_method returned {len(turns)} numbers for the {num_turns} turns of trajectory "
            f"{trajectory_id}; return one number per turn."
        )
    for number in turns:
        # The check of a protocol is slow.
        is_number = type(number) is float or (isinstance(number, SupportsFloat) and not isinstance(number, str))
        if not is_number or not abs(number) < LARGEST:
            raise DataError(
                f"advantage_method returned {number!r:.60} for a turn of trajectory {trajectory_id}; return finite "
                "numbers."
            )
    return tuple(float(number) for number in turns)
