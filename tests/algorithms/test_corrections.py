"""Corrections on fixture B: new = [-.5, -1.2, -.1, -2] and old = [-.7, -1, -1.6, -2.05], read as (should, did sample)."""

import math

import pytest
import torch

from sparring.algorithms.corrections import CORRECTIONS

LOG_RATIOS = [0.2, -0.2, 1.5, 0.05]
RATIOS = [1.221403, 0.818731, 4.481689, 1.051271]


def weights(name, log_ratios=LOG_RATIOS, trajectories=None, **settings):
    places = torch.tensor(trajectories or [0] * len(log_ratios))
    return CORRECTIONS[name](torch.tensor(log_ratios), places, **settings).tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", RATIOS),
        ("token_tis", [1.221403, 0.818731, 2.0, 1.051271]),
        # The product of all four is exp(1.55) = 4.71.
        ("sequence_tis", [2.0, 2.0, 2.0, 2.0]),
        ("icepop", [1.221403, 0.818731, 0.0, 1.051271]),
        ("sequence_mask", [0.0, 0.0, 0.0, 0.0]),
        # The geometric mean is exp(1.55 / 4) = 1.47.
        ("geometric_mask", [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_fixture_b(name, expected):
    assert weights(name) == pytest.approx(expected, abs=1e-6)


def test_bounds_are_the_users():
    assert weights("token_tis", correction_high=1.1) == pytest.approx([1.1, 0.818731, 1.1, 1.051271], abs=1e-6)
    assert weights("sequence_mask", correction_high=5.0) == pytest.approx(RATIOS, abs=1e-6)
    assert weights("icepop", correction_low=0.9)[1] == 0.0


def test_each_trajectory_is_corrected_by_its_own_tokens():
    # Products: exp(0.2 + 1.5) = 5.47 and exp(-0.2 + 0.05) = 0.86.
    expected = [0.0, 0.818731, 0.0, 1.051271]
    assert weights("sequence_mask", trajectories=[0, 1, 0, 1]) == pytest.approx(expected, abs=1e-6)
    products = [2.0, math.exp(-0.15), 2.0, math.exp(-0.15)]
    assert weights("sequence_tis", trajectories=[0, 1, 0, 1]) == pytest.approx(products, abs=1e-6)


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_equal_policies_are_not_corrected(name):
    assert weights(name, [0.0] * 5, [0, 0, 1, 1, 1]) == [1.0] * 5


@pytest.mark.parametrize("name", sorted(set(CORRECTIONS) - {"none"}))
def test_a_long_trajectory_whose_product_overflows_stays_finite(name):
    assert all(map(math.isfinite, weights(name, [0.5] * 2000)))
