"""The numbers that detectors compare: standard errors over groups, Student's t for few of them, slopes among siblings."""

import math
import random
from dataclasses import replace

import pytest

from sparring.detectors.evidence import Episode, Estimate, Siblings, mean, slope, spread, windows, worth
from sparring.run_folders.history import Digest, History
from sparring.types import Outcome, Reward
from tests.detectors.runs import played, right, wrong


def digest(reward: float = 0.0, score: float | None = None, calls: int = 0) -> Digest:
    return Digest(
        id="e", task_id="t", prompt="", texts=(), answer="", calls=(), num_malformed=0, num_turns=calls, num_tokens=0,
        outcome=Outcome.FINISHED, reward=reward, components={}, score=score, score_parts={}, temperature=1.0,
    )  # fmt: skip


def episodes(*groups: list[Digest]) -> list[Episode]:
    return [Episode((1, f"t{index}"), one) for index, group in enumerate(groups) for one in group]


def rewards_of(*groups: list[float]) -> list[Episode]:
    return episodes(*([digest(reward) for reward in group] for group in groups))


def test_the_error_of_a_mean_is_over_groups_whose_members_share_their_luck() -> None:
    # Sums of deviations 1 and -1: sqrt(2 / (2 - 1) * (1 + 1)) / 4 = 0.5; over four independent episodes it were 0.29.
    estimate = mean(rewards_of([1, 1], [0, 0]), lambda one: one.reward)
    assert (estimate.value, estimate.error, estimate.freedom) == (0.5, 0.5, 1)


def test_one_group_is_not_enough_for_an_error() -> None:
    assert mean(rewards_of([1, 0, 1]), lambda one: one.reward).error == math.inf


def test_few_groups_raise_what_a_difference_must_exceed() -> None:
    assert Estimate(3.1, 1.0, 10**6).exceeds(3.0)
    assert not Estimate(3.1, 1.0, 10).exceeds(3.0)
    # Student's t with 10 degrees of freedom: 3.0 normal sigmas are 3.96; the expansion gives 3.75.
    assert Estimate(3.8, 1.0, 10).exceeds(3.0)
    assert not Estimate(1.0, 0.5, 10**6).exceeds(1.0, over=0.6)


def test_the_difference_of_two_estimates_has_the_freedom_of_the_less_certain_one() -> None:
    # Welch: (3^2 + 4^2)^2 / (3^4 / 2 + 4^4 / 4) = 625 / 104.5 = 5.98.
    found = Estimate(2.0, 3.0, 2).minus(Estimate(0.5, 4.0, 4))
    assert (found.value, found.error, found.freedom) == (1.5, 5.0, 5)
    assert Estimate(2.0, 1.0, 2).minus(Estimate(0.5, 1e-6, 1000)).freedom == 2
    assert Estimate(2.0, 1.0, 7).times(0.5) == Estimate(1.0, 0.5, 7)
    unknown = Estimate(2.0, math.inf, 0).minus(Estimate(0.5, 1.0, 9))
    assert (unknown.error, unknown.freedom) == (math.inf, 0)
    assert not unknown.exceeds(1.0)
    exact = Estimate(2.0, 0.0, 3).minus(Estimate(0.5, 0.0, 9))
    assert exact.exceeds(3.0, over=1.0)


def test_what_being_right_is_worth_is_the_slope_of_rewards_on_scores() -> None:
    pairs = [(0.2, 0.0), (0.4, 0.0), (1.2, 1.0), (1.0, 1.0)]
    assert worth(episodes([digest(reward, score) for reward, score in pairs])) == pytest.approx(0.8)
    assert worth(episodes([digest(1.0, 0.0), digest(0.0, 0.0)])) is None


def test_a_slope_compares_siblings_only() -> None:
    # Within each task a call is worth 0.5; the tasks with more calls earn less, which would turn the sign.
    groups = [[digest(0.5 * calls - 3 * level, 0.0, calls + level) for calls in (0, 1, 2)] for level in range(5)]
    estimate = slope(episodes(*groups), lambda one: float(one.num_turns), lambda one: one.reward)
    assert estimate is not None
    assert estimate.value == pytest.approx(0.5)
    assert estimate.error == pytest.approx(0.0, abs=1e-12)
    assert slope(episodes(*groups[:4]), lambda one: float(one.num_turns), lambda one: one.reward) is None


def test_at_equal_score_what_being_right_earns_is_not_put_down_to_a_call() -> None:
    # Right ones make one call more and earn 1 for being right.
    group = [digest(0.0, 0.0, 1), digest(0.0, 0.0, 1), digest(0.0, 0.0, 2), digest(1.0, 1.0, 2), digest(1.0, 1.0, 3)]
    everything = episodes(*[group] * 6)
    alone = slope(everything, lambda one: float(one.num_turns), lambda one: one.reward)
    at_equal = slope(
        everything, lambda one: float(one.num_turns), lambda one: one.reward, at_equal=lambda one: one.score
    )
    assert alone is not None
    assert at_equal is not None
    assert alone.value > 0.5
    assert at_equal.value == pytest.approx(0.0)


