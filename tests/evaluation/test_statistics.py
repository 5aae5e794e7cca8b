"""Golden numbers and laws of the evaluation estimators."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.evaluation.statistics import (
    bootstrap_mean,
    paired_difference,
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


def numpy_interval(values: list[float], seed: int) -> tuple[float, float]:
    """The same interval, worked out apart: all resamples at once, and the ends by search instead of a formula."""
    x, generator = np.array(values), np.random.default_rng(seed)
    mean, n = x.mean(), len(x)
    rho = x.var() / (mean * (1 - mean))
    drawn = x[generator.integers(0, n, (40_000, n))]
    means, variances = drawn.mean(1), drawn.var(1)
    spread = means * (1 - means)
    at_mean = np.where(spread > 1e-12, variances / np.where(spread > 1e-12, spread, 1) * mean * (1 - mean), x.var())
    critical = np.quantile(np.abs(means - mean) / np.sqrt(np.maximum(at_mean, x.var() / n) / n), 0.95)
    ends = np.linspace(0, 1, 200_001)
    inside = ends[np.abs(mean - ends) <= critical * np.sqrt(rho * ends * (1 - ends) / n)]
    return inside.min(), inside.max()


@pytest.mark.parametrize("seed", range(6))
def test_intervals_agree_with_an_independent_implementation_on_random_data(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice([15, 40, 90])
    p = rng.uniform(0.2, 0.8)
    values = [
        sum(rng.random() < p for _ in range(4)) / 4 if seed % 2 else float(rng.random() < p) for _ in range(sizes)
    ]
    found, (low, high) = (
        bootstrap_mean(values, rng=random.Random(seed), num_resamples=6000),
        numpy_interval(values, seed),
    )
    assert found.mean == pytest.approx(sum(values) / len(values))
    # The quantile of 6,000 resamples is a few hundredths of a standard error off.
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)


def test_an_interval_covers_the_mean_and_a_constant_has_none() -> None:
    interval = bootstrap_mean([0.0, 1.0] * 32, rng=random.Random(0))
    # s.e. of 64 coin flips is 0.0625, so the 95% interval is about 0.5 +- 0.12
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.3775, abs=0.03)
    assert interval.high == pytest.approx(0.6225, abs=0.03)
    assert bootstrap_mean([0.7] * 5, rng=random.Random(0)).low == pytest.approx(0.7)


def test_no_success_and_nothing_but_success_leave_room_as_wilson_has_it() -> None:
    # Wilson: 0 of 20 gives [0, z^2 / (20 + z^2)] = [0, 3.8415 / 23.8415]
    none, all_right = (bootstrap_mean([value] * 20, rng=random.Random(0)) for value in (0.0, 1.0))
    assert (none.low, none.high) == (0.0, pytest.approx(0.16113, abs=1e-5))
    assert (all_right.low, all_right.high) == (pytest.approx(1 - 0.16113, abs=1e-5), 1.0)


def test_rewards_beyond_0_and_1_have_intervals_too() -> None:
    interval = bootstrap_mean([-2.0, 3.0] * 32, rng=random.Random(0))
    # s.e. 2.5 / 8 = 0.3125
    assert (interval.low, interval.high) == (pytest.approx(0.5 - 0.61, abs=0.1), pytest.approx(0.5 + 0.61, abs=0.1))


@pytest.mark.parametrize("samples", [1, 4])
def test_nineteen_of_twenty_intervals_cover_what_they_are_about(samples: int) -> None:
    # 200 of them: the share has a standard error of 0.015. benchmarks/intervals.py does it in earnest.
    rng, mean, hits = random.Random(7), 0.3, 0
    for _ in range(200):
        values = []
        for _ in range(40):
            rate = rng.betavariate(1.2, 2.8) if samples > 1 else mean
            values.append(sum(rng.random() < rate for _ in range(samples)) / samples)
        interval = bootstrap_mean(values, rng=rng, num_resamples=150)
        hits += interval.low <= mean <= interval.high
    assert 0.9 <= hits / 200 <= 0.99


def test_pairing_removes_what_tasks_have_in_common() -> None:
    before = [float(i % 2) * 0.75 for i in range(50)]
    after = [value + 0.25 for value in before]
    interval = paired_difference(before, after, rng=random.Random(0))
    # As if one more task differed by 0.25 either way: 1.96 * 0.25 / 50
    assert interval.low == pytest.approx(0.25 - 0.0098, abs=1e-4)
    assert interval.high == pytest.approx(0.25 + 0.0098, abs=1e-4)


def test_two_that_never_differ_in_twenty_tasks_may_differ_by_a_tenth() -> None:
    interval = paired_difference([1.0] * 20, [1.0] * 20, rng=random.Random(0))
    assert (interval.low, interval.high) == (pytest.approx(-0.098, abs=1e-3), pytest.approx(0.098, abs=1e-3))


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
