"""Intervals over seeds and tasks, and which seed stands apart: hand-derived numbers, and coverage by simulation."""

import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparring.evaluation.seed_intervals import (
    interval_over_seeds,
    interval_over_seeds_and_tasks,
    outlier_of,
    shared_tasks,
    student_quantile,
)
from sparring.evaluation.statistics import mean_interval


def shares(right: float, tasks: range = range(100)) -> dict[str, float]:
    """That share of the tasks is right, the first ones."""
    return {f"t{task}": float(place < round(right * len(tasks))) for place, task in enumerate(tasks)}


def test_quantiles_of_students_t_are_those_of_printed_tables() -> None:
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 120: 1.980}
    assert {degrees: round(student_quantile(degrees), 3) for degrees in printed} == printed
    assert round(student_quantile(4, 0.99), 3) == 4.604
    assert student_quantile(5000) == pytest.approx(1.95996, abs=1e-5)


def test_an_interval_over_seeds_is_students() -> None:
    # The standard deviation is the root of 1/2, that of the mean 1/2; t of one degree of freedom is 12.706.
    found = interval_over_seeds([0.0, 1.0], least=-100.0, most=100.0)
    assert found is not None
    assert (found.mean, found.low, found.high) == (0.5, pytest.approx(-5.853, abs=1e-3), pytest.approx(6.853, abs=1e-3))
    within = interval_over_seeds([0.0, 1.0])
    assert within is not None
    assert (within.low, within.high) == (0.0, 1.0)


def test_one_seed_has_no_interval_over_seeds() -> None:
    assert interval_over_seeds([0.5]) is None
    assert interval_over_seeds_and_tasks([shares(0.5)]) is None


def test_crossed_seeds_and_tasks_have_the_variance_and_the_degrees_of_freedom_of_hillis() -> None:
    # Six seeds that solve the first 9, 12, ... 24 of 30 tasks.
    rows = np.array([[float(task < solved) for task in range(30)] for solved in range(9, 27, 3)])
    seeds, tasks = rows.mean(axis=1), rows.mean(axis=0)
    between_seeds, between_tasks = 30 * seeds.var(ddof=1), 6 * tasks.var(ddof=1)
    rest = ((rows - seeds[:, None] - tasks[None, :] + rows.mean()) ** 2).sum() / (5 * 29)
    both = between_seeds + between_tasks - rest
    degrees = int(both**2 * 5 / between_seeds**2)
    half = student_quantile(degrees) * (both / 180) ** 0.5
    found = interval_over_seeds_and_tasks(
        [{f"t{place}": value for place, value in enumerate(row)} for row in rows.tolist()]
    )
    alone = interval_over_seeds(seeds.tolist())
    assert found is not None
    assert alone is not None
    assert (found.low, found.high) == pytest.approx((0.55 - half, 0.55 + half))
    assert found.high - alone.high > 0.01


def test_seeds_that_are_alike_have_the_width_of_their_tasks() -> None:
    every = [shares(1.0) for _ in range(3)]
    found, over_tasks = interval_over_seeds_and_tasks(every), mean_interval([1.0] * 100)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((over_tasks.low, 1.0))


def test_seeds_with_tasks_of_their_own_are_nested() -> None:
    own = [shares(right, range(100 * seed, 100 * seed + 100)) for seed, right in enumerate((0.2, 0.5, 0.8))]
    assert shared_tasks(own) == []
    found = interval_over_seeds_and_tasks(own, least=-1.0, most=2.0)
    # The standard deviation of the means is .3; t of two degrees of freedom 4.3027.
    assert found is not None
    assert found.high - 0.5 == pytest.approx(4.3027 * 0.3 / 3**0.5, abs=1e-3)


@pytest.mark.parametrize(("between", "tasks"), [(0.0, 0.2), (0.05, 0.2), (0.1, 0.0)])
def test_the_interval_over_seeds_and_tasks_covers_what_other_seeds_and_tasks_have(between: float, tasks: float) -> None:
    chance, hits, num = random.Random(4), 0, 300
    for _ in range(num):
        effects = [chance.gauss(0, tasks) for _ in range(40)]
        seeds = []
        for _ in range(3):
            mean = 0.5 + chance.gauss(0, between)
            seeds.append(
                {
                    f"t{task}": float(chance.random() < min(1.0, max(0.0, mean + effect)))
                    for task, effect in enumerate(effects)
                }
            )
        found = interval_over_seeds_and_tasks(seeds)
        assert found is not None
        hits += found.low <= 0.5 <= found.high
    assert hits / num >= 0.93


@example([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.9e-149]])
@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=2, max_size=5))
def test_an_interval_holds_its_mean_and_is_no_narrower_than_over_seeds_or_tasks_alone(rows: list[list[float]]) -> None:
    found = interval_over_seeds_and_tasks([dict(zip("abcd", row, strict=True)) for row in rows])
    assert found is not None
    over_tasks = mean_interval([fmean(column) for column in zip(*rows, strict=True)])
    over_seeds = interval_over_seeds([fmean(row) for row in rows])
    assert over_seeds is not None
    assert 0 <= found.low <= min(over_tasks.low, over_seeds.low) + 1e-9
    assert max(over_tasks.high, over_seeds.high) - 1e-9 <= found.high <= 1
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9


@pytest.mark.parametrize(
    ("means", "outlier"),
    [
        ((0.90, 0.85, 0.20), 2),
        ((0.20, 0.85, 0.90), 0),
        ((0.30, 0.32, 0.80), 2),
        ((0.90, 0.86, 0.20, 0.92), 2),
        ((0.90, 0.86, 0.93, 0.40, 0.88), 3),
        ((0.36, 0.36, 0.36, 0.98, 0.36), 3),
        # Spread evenly, or two against two or three: none stands apart.
        ((0.30, 0.60, 0.90), None),
        ((0.20, 0.22, 0.90, 0.92), None),
        ((0.20, 0.22, 0.90, 0.92, 0.88), None),
        # Equal but for what 100 tasks do by chance, or for less than 0.1.
        ((0.90, 0.90, 0.82), None),
        ((0.99, 1.00, 0.91), None),
        # Two seeds cannot tell which of them is unusual.
        ((0.90, 0.20), None),
    ],
)
def test_the_seed_that_stands_apart_is_named(means: tuple[float, ...], outlier: int | None) -> None:
    found = outlier_of({seed: shares(mean) for seed, mean in enumerate(means)})
    assert (None if found is None else found.seed) == outlier


def test_few_tasks_make_no_outlier() -> None:
    """Of 5 tasks one in five right against four in five is by chance."""
    tasks = range(5)
    assert outlier_of({0: shares(0.8, tasks), 1: shares(0.8, tasks), 2: shares(0.2, tasks)}) is None
    # On tasks of their own they are not paired; 100 are enough there, too.
    own = {seed: shares(right, range(100 * seed, 100 * seed + 100)) for seed, right in enumerate((0.9, 0.85, 0.2))}
    found = outlier_of(own)
    assert found is not None
    assert found.sentence == "Seed 2 is an outlier: it has 0.20, and the others have 0.85 to 0.90"
