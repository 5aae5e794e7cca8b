"""Golden numbers and laws of the evaluation estimators."""

import itertools
import math
import random
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.evaluation.statistics import (
    mean_interval,
    paired_difference,
    paired_episodes_p_value,
    paired_p_value,
    pass_at_k,
    pass_power_k,
    tasks_needed,
)


def test_pass_at_k_of_three_in_eight() -> None:
    # 1 - C(5,k)/C(8,k): k=1 3/8; k=2 1-10/28; k=4 1-5/70
    assert [round(pass_at_k(8, 3, k), 6) for k in (1, 2, 4, 8)] == [0.375, 0.642857, 0.928571, 1.0]


def test_pass_power_k_of_three_in_eight() -> None:
    # C(3,k)/C(8,k): 3/8, 3/28, 0
    assert [round(pass_power_k(8, 3, k), 6) for k in (1, 2, 4)] == [0.375, 0.107143, 0.0]


def test_more_samples_than_were_played_are_refused() -> None:
    with pytest.raises(ValueError, match="k = 9 with 8 samples"):
        pass_at_k(8, 3, 9)


@given(st.integers(1, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_grows_and_pass_power_k_falls_with_k(sample: tuple[int, int]) -> None:
    n, c = sample
    at = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    power = [pass_power_k(n, c, k) for k in range(1, n + 1)]
    assert at == sorted(at)
    assert power == sorted(power, reverse=True)
    assert at[0] == pytest.approx(power[0]) == pytest.approx(c / n)


def test_pass_at_k_and_pass_power_k_are_shares_of_all_subsets() -> None:
    rng = random.Random(1)
    for _ in range(40):
        results = [rng.random() < 0.4 for _ in range(rng.randint(1, 9))]
        for k in range(1, len(results) + 1):
            subsets = list(itertools.combinations(results, k))
            n, c = len(results), sum(results)
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
            assert pass_power_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def numpy_ends(values: list[float], least: float, most: float) -> tuple[float, float]:
    """The same interval, worked out apart: for each mean of a fine grid the likeliest distribution and its variance."""
    x, kept = np.array(values), []
    for mean in np.linspace(least, most, 1001)[1:-1]:
        away, ends = x - mean, np.array([-1 / (most - mean), 1 / (mean - least)])
        low, high = ends * (1 - 1e-12)
        for _ in range(45):
            tilt = (low + high) / 2
            low, high = (tilt, high) if (away / (1 + tilt * away)).sum() > 0 else (low, tilt)
        shares = 1 / (len(x) * (1 + low * away))
        # What the values themselves cannot balance lies at the bound on the other side of the mean.
        bound = (least if low > 0 else most) - mean
        variance = (shares * away**2).sum() + max(0.0, 1 - shares.sum()) * bound**2
        if len(x) * (x.mean() - mean) ** 2 <= 1.959964**2 * variance:
            kept.append(mean)
    return min(kept), max(kept)


@pytest.mark.parametrize("seed", range(6))
def test_intervals_agree_with_an_independent_implementation_on_random_data(seed: int) -> None:
    rng = random.Random(seed)
    samples, p, size = (1, 4, 5)[seed % 3], rng.uniform(0.05, 0.8), rng.choice([15, 40])
    before, after = ([sum(rng.random() < p for _ in range(samples)) / samples for _ in range(size)] for _ in range(2))
    one, difference = mean_interval(before), paired_difference(before, after)
    assert one.mean == pytest.approx(sum(before) / size)
    assert (one.low, one.high) == pytest.approx(numpy_ends(before, 0, 1), abs=0.003)
    differences = [b - a for a, b in zip(before, after, strict=True)]
    assert (difference.low, difference.high) == pytest.approx(numpy_ends(differences, -1, 1), abs=0.003)


def test_of_right_and_wrong_the_interval_of_a_mean_is_wilsons() -> None:
    # s.e. 0.0625 and z^2 / n = 0.06: (0.5 + 0.03 +- 1.96 * sqrt(0.0625^2 + 0.06 / 4 / 64)) / 1.06
    interval = mean_interval([0.0, 1.0] * 32)
    assert interval.mean == 0.5
    assert (interval.low, interval.high) == pytest.approx((0.38102, 0.61898), abs=1e-5)
    # 0 of 20: [0, z^2 / (20 + z^2)] = [0, 3.8415 / 23.8415]
    none, all_right = (mean_interval([value] * 20) for value in (0.0, 1.0))
    assert (none.low, none.high) == (0.0, pytest.approx(0.16113, abs=1e-5))
    assert (all_right.low, all_right.high) == (pytest.approx(1 - 0.16113, abs=1e-5), 1.0)


def test_equal_scores_of_a_few_tasks_have_an_interval_too() -> None:
    interval = mean_interval([0.7] * 5)
    assert interval.low < 0.5 < 0.75 < interval.high


def test_rewards_beyond_0_and_1_have_intervals_too() -> None:
    interval = mean_interval([-2.0, 3.0] * 32)
    # Wilson's of a half, on a scale from -2 to 3.
    assert (interval.low, interval.high) == pytest.approx((0.38102 * 5 - 2, 0.61898 * 5 - 2), abs=1e-4)


@pytest.mark.parametrize("samples", [1, 4])
def test_nineteen_of_twenty_intervals_cover_what_they_are_about(samples: int) -> None:
    rng, mean, hits = random.Random(7), 0.3, 0
    for _ in range(1000):
        values = []
        for _ in range(40):
            rate = rng.betavariate(1.2, 2.8) if samples > 1 else mean
            values.append(sum(rng.random() < rate for _ in range(samples)) / samples)
        interval = mean_interval(values)
        hits += interval.low <= mean <= interval.high
    # 1,000 of them: the share has a standard error of 0.007. benchmarks/intervals.py does it in earnest.
    assert 0.93 <= hits / 1000 <= 0.97


def right_and_wrong(num_tasks: int, fixed: int, broken: int) -> tuple[list[float], list[float]]:
    same = num_tasks - fixed - broken
    return [0.0] * fixed + [1.0] * broken + [0.0] * same, [1.0] * fixed + [0.0] * broken + [0.0] * same


def test_of_right_and_wrong_the_interval_of_a_difference_is_tangos() -> None:
    # The airways of 21 children before and after a transplant: 1 got better, 7 got worse (Fagerland, Lydersen, Laake,
    # "Recommended tests and confidence intervals for paired binomial proportions", 2014, section 5.1).
    interval = paired_difference(*right_and_wrong(21, 1, 7))
    assert (interval.low, interval.high) == pytest.approx((-0.517, -0.026), abs=5e-4)
    # Without a difference z^2 / (n + z^2).
    interval = paired_difference([1.0] * 20, [1.0] * 20)
    assert (interval.low, interval.high) == pytest.approx((-0.16113, 0.16113), abs=1e-5)


def test_intervals_of_few_differing_tasks_grow_slowly_with_their_number() -> None:
    for num_tasks in (32, 64, 128, 256):
        for step in (1.0, 0.5, 0.25):
            halves = []
            for differing in range(8):
                same = [0.0] * (num_tasks - differing)
                interval = paired_difference([0.0] * num_tasks, [step] * differing + same)
                halves.append((interval.high - interval.low) / 2)
            assert halves == pytest.approx(sorted(halves))
            assert all(later <= 1.25 * half for half, later in pairwise(halves)), (num_tasks, step, halves)
    # What a bootstrap gave for 2, 3, 4 of 128: 0.18; 0.27 or 0.03, as the seed went; 0.05.
    found = [paired_difference(*right_and_wrong(128, differing, 0)) for differing in (2, 3, 4)]
    assert [round((one.high - one.low) / 2, 3) for one in found] == [0.035, 0.037, 0.038]
    assert [round(one.mean, 3) for one in found] == [0.016, 0.023, 0.031]


@cache
def ends_of_counts(num_tasks: int, fixed: int, broken: int) -> tuple[float, float]:
    interval = paired_difference(*right_and_wrong(num_tasks, fixed, broken))
    return interval.low, interval.high


@pytest.mark.parametrize("num_tasks", [32, 64, 128, 256])
def test_intervals_of_differences_of_right_and_wrong_hold_the_truth_19_times_in_20(num_tasks: int) -> None:
    """By counting every outcome, none is drawn."""
    for fixed, broken in (
        (0, 0), (0.01, 0), (0.02, 0), (0.04, 0), (0.06, 0), (0.1, 0), (0.3, 0), (0.9, 0), (0.98, 0),
        (0.01, 0.01), (0.04, 0.01), (0.1, 0.02), (0.05, 0.05), (0.3, 0.1), (0.2, 0.2),
    ):  # fmt: skip
        missed = 0.0
        for up in range(num_tasks + 1):
            here = _binomial(num_tasks, up, fixed)
            for down in range(num_tasks - up + 1) if here > 1e-7 else ():
                share = here * _binomial(num_tasks - up, down, broken / (1 - fixed))
                if share > 1e-7:
                    low, high = ends_of_counts(num_tasks, up, down)
                    missed += 0.0 if low <= fixed - broken + 1e-12 and fixed - broken - 1e-12 <= high else share
        assert missed <= 0.07, (fixed, broken, missed)


def _binomial(count: int, hits: int, share: float) -> float:
    return math.comb(count, hits) * share**hits * (1 - share) ** (count - hits)


@pytest.mark.parametrize("num_tasks", [32, 64, 128, 256])
def test_intervals_of_differences_of_shares_hold_the_truth_19_times_in_20(num_tasks: int) -> None:
    generator, repeats = np.random.default_rng(num_tasks), 600
    size = (repeats, num_tasks)
    for samples, before, after, share in (
        (4, 0.3, 0.3, 1.0),
        (4, 0.05, 0.95, 0.5),
        (2, 0.02, 0.9, 0.02),
        (8, 0.1, 0.9, 1.0),
    ):
        rates = generator.beta(before, 1 - before, size)
        changed = np.where(generator.random(size) < share, generator.beta(after, 1 - after, size), rates)
        first, second = (generator.binomial(samples, rate) / samples for rate in (rates, changed))
        truth, held = share * (after - before), 0
        for old, new in zip(first.tolist(), second.tolist(), strict=True):
            interval = paired_difference(old, new)
            held += interval.low <= truth <= interval.high
        assert held / repeats >= 0.93, (samples, before, after, share, held / repeats)


def test_pairing_removes_what_tasks_have_in_common() -> None:
    before = [float(i % 2) * 0.5 for i in range(200)]
    after = [value + 0.25 + 0.02 * (-1) ** (i // 2) for i, value in enumerate(before)]
    interval = paired_difference(before, after)
    unpaired = mean_interval(after)
    assert interval.mean == pytest.approx(0.25)
    assert interval.high - interval.low < 0.6 * (unpaired.high - unpaired.low)


@given(st.lists(st.sampled_from([0, 0.25, 0.5, 1.0]), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_an_interval_holds_the_mean_turns_with_its_sides_and_knows_no_order(
    after: list[float], rng: random.Random
) -> None:
    before = [rng.choice([0.0, 0.5, 1.0]) for _ in after]
    one, turned = paired_difference(before, after), paired_difference(after, before)
    assert -1 <= one.low <= one.mean <= one.high <= 1
    assert (one.low, one.high) == pytest.approx((-turned.high, -turned.low), abs=1e-9)
    order = rng.sample(range(len(after)), len(after))
    again = paired_difference([before[i] for i in order], [after[i] for i in order])
    assert (one.low, one.high) == pytest.approx((again.low, again.high), abs=1e-9)


def test_the_paired_test_is_mcnemars_for_right_and_wrong() -> None:
    # Seven tasks fixed, one broken, four as before: 2 * (C(8,0) + C(8,1)) / 2^8
    before = [Fraction(0)] * 7 + [Fraction(1)] + [Fraction(1)] * 4
    after = [Fraction(1)] * 7 + [Fraction(0)] + [Fraction(1)] * 4
    assert paired_p_value(before, after) == pytest.approx(2 * 9 / 256)
    assert paired_p_value(after, before) == paired_p_value(before, after)
    assert paired_p_value(before, before) == 1.0


def test_the_paired_test_counts_all_choices_of_signs() -> None:
    rng = random.Random(3)
    for _ in range(10):
        rates = [[Fraction(rng.randint(0, n), n) for n in (4, 4, 8, 7, 4, 8, 3, 4, 8)] for _ in range(2)]
        differences = [b - a for a, b in zip(*rates, strict=True)]
        sums = [
            abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
            for signs in itertools.product((1, -1), repeat=9)
        ]
        share = sum(total >= abs(sum(differences)) for total in sums) / len(sums)
        assert paired_p_value(*rates) == pytest.approx(share)


def test_the_test_of_episodes_counts_all_exchanges_within_tasks() -> None:
    """With other numbers of episodes by task and by policy."""
    rng = random.Random(4)
    for _ in range(10):
        tasks = [[[rng.randint(0, 1) for _ in range(num)] for num in nums] for nums in ((2, 2), (3, 2), (1, 3))]
        gaps = [
            [
                Fraction(sum(new), len(new)) - Fraction(sum(old) + sum(chosen) - sum(new), len(old))
                for new in itertools.combinations(old + chosen, len(chosen))
            ]
            for old, chosen in tasks
        ]
        sums = [abs(sum(choice)) for choice in itertools.product(*gaps)]
        seen = abs(sum(Fraction(sum(new), len(new)) - Fraction(sum(old), len(old)) for old, new in tasks))
        before, after = ([(sum(task[side]), len(task[side])) for task in tasks] for side in (0, 1))
        share = sum(total >= seen for total in sums) / len(sums)
        assert paired_episodes_p_value(before, after) == pytest.approx(share)
    # One task: 0 of 4 and 4 of 4 are 2 of C(8, 4) = 70 choices.
    assert paired_episodes_p_value([(0, 4)], [(4, 4)]) == pytest.approx(2 / 70)


def test_how_many_tasks_a_difference_needs() -> None:
    # One task in ten fixed, none broken: d = 0.1, s^2 = 0.09, (1.95996 + 0.84162)^2 * 0.09 / 0.01 = 70.6
    before, after = [0.0] * 20, [1.0, 1.0] + [0.0] * 18
    assert tasks_needed(before, after) == 71
    assert tasks_needed(before, before) is None
    # So many see it four times in five: chance of significance with 71 tasks and 10% fixed.
    rng, seen = random.Random(5), 0
    for _ in range(200):
        new = [Fraction(int(rng.random() < 0.1)) for _ in range(71)]
        seen += paired_p_value([Fraction(0)] * 71, new) < 0.05
    assert 0.65 < seen / 200 < 0.9
