"""Measures how often 95% intervals of evaluations contain the true value, for many kinds and numbers of tasks.

Tasks are drawn from a population with a known mean. The benchmark computes the intervals in the same way as
evaluations, and counts how many contain the mean. The share should be 0.95. If it is lower, the intervals are too
narrow. If it is higher, they are wider than needed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeAlias

from benchmarks.report import options, report
from sparring.evaluation.statistics import mean_interval, paired_difference

NUM_TASKS = (20, 32, 64, 128, 256)
MEANS = (0.1, 0.3, 0.5, 0.8)
Draw: TypeAlias = Callable[[random.Random, float], float]
"""Draws one task of a population with this mean."""


def right_or_wrong(rng: random.Random, mean: float) -> float:
    return float(rng.random() < mean)


def eight_samples(rng: random.Random, mean: float) -> float:
    """Draw the success rate that a task reaches in eight samples. Most tasks are solved nearly always or nearly
    never."""
    rate = rng.betavariate(mean, 1 - mean)
    return sum(rng.random() < rate for _ in range(8)) / 8


def four_samples(rng: random.Random, mean: float) -> float:
    rate = rng.betavariate(4 * mean, 4 * (1 - mean))
    return sum(rng.random() < rate for _ in range(4)) / 4


def fractional_scores(rng: random.Random, mean: float) -> float:
    return rng.betavariate(6 * mean, 6 * (1 - mean))


POPULATIONS: Mapping[str, Draw] = {
    "right or wrong": right_or_wrong,
    "rates of 8 samples": eight_samples,
    "rates of 4 samples": four_samples,
    "fractional scores": fractional_scores,
}
CHANGES: Mapping[str, tuple[float, float]] = {
    "nothing": (0.0, 0.0),
    "1% fixed": (0.01, 0.0),
    "3% fixed": (0.03, 0.0),
    "3% fixed, 1% broken": (0.03, 0.01),
    "10% fixed, 2% broken": (0.1, 0.02),
    "30% fixed, 10% broken": (0.3, 0.1),
    "20% fixed, 20% broken": (0.2, 0.2),
    "95% fixed": (0.95, 0.0),
}
"""Shares of fixed and broken tasks. With several samples, these tasks become nearly always right or nearly always
wrong."""


def coverage_of_means(draw: Draw, mean: float, num_tasks: int, repeats: int, rng: random.Random) -> float:
    """Return the share of intervals that contain the population's mean."""
    held = 0
    for _ in range(repeats):
        values = [draw(rng, mean) for _ in range(num_tasks)]
        interval = mean_interval(values)
        held += interval.low <= mean <= interval.high
    return held / repeats


def coverage_of_differences(
    fixed: float, broken: float, num_tasks: int, samples: int, repeats: int, rng: random.Random
) -> tuple[float, float]:
    """Return the share of intervals that contain the true difference, and their mean half-width.

    Each policy runs a task `samples` times.
    """
    low, high = (0.0, 1.0) if samples == 1 else (0.05, 0.9)
    kinds, weights = ((low, high), (high, low), (low, low)), (fixed, broken, 1 - fixed - broken)
    truth, held, halves = (fixed - broken) * (high - low), 0, []
    for _ in range(repeats):
        rates = rng.choices(kinds, weights, k=num_tasks)
        before, after = (
            [sum(rng.random() < rate[side] for _ in range(samples)) / samples for rate in rates] for side in (0, 1)
        )
        interval = paired_difference(before, after)
        held += interval.low <= truth <= interval.high
        halves.append((interval.high - interval.low) / 2)
    return held / repeats, fmean(halves)


def _row(kind: str, truth: str, coverages: Sequence[float]) -> dict[str, Any]:
    return {"interval of": kind, "truth": truth} | dict(zip(map(_tasks, NUM_TASKS), coverages, strict=True))


def _tasks(num: int) -> str:
    return f"{num} tasks"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=1000, help="intervals of each kind (default: 1000)")
    arguments = parser.parse_args()
    repeats = 2 if arguments.smoke else arguments.repeats
    rng, rows = random.Random(0), list[dict[str, Any]]()
    for name, draw in POPULATIONS.items():
        for mean in MEANS:
            found = [coverage_of_means(draw, mean, num, repeats, rng) for num in NUM_TASKS]
            rows.append(_row(name, f"mean {mean:g}", found))
    for kind, samples in (("difference, right or wrong", 1), ("difference, rates of 4 samples", 4)):
        for name, (fixed, broken) in CHANGES.items():
            measured = [coverage_of_differences(fixed, broken, num, samples, repeats, rng) for num in NUM_TASKS]
            rows.append(_row(kind, name, [one[0] for one in measured]) | {"half-width, 128": measured[3][1]})
    kinds = dict.fromkeys(row["interval of"] for row in rows)

    def cells(kind: str, fewest: int = 0) -> list[float]:
        mine = [row for row in rows if row["interval of"] == kind]
        return [row[_tasks(num)] for row in mine for num in NUM_TASKS if num >= fewest]

    figures = {f"coverage, {kind}": fmean(cells(kind)) for kind in kinds}
    figures |= {f"lowest from 32 tasks, {kind}": min(cells(kind, fewest=32)) for kind in kinds}
    targets = {f"coverage, {kind}": {"at_least": 0.93} for kind in kinds}
    targets |= {f"lowest from 32 tasks, {kind}": {"at_least": 0.93} for kind in kinds if kind.startswith("difference")}
    sides = {kind: sum(cells(kind)) for kind in kinds}
    return report(
        "coverage of 95% intervals",
        rows,
        figures=figures,
        targets=targets,
        path=arguments.json,
        smoke=arguments.smoke,
        sides=sides,
    )


if __name__ == "__main__":
    sys.exit(main())
