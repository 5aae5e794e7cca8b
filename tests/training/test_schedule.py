"""Learning rates step by step, by hand."""

import math

import pytest

from sparring.training.schedule import learning_rate


def rates(schedule, *, warmup=0, steps=4):
    return [
        learning_rate(step, peak=1.0, schedule=schedule, warmup_steps=warmup, max_steps=steps)
        for step in range(1, steps + 1)
    ]


def test_constant_stays():
    assert rates("constant") == [1, 1, 1, 1]


def test_warm_up_rises_to_the_peak_in_equal_steps():
    assert rates("constant", warmup=4) == [0.25, 0.5, 0.75, 1.0]
    assert rates("linear", warmup=2) == [0.5, 1.0, 1.0, 0.5]


def test_linear_falls_to_zero_one_step_after_the_last():
    assert rates("linear") == [1.0, 0.75, 0.5, 0.25]


def test_cosine_falls_along_half_a_cosine():
    expected = [(1 + math.cos(math.pi * share)) / 2 for share in (0, 0.25, 0.5, 0.75)]
    assert rates("cosine") == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_run_without_a_last_step_in_sight_never_has_a_negative_rate(schedule):
    assert all(
        learning_rate(step, peak=1.0, schedule=schedule, warmup_steps=0, max_steps=3) >= 0 for step in range(1, 20)
    )
