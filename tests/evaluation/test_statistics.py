"""Golden numbers and laws of the evaluation estimators."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.evaluation.statistics import bootstrap_mean, paired_difference, pass_at_k, pass_power_k


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


def test_an_interval_covers_the_mean_and_a_constant_has_none() -> None:
    interval = bootstrap_mean([0.0, 1.0] * 32, rng=random.Random(0))
    # s.e. of 64 coin flips is 0.0625, so the 95% interval is about 0.5 +- 0.1225
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.3775, abs=0.03)
    assert interval.high == pytest.approx(0.6225, abs=0.03)
    assert bootstrap_mean([0.7] * 5, rng=random.Random(0)).low == pytest.approx(0.7)


def test_pairing_removes_what_tasks_have_in_common() -> None:
    before = [float(i % 2) for i in range(50)]
    after = [value + 0.25 for value in before]
    interval = paired_difference(before, after, rng=random.Random(0))
    assert interval.low == pytest.approx(0.25)
    assert interval.high == pytest.approx(0.25)
