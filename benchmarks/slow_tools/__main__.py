"""Compares the trajectories per second of asynchronous training with those of synchronous training where tools are slow.

A small model follows links with a tool whose seconds are lognormal, and one call in twenty takes ten times as long. Every
setting trains in a separate process, with the same tasks, the same seconds of tools and the same weights. Synchronous
training runs in deterministic rounds and without rounds, with several bounds on the number of episodes that run at once;
the best of these is compared with training at staleness bound 1. The ledger shows whether a rollout was discarded.

A synchronous step takes as long as the slowest episode of its batch plus learning. At bound 1, groups that start with the
weights of one step must be trained on at the step after the next one at the latest, so two steps take at least as long as
the slowest episode of a batch plus learning. Therefore no schedule at bound 1 is more than twice as fast. "What the tools
permit" is the ratio if learning takes no time: below 2, because a batch also waits for the one before it. One pair of
settings measures this with a smaller model."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from benchmarks.report import options, report
from benchmarks.slow_tools.recipe import waiting
from sparring.ledger import DiscardReason, Ledger, RolloutState

RECIPE = Path(__file__).parent / "recipe"
SHOWN = ("trajectories/s", "step, s", "slowest episode, s", "learning, s", "oldest token", "discarded")
"""The numbers of a run that the table shows. The file has all of them."""
SKIPPED_STEPS = 2
"""The first steps are not measured: the first batches of an asynchronous run start together."""
TARGETS = {
    "asynchronous over the best synchronous setting": {"at_least": 2.0},
    "discarded rollouts": {"at_most": 0.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to train. `concurrency` is in batches: how many batches of episodes may run at once."""

    name: str
    overrides: tuple[str, ...]
    concurrency: float
    model: str = "build"
    """The function of the recipe that builds the model."""
    share_of_steps: float = 1.0
    """The share of the steps that is measured, for settings that take very long."""

    @property
    def is_synchronous(self) -> bool:
        return "rollout.max_steps_off_policy=0" in self.overrides


SYNCHRONOUS = ("rollout.max_steps_off_policy=0",)
WITHOUT_ROUNDS = (*SYNCHRONOUS, "engine.deterministic=false")
ROUNDS = Setting(name="synchronous, rounds", overrides=SYNCHRONOUS, concurrency=1, share_of_steps=0.5)
NO_ROUNDS = Setting(name="synchronous, no rounds", overrides=WITHOUT_ROUNDS, concurrency=1)
BOUND_1 = Setting(name="bound 1", overrides=("rollout.max_steps_off_policy=1",), concurrency=2)
COMPARED = (NO_ROUNDS, BOUND_1)
SMALL = tuple(replace(one, name=f"{one.name}, small model", model="build_small") for one in COMPARED)
"""The same settings with a model whose training takes next to no time."""
LEARNING_RATES = {"build": 1e-3, "build_small": 5e-3}
"""The learning rate of each model's warm start."""
SETTINGS = (
    ROUNDS,
    NO_ROUNDS,
    Setting(name="synchronous, no rounds, half at once", overrides=WITHOUT_ROUNDS, concurrency=0.5),
    BOUND_1,
    Setting(name="bound 2", overrides=("rollout.max_steps_off_policy=2",), concurrency=3),
    *SMALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of work of a run."""

    groups: int
    group_size: int
    steps: int
    scale: float
    """Factor of the tools' seconds."""

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            f"batch.global_batch_size={self.groups}",
            f"batch.group_size={self.group_size}",
            f"environment.options.scale={self.scale}",
        )


def tuned(folder: Path, setting: Setting, size: Size, seed: int) -> list[str]:
    """Return the overrides of a run, and write its tasks."""
    steps = max(SKIPPED_STEPS + 2, round(size.steps * setting.share_of_steps))
    file = folder / f"tasks-{seed}-{steps}.jsonl"
    write_tasks(file, size.groups * steps, seed)
    episodes = size.groups * size.group_size
    return [
        *size.overrides,
        *setting.overrides,
        f"model.name=waiting:{setting.model}",
        f"data.train={file}",
        f"run.seed={seed}",
        f"schedule.max_steps={steps}",
        f"rollout.rollout_max_concurrency={max(size.group_size, round(episodes * setting.concurrency))}",
    ]


