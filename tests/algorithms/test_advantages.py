"""Advantages against numbers derived by hand from the formulas."""

import pytest

from sparring.algorithms.advantages import ADVANTAGES, group_based, rloo

ONE_AND_A_HALF = [1.0, 0.0, 0.5, 0.0]
THREE_OF_FOUR = [1.0, 1.0, 0.0, 1.0]


def test_group_based_divides_by_the_unbiased_standard_deviation():
    # mean 0.375, squared deviations sum to 0.6875, std = sqrt(0.6875 / 3) = 0.478714
    assert group_based(ONE_AND_A_HALF) == pytest.approx([1.30558, -0.783348, 0.261116, -0.783348], abs=1e-6)
    assert group_based(THREE_OF_FOUR) == pytest.approx([0.499999, 0.499999, -1.499997, 0.499999], abs=1e-6)


def test_group_based_without_normalization_is_the_distance_from_the_mean():
    assert group_based(ONE_AND_A_HALF, normalize=False) == pytest.approx([0.625, -0.375, 0.125, -0.375])
    assert group_based(THREE_OF_FOUR, normalize=False) == pytest.approx([0.25, 0.25, -0.75, 0.25])


def test_rloo_compares_with_the_mean_of_the_others():
    # the first of a: 1 - (0 + 0.5 + 0) / 3
    assert rloo(ONE_AND_A_HALF) == pytest.approx([5 / 6, -0.5, 1 / 6, -0.5])
    assert rloo(THREE_OF_FOUR) == pytest.approx([1 / 3, 1 / 3, -1.0, 1 / 3])


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("rewards", [[0.7], [0.1, 0.1, 0.1], [1.0, 1.0]])
def test_a_group_without_differences_has_exactly_no_advantage(name, rewards):
    assert ADVANTAGES[name](rewards) == [0.0] * len(rewards)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages_of_a_group_sum_to_zero(name):
    assert sum(ADVANTAGES[name]([0.1, 0.9, 0.3, -2.0, 0.25])) == pytest.approx(0.0, abs=1e-9)