def test_what_is_tried_thousandfold_is_the_same_slope() -> None:
    rng = random.Random(1)
    everything = [
        Episode((1, f"t{index % 9}"), replace(digest(rng.random(), float(rng.random() < 0.4)), id=f"e{index}"))
        for index in range(90)
    ]
    carriers = {one.digest.id for one in everything if rng.random() < 0.3}
    expected = slope(
        everything, lambda one: float(one.id in carriers), lambda one: one.reward, at_equal=lambda one: one.score
    )
    reported = Siblings(everything, lambda one: one.reward, at_equal=lambda one: one.score).worth_of(carriers)
    assert expected is not None
    assert reported is not None
    assert (reported.value, reported.error) == (pytest.approx(expected.value), pytest.approx(expected.error))
    assert reported.freedom == expected.freedom
    assert Siblings(everything, lambda one: one.reward).worth_of([]) is None


def test_the_spread_leaves_the_outermost_twentieths_out() -> None:
    assert spread(range(101)) == 90.0
    assert spread([]) == 0.0


def test_windows_are_a_third_of_the_steps_each_and_five_at_most() -> None:
    run = played([right(0.5), wrong(0.5)], lambda one: Reward(total=0.0), steps=30)
    history = History()
    sizes = []
    for step, groups, _ in run:
        history.add(step, train=[one for group in groups for one in group.trajectories])
        seen = windows(history)
        sizes.append(
            None if seen is None else (seen.before[0].group[0], seen.before[-1].group[0], seen.now[0].group[0])
        )
    assert sizes[:3] == [None, None, (1, 1, 3)]
    assert sizes[5] == (1, 2, 5)
    assert sizes[29] == (1, 5, 26)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        # The thirds are "aba" and "bab": two steps of `a` would be compared with one. They share one of each.
        ("abababbab", ([1, 2], [8, 9])),
        ("abcabcabc", ([1, 2, 3], [7, 8, 9])),
        ("aaabbbccc", None),  # nothing in common
        ("aaaaaaaaaaaaaaaaaabbbbbbbaaaaaaaaaaa", ([1, 2, 3, 4, 5], [32, 33, 34, 35, 36])),
        # The first third, less the two steps of `c`; episodes are kept of the first 8 and the last 24 steps.
        ("aabbcc" + "ab" * 15, ([1, 2, 3, 4, 7, 8], [31, 32, 33, 34, 35, 36])),
    ],
)
def test_windows_have_as_many_steps_of_each_kind(kinds: str, expected: tuple[list[int], list[int]] | None) -> None:
    history = History()
    run = played([right(0.5), wrong(0.5)], lambda one: Reward(total=0.0), steps=len(kinds))
    for (step, groups, _), kind in zip(run, kinds, strict=True):
        metrics = {f"rollout/kind/{kind}/num_groups": 6.0, f"rollout/kind/{kind}/success": 0.5}
        history.add(step, metrics=metrics, train=[one for group in groups for one in group.trajectories])
    seen = windows(history)
    found = seen and tuple(sorted({one.group[0] for one in part}) for part in (seen.before, seen.now))
    assert found == expected


def test_steps_of_several_kinds_are_compared_as_steps_without_kinds() -> None:
    history = History()
    for step, groups, _ in played([right(0.5), wrong(0.5)], lambda one: Reward(total=0.0), steps=9):
        metrics = {f"rollout/kind/{kind}/num_groups": 3.0 for kind in ("a", f"b{step}")}
        history.add(step, metrics=metrics, train=[one for group in groups for one in group.trajectories])
    seen = windows(history)
    assert seen is not None
    assert [one.group[0] for one in seen.now][:: len(seen.now) // 3] == [7, 8, 9]


def test_the_interval_of_a_mean_covers_it_as_often_as_promised() -> None:
    # Groups share a task's luck; 95 % of the intervals of two sigmas, few groups allowed for, hold the true mean.
    rng, covered, rounds = random.Random(0), 0, 400
    for _ in range(rounds):
        tasks = [rng.random() for _ in range(12)]
        estimate = mean(
            rewards_of(*[[float(rng.random() < rate) for _ in range(8)] for rate in tasks]), lambda one: one.reward
        )
        off = Estimate(abs(estimate.value - 0.5), estimate.error, estimate.freedom)
        covered += not off.exceeds(2.0)
    assert 0.92 <= covered / rounds <= 0.985
