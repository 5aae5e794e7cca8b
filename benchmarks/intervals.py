"""How often 95% intervals of evaluations hold what they are about, for many kinds of tasks and few to many of them.

Tasks are drawn from a population whose mean is known, the interval is made as evaluations make it, and what is counted is
whether it holds that mean. 0.95 is right; less promises too much.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from benchmarks.report import report
from sparring.evaluation.statistics import bootstrap_mean, paired_difference

NUM_TASKS = (20, 50, 200)
MEANS = (0.1, 0.3, 0.5, 0.8)
NUM_RESAMPLES = 400
Draw: TypeAlias = Callable[[random.Random, float], float]
"""One task of a population with this mean."""


def right_or_wrong(rng: random.Random, mean: float) -> float:
    return float(rng.random() < mean)


def eight_samples(rng: random.Random, mean: float) -> float:
    """Most tasks are nearly always right or nearly always wrong."""
    rate = rng.betavariate(mean, 1 - mean)
    return sum(rng.random() < rate for _ in range(8)) / 8


def four_samples(rng: random.Random, mean: float) -> float:
    rate = rng.betavariate(4 * mean, 4 * (1 - mean))
    return sum(rng.random() < rate for _ in range(4)) / 4


def fractional_scores(rng: random.Random, mean: float) -> float:
    return rng.betavariate(6 * mean, 6 * (1 - mean))


POPULATIONS: Mapping[str, Draw] = {
    "right or wrong": right_or_wrong, "rates of 8 samples": eight_samples, "rates of 4 samples": four_samples,
    "fractional scores": fractional_scores,
}  # fmt: skip
CHANGES: Mapping[str, tuple[float, float]] = {
    "10% fixed, 2% broken": (0.1, 0.02), "30% fixed, 10% broken": (0.3, 0.1), "20% fixed, 20% broken": (0.2, 0.2),
}  # fmt: skip
"""Of right or wrong tasks, half of which were right."""


def coverage_of_means(draw: Draw, mean: float, num_tasks: int, repeats: int, rng: random.Random) -> float:
    """Share of intervals that hold the population's mean."""
    held = 0
    for _ in range(repeats):
        values = [draw(rng, mean) for _ in range(num_tasks)]
        interval = bootstrap_mean(values, rng=rng, num_resamples=NUM_RESAMPLES)
        held += interval.low <= mean <= interval.high
    return held / repeats


def coverage_of_differences(fixed: float, broken: float, num_tasks: int, repeats: int, rng: random.Random) -> float:
    """Share of intervals that hold the difference `fixed` - `broken`."""
    held = 0
    for _ in range(repeats):
        kinds = rng.choices(((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)), (fixed, broken, 1 - fixed - broken), k=num_tasks)
        interval = paired_difference([one[0] for one in kinds], [one[1] for one in kinds], rng=rng)
        held += interval.low <= fixed - broken <= interval.high
    return held / repeats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write rows, figures and targets here")
    parser.add_argument("--repeats", type=int, default=300, help="intervals of each kind (default: 300)")
    arguments = parser.parse_args()
    rng, rows = random.Random(0), []
    for name, draw in POPULATIONS.items():
        for num_tasks in NUM_TASKS:
            found = [coverage_of_means(draw, mean, num_tasks, arguments.repeats, rng) for mean in MEANS]
            by_mean = {f"at {mean:g}": value for mean, value in zip(MEANS, found, strict=True)}
            rows.append({"interval of": name, "tasks": num_tasks, **by_mean, "mean": fmean(found)})
    for name, (fixed, broken) in CHANGES.items():
        for num_tasks in NUM_TASKS:
            found = coverage_of_differences(fixed, broken, num_tasks, arguments.repeats // 3, rng)
            rows.append({"interval of": name, "tasks": num_tasks, "mean": found})
    figures = {
        f"coverage, {name}": fmean(float(row["mean"]) for row in rows if row["interval of"] in kinds)
        for name, kinds in {**{name: (name,) for name in POPULATIONS}, "differences": tuple(CHANGES)}.items()
    }
    targets = {name: {"at_least": 0.93, "at_most": 0.97} for name in figures}
    return report("coverage of 95% intervals", rows, figures=figures, targets=targets, path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
