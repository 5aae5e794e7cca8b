"""The order of the episodes of several rows, such as the temperatures of a policy."""

from __future__ import annotations

import pytest

from sparring.rollouts import GroupPlan
from sparring.rollouts.plan import order_for_sharing, split_into_waves
from sparring.types import Sampling, Task


def rows(num_tasks: int, *group_sizes: int) -> list[list[GroupPlan]]:
    return [
        [
            GroupPlan(
                task=Task(id=str(index), messages=()),
                position=index,
                group_size=size,
                sampling=Sampling(),
                split="held_out",
            )
            for index in range(num_tasks)
        ]
        for size in group_sizes
    ]


@pytest.mark.parametrize(
    ("num_tasks", "group_sizes", "concurrency", "num_waves"),
    [
        (96, (1, 1), 64, 3),  # alone 2 + 2
        (96, (1, 4), 64, 8),  # alone 2 + 6, without a gap
        (96, (1, 4), 96, 6),  # alone 1 + 4
        (8, (2,), 8, 2),
    ],
)
def test_the_episodes_of_a_task_run_in_one_wave(
    num_tasks: int, group_sizes: tuple[int, ...], concurrency: int, num_waves: int
) -> None:
    by_row = rows(num_tasks, *group_sizes)
    ordered = order_for_sharing(by_row, concurrency)
    assert ordered == [plan for of_task in zip(*by_row, strict=True) for plan in of_task]
    assert len(split_into_waves(ordered, concurrency)) == num_waves


@pytest.mark.parametrize(("group_sizes", "concurrency"), [((1, 8), 8), ((1, 4), 4), ((1, 8), 16), ((1, 32), 96)])
def test_rows_run_one_after_the_other_if_the_waves_would_be_much_emptier(
    group_sizes: tuple[int, ...], concurrency: int
) -> None:
    by_row = rows(96, *group_sizes)
    assert order_for_sharing(by_row, concurrency) == [plan for row in by_row for plan in row]
    # Without waves, none is emptier.
    assert order_for_sharing(by_row, None) == [plan for of_task in zip(*by_row, strict=True) for plan in of_task]
