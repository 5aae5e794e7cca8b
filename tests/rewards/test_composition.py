"""Rewards of parts: no sum of parts turns outcomes round, and potentials change no ordering of episodes."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import RewardError, UsageError
from sparring.rewards import (
    Component,
    evaluate_reward,
    example,
    hierarchical,
    ordered,
    outcome_with_shaping,
    with_potential,
)
from sparring.types import Outcome, Reward, Task, Trajectory

TASK = Task(id="t", messages=({"role": "user", "content": "go"},))


def episode(*texts: str, outcome: Outcome = Outcome.FINISHED) -> Trajectory:
    return example(TASK, *({"role": "assistant", "content": text} for text in texts), outcome=outcome)


def rewarded(function: Any, *texts: str) -> Reward:
    return asyncio.run(evaluate_reward(function, episode(*texts)))


def wins(trajectory: Trajectory) -> float:
    return float(trajectory.messages[-1].get("content") == "win")


def length(trajectory: Trajectory) -> float:
    return float(len(trajectory.turns))


def test_outcome_and_bounded_shaping_are_components_of_the_total() -> None:
    function = outcome_with_shaping(wins, Component(name="length", measure=length, weight=-0.1, high=3))
    reward = rewarded(function, "a", "win")
    assert reward.components == {"outcome": 1.0, "length": pytest.approx(-0.2)}
    assert reward.total == pytest.approx(0.8)
    # Five turns count as three, and are charted as five.
    reward = rewarded(function, *"abcd", "win")
    assert (reward.total, reward.metrics) == (pytest.approx(0.7), {"unbounded/length": 5.0})


def test_shaping_that_could_turn_outcomes_round_is_refused() -> None:
    with pytest.raises(UsageError, match=r"can differ by 1\.2 between two episodes \(length 1\.2\).*gap = 1"):
        outcome_with_shaping(wins, Component(name="length", measure=length, weight=0.4, high=3))
    with pytest.raises(UsageError, match=r"gap = 0\.25"):
        outcome_with_shaping(wins, Component(name="length", measure=length, weight=0.3), gap=0.25)
    with pytest.raises(UsageError, match="its own name"):
        outcome_with_shaping(wins, Component(name="outcome", measure=length, weight=0.3))
    with pytest.raises(UsageError, match="low must be below high"):
        Component(name="length", measure=length, low=1.0)


def test_a_measure_that_is_nan_is_an_error() -> None:
    with pytest.raises(RewardError, match="component 'x' of example/t is NaN"):
        rewarded(outcome_with_shaping(wins, Component(name="x", measure=lambda _: math.nan, weight=0.1)), "win")


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2), st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2))
def test_whatever_the_measures_say_a_win_is_paid_more_than_a_loss(won: list[float], lost: list[float]) -> None:
    def paid(outcome: float, values: list[float]) -> float:
        first, second = values
        parts = (
            Component(name="a", measure=lambda _: first, weight=0.4),
            Component(name="b", measure=lambda _: second, weight=-0.1, low=-2, high=3),
        )
        return rewarded(outcome_with_shaping(lambda _: outcome, *parts), "x").total

    assert paid(1.0, won) > paid(0.0, lost)


def test_success_comes_before_milestones_and_milestones_before_steps() -> None:
    def found(trajectory: Trajectory) -> float:
        return float(any(message.get("content") == "found" for message in trajectory.messages))

    function = hierarchical(wins, {"found": (0.25, found)}, step_cost=0.05, max_turns=4)
    rows = (("win",), ("found", "win"), ("found", "x", "x", "lose"), ("lose",), tuple("xxxxxxxx"))
    # 0.95, 1.15, 0.05, -0.05 and -0.2, of 1.25 at most.
    assert [rewarded(function, *row).total for row in rows] == pytest.approx([0.76, 0.92, 0.04, -0.04, -0.16])
    components = {"outcome": pytest.approx(0.8), "found": pytest.approx(0.2), "steps": pytest.approx(-0.08)}
    assert rewarded(function, "found", "win").components == components
    with pytest.raises(UsageError, match=r"can differ by 1\.1 between"):
        hierarchical(wins, {"found": (0.6, found)}, step_cost=0.05, max_turns=10)


def test_steps_that_could_outweigh_a_milestone_are_refused() -> None:
    # A milestone after five turns would earn 0.1 - 0.5, none after one turn -0.1.
    with pytest.raises(UsageError, match=r"5 turns at step_cost = 0\.1 cost 0\.5.*as little as 0\.1.*below 0\.02"):
        hierarchical(wins, {"found": (0.1, wins)}, step_cost=0.1, max_turns=5)
    # Each is worth more than all steps, but the second not so much more than the first.
    with pytest.raises(UsageError, match=r"as little as 0\.05"):
        hierarchical(wins, {"a": (0.2, wins), "b": (0.25, wins)}, step_cost=0.03, max_turns=4)
    with pytest.raises(UsageError, match="at most 16 milestones"):
        hierarchical(wins, {str(number): (0.01, wins) for number in range(17)}, max_turns=4)


EPISODES = st.tuples(st.booleans(), st.lists(st.floats(-2, 3), min_size=3, max_size=3), st.integers(1, 12))


@given(st.lists(st.sampled_from([0.05, 0.1, 0.15, 0.2]), min_size=3, max_size=3), EPISODES, EPISODES)
def test_whatever_is_summed_success_milestones_and_steps_count_in_this_order(
    weights: list[float], first: tuple[bool, list[float], int], second: tuple[bool, list[float], int]
) -> None:
    def rank_and_reward(won: bool, measured: list[float], num_turns: int) -> tuple[tuple[float, ...], float]:
        milestones = {
            name: (weight, lambda _, value=value: value)
            for name, weight, value in zip("abc", weights, measured, strict=True)
        }
        function = hierarchical(lambda _: float(won), milestones, step_cost=0.005, max_turns=8)
        met = round(sum(weight for weight, value in zip(weights, measured, strict=True) if value >= 1), 9)
        return (won, met, -min(num_turns, 8)), rewarded(function, *"x" * num_turns).total

    (rank, paid), (other_rank, other_paid) = rank_and_reward(*first), rank_and_reward(*second)
    assert -1 <= paid <= 1
    if rank > other_rank:
        assert paid > other_paid


def test_the_best_episode_earns_one_and_no_episode_leaves_the_range() -> None:
    parts = (
        Component(name="brevity", measure=lambda _: 1.0, weight=0.04),
        Component(name="format", measure=lambda _: 1.0, weight=0.1),
    )
    reward = rewarded(outcome_with_shaping(wins, *parts), "win")
    # 1, 0.04 and 0.1, of 1.14.
    assert reward.total == pytest.approx(1.0)
    assert reward.components == pytest.approx({"outcome": 0.877193, "brevity": 0.035088, "format": 0.087719}, abs=1e-6)
    costs = Component(name="length", measure=length, weight=-0.25)
    draws = outcome_with_shaping(lambda trajectory: 2 * wins(trajectory) - 1, costs, outcomes=(-1, 1))
    # -1.25 is the least.
    assert [rewarded(draws, text).total for text in ("win", "lose")] == pytest.approx([0.6, -1.0])


def test_an_outcome_beyond_its_bounds_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"is -1, outside the outcomes \(0, 1\); set the right bounds"):
        rewarded(outcome_with_shaping(lambda _: -1.0), "x")
    with pytest.raises(UsageError, match="the lower one first"):
        outcome_with_shaping(wins, outcomes=(1, 0))


POTENTIALS = st.lists(st.floats(-10, 10), min_size=7, max_size=7)


@given(POTENTIALS, st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_a_potential_adds_the_same_to_every_return_from_a_state(
    potentials: list[float], paid: list[float], gamma: float
) -> None:
    """Ng, Harada & Russell 1999: from turn t on the shaped return is the plain one less the potential before t, whatever is
    played from there; so the best action of a state stays the best."""

    def own(_: Trajectory) -> list[float]:
        return paid

    shaped = with_potential(own, lambda _, messages: potentials[len(messages)], gamma=gamma)
    reward = rewarded(shaped, *"x" * len(paid))
    assert reward.per_turn is not None
    given_turns = [reward.per_turn[number] for number in range(len(paid))]
    for start in range(len(paid)):
        plain = sum(gamma**k * value for k, value in enumerate(paid[start:]))
        after = sum(gamma**k * value for k, value in enumerate(given_turns[start:]))
        # Messages before turn t: the task's one and t of the assistant.
        assert after == pytest.approx(plain - potentials[1 + start], abs=1e-6)


def test_a_potential_credits_the_turn_that_gained_it() -> None:
    def keys(_: Task, messages: Any) -> float:
        return 0.25 * sum(message["content"] == "key" for message in messages)

    reward = rewarded(with_potential(wins, keys), "x", "key", "win")
    # Potentials before the turns 0, 0, 0.25 and 0 at the end: the second turn gains what the last one gives back.
    assert reward.per_turn == {0: 0.0, 1: 0.25, 2: 0.75}
    assert (reward.total, reward.components) == (1.0, {"potential": 0.0})


def test_a_potential_needs_a_state_before_every_turn() -> None:
    trajectory = example(TASK, {"role": "assistant", "content": "x"}, num_turns=3)
    with pytest.raises(RewardError, match="3 turns but 1 assistant messages"):
        asyncio.run(evaluate_reward(with_potential(wins, lambda *_: 0.0), trajectory))


FAST, SLOW, LOSS, NEVER = episode("win"), episode("x", "x", "win"), episode("lose"), example(TASK)


def test_a_reward_that_keeps_the_order_is_itself_and_one_that_does_not_is_refused_with_its_numbers() -> None:
    examples = {"fast win": FAST, "slow win": [SLOW], "loss": LOSS, "never answered": NEVER}

    def kept(trajectory: Trajectory) -> float:
        return wins(trajectory) - 0.1 * len(trajectory.turns) - 0.5 * (not trajectory.turns)

    assert ordered(kept, examples) is kept
    with pytest.raises(
        UsageError, match=r"gives 1 for 'fast win' and 1 for 'slow win' \(fast win 1; slow win 1; loss 0"
    ):
        ordered(wins, examples)


def test_a_composed_reward_is_ordered_although_it_is_async_and_one_that_waits_is_refused() -> None:
    function = outcome_with_shaping(wins, Component(name="length", measure=length, weight=-0.1, high=4))
    assert ordered(function, {"fast": FAST, "slow": SLOW, "loss": LOSS}) is function

    async def waits(_: Trajectory) -> float:
        await asyncio.sleep(0)
        return 1.0

    with pytest.raises(UsageError, match="'waits' waits for something"):
        ordered(waits, {"fast": FAST})

    def broken(_: Trajectory) -> float:
        raise KeyError("x")

    with pytest.raises(UsageError, match="the ordering of the reward cannot be checked: Reward 'broken'"):
        ordered(broken, {"fast": FAST})
    with pytest.raises(UsageError, match="no example of 'fast'"):
        ordered(wins, {"fast": []})