def write_tasks(file: Path, num: int, seed: int) -> None:
    """Write the tasks of a run. They are as many as its steps need, so that no rollout is cancelled at its end."""
    rows = (
        {"id": task.id, "prompt": task.messages[0]["content"], **task.fields} for task in waiting.train_tasks(num, seed)
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def train(folder: Path, name: str, weights: Path | None, overrides: Sequence[str], *, here: bool) -> Path:
    """Train one run, in a separate process unless `here`. Return its folder."""
    if here:
        train_here(folder / name, weights, overrides)
    else:
        started = ["--train", str(folder / name), *(["--weights", str(weights)] if weights else [])]
        command = [sys.executable, "-m", "benchmarks.slow_tools", *started, *overrides]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder / name


def train_here(run: Path, weights: Path | None, overrides: Sequence[str]) -> None:
    # Imported only in the processes that train.
    from sparring.trainer import MultiTurnRLTrainer

    fixed = [f"run.runs_dir={run.parent}", *overrides]
    trainer = MultiTurnRLTrainer(RECIPE, overrides=fixed, name=run.name, model_weights=weights, check=False, quiet=True)
    trainer.train()


def measure(folder: Path) -> dict[str, float]:
    """Read what a run did after its first steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "training/num_trajectories" in line["metrics"]]
    seconds = steps[-1]["time"] - steps[SKIPPED_STEPS - 1]["time"]
    found = [line["metrics"] for line in steps[SKIPPED_STEPS:]]
    with Ledger(folder / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        counts = ledger.counts()
    means = {
        "learning, s": "timing_s/training",
        "engine busy": "engine/busy_share",
        "mean episode, s": "timing_s/episode/mean",
        "environment, s": "timing_s/episode/environment",
        "slowest episode, s": "timing_s/episode/max",
        "calls": "rollout/agent/tool_calls",
    }
    return {
        "trajectories/s": sum(one["training/num_trajectories"] for one in found) / seconds,
        "step, s": seconds / len(found),
        **{name: fmean(one[metric] for one in found) for name, metric in means.items()},
        "oldest token": max(one["training/staleness_max"] for one in found),
        "trained": counts.get(RolloutState.TRAINED, 0),
        "discarded": sum(counts.get(f"discarded/{reason.value}", 0) for reason in DiscardReason),
    }


def permitted(size: Size, num_steps: int) -> float:
    """Return how many times faster bound 1 is than synchronous training without rounds if only tools take time, over many
    steps."""
    num_groups = size.groups * num_steps
    tasks = iter(waiting.train_tasks(num_groups))
    durations = [
        max(
            sum(islice(waiting.seconds(task.id, episode), task.fields["calls"]))
            for task in islice(tasks, size.groups)
            for episode in range(size.group_size)
        )
        for _ in range(num_steps)
    ]
    # A batch starts when the batch before the last one is trained on, and is trained on after the last one.
    before, last = 0.0, 0.0
    for duration in durations:
        before, last = last, max(last, before + duration)
    return sum(durations) / last


def show(found: Mapping[Setting, Sequence[Mapping[str, float]]], size: Size, arguments: argparse.Namespace) -> int:
    """Report the medians over the seeds."""
    rates = {setting: [one["trajectories/s"] for one in runs] for setting, runs in found.items()}
    best = {
        model: max(
            (one for one in found if one.is_synchronous and one.model == model), key=lambda one: median(rates[one])
        )
        for model in dict.fromkeys(setting.model for setting in found)
    }
    rows = [
        {
            "setting": setting.name,
            "to the best synchronous": median(
                ours / its for ours, its in zip(rates[setting], rates[best[setting.model]], strict=True)
            ),
            **{key: median(one[key] for one in runs) for key in SHOWN},
            "seeds": {key: [one[key] for one in runs] for key in runs[0]},
        }
        for setting, runs in found.items()
    ]
    shown = {row["setting"]: row["to the best synchronous"] for row in rows}
    figures = {"asynchronous over the best synchronous setting": shown[BOUND_1.name]}
    if SMALL[-1] in found:
        figures["the same, where learning takes next to no time"] = shown[SMALL[-1].name]
    figures |= {
        "what the tools permit": permitted(size, 20 if arguments.smoke else 1000),
        "discarded rollouts": sum(one["discarded"] for runs in found.values() for one in runs),
    }
    print(f"The best synchronous setting: {best[BOUND_1.model].name}")
    sides = {setting.name: sum(one["trained"] for one in runs) for setting, runs in found.items()}
    return report(
        "slow_tools", rows, figures=figures, targets=TARGETS, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds; the results are medians")
    parser.add_argument("--groups", type=int, default=8, help="groups per step")
    parser.add_argument("--group-size", type=int, default=8, help="episodes per group")
    parser.add_argument(
        "--steps", type=int, default=12, help=f"steps per run; the first {SKIPPED_STEPS} are not measured"
    )
    parser.add_argument("--scale", type=float, default=0.1, help="factor of the tools' seconds (median 1, mean 1.64)")
    parser.add_argument(
        "--only", nargs="*", metavar="SETTING", help="of the other settings than the two that are compared, only these"
    )
    parser.add_argument("--train", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        train_here(arguments.train, arguments.weights, arguments.overrides)
        return 0
    seeds = range(1 if arguments.smoke else arguments.seeds)
    if arguments.smoke:
        size, settings, warm_start = Size(groups=2, group_size=2, steps=4, scale=0.02), list(COMPARED), 15
    else:
        size = Size(
            groups=arguments.groups, group_size=arguments.group_size, steps=arguments.steps, scale=arguments.scale
        )
        chosen = arguments.only if arguments.only is not None else [one.name for one in SETTINGS]
        settings, warm_start = [one for one in SETTINGS if one in COMPARED or one.name in chosen], 80
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        weights: dict[str, Path] = {}
        for model in dict.fromkeys(setting.model for setting in settings):
            warm = [
                f"warm_start.steps={warm_start}",
                f"warm_start.num_demonstrations={10 * warm_start}",
                "schedule.max_steps=0",
                f"model.name=waiting:{model}",
                f"warm_start.learning_rate={LEARNING_RATES[model]}",
            ]
            weights[model] = train(folder, f"warm-start-{model}", None, warm, here=arguments.smoke)
        found: dict[Setting, list[Mapping[str, float]]] = {setting: [] for setting in settings}
        for seed in seeds:
            # The order alternates, so that a machine that becomes slower or faster favors no setting.
            for setting in settings[:: 1 if seed % 2 == 0 else -1]:
                overrides = tuned(folder, setting, size, seed)
                name = f"run-{seed}-{settings.index(setting)}"
                found[setting].append(
                    measure(train(folder, name, weights[setting.model], overrides, here=arguments.smoke))
                )
    return show(found, size, arguments)


if __name__ == "__main__":
    sys.exit(main())
