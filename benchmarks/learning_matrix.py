"""Measures whether every algorithm learns.

There is one cell for each advantage (with the loss ppo), for each loss (with the advantage group_based), and for each
loss at staleness 3 with its correction.

All cells use pointer_chase, and all cells of a seed use the same warm start. The strict scorer grades held-out tasks at
temperature 1. Finished cells are stored in the file --state, so that an interrupted benchmark can continue.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from benchmarks.report import options, report
from sparring.algorithms.choice import FUNCTIONS
from sparring.evaluation.statistics import mean_interval

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "pointer_chase" / "recipe.toml"
NUM_TASKS = 128
"""Held-out tasks of the recipe."""
LEARNED = 0.15
"""A method has learned if it is better than the warm start by at least this much on held-out tasks."""
STALE = 3


class Choice(NamedTuple):
    """A change to the recipe."""

    advantage_method: str = "group_based"
    loss_fn: str = "ppo"
    off_policy_correction: str = "none"
    max_steps_off_policy: int = 0


SYNCHRONOUS = Choice()
UNCORRECTED = "importance_sampling, uncorrected"
"""This choice is shown only for comparison and has no target."""
MATRIX: dict[str, dict[str, Choice]] = {
    "advantage": {name: Choice(advantage_method=name) for name in FUNCTIONS["advantage_method"]},
    # In synchronous training with one pass, all losses have the same gradient. These cells show that each loss is
    # correct, not which one is better.
    "loss": {name: Choice(loss_fn=name) for name in FUNCTIONS["loss_fn"]},
    f"staleness {STALE}": {
        "ppo, synchronous": SYNCHRONOUS,
        "ppo, token_tis": Choice("group_based", "ppo", "token_tis", STALE),
        "cispo, geometric_mask": Choice("group_based", "cispo", "geometric_mask", STALE),
        "importance_sampling, geometric_mask": Choice("group_based", "importance_sampling", "geometric_mask", STALE),
        UNCORRECTED: Choice("group_based", "importance_sampling", "none", STALE),
    },
}
"""Choices by part and name. A choice that is in several parts is trained once."""
WARM_START = "warm_start"
SMOKE = (
    "warm_start.steps=2",
    "warm_start.num_demonstrations=32",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "evaluation.eval_num_tasks=2",
    "evaluation.eval_group_size=1",
    "evaluation.val_num_tasks=2",
)


def key(choice: Choice | str, seed: int) -> str:
    """Return the name of a cell and of its run."""
    return "-".join(map(str, choice if isinstance(choice, Choice) else [choice])) + f"-seed-{seed}"


def cells(num_seeds: int, num_stale_seeds: int) -> dict[str, tuple[Choice, int]]:
    """Return every choice and seed to train, keyed by cell."""
    wanted = {}
    for part, choices in MATRIX.items():
        for seed in range(num_stale_seeds if part.startswith("staleness") else num_seeds):
            wanted |= {key(choice, seed): (choice, seed) for choice in choices.values()}
    return wanted


def play(choice: Choice | None, seed: int, steps: int, folder: Path, more: Sequence[str] = ()) -> float:
    """Train in this process, starting from the warm start of the seed, and return the success on held-out tasks.

    If `choice` is None, train the warm start itself.
    """
    from sparring.evaluator import MultiTurnRLEvaluator
    from sparring.trainer import MultiTurnRLTrainer

    overrides = [
        f"run.runs_dir={folder}",
        f"run.seed={seed}",
        f"schedule.max_steps={steps if choice else 0}",
        "schedule.val_every=0",
        "schedule.save_every=0",
        "evaluation.eval_temperature=1.0",
        "evaluation.val_num_tasks=16",
        "evaluation.val_temperature=1.0",
        "evaluation.allow_zero_baseline=true",
    ]
    overrides += more
    weights = None
    if choice is not None:
        sections = {"max_steps_off_policy": "rollout"}
        overrides += [f"{sections.get(k, 'algorithm')}.{k}={value}" for k, value in choice._asdict().items()]
        weights = folder / key(WARM_START, seed) / "checkpoints" / "warm_start"
    shutil.rmtree(folder / key(choice or WARM_START, seed), ignore_errors=True)  # left by an interrupted cell
    trainer = MultiTurnRLTrainer(
        RECIPE, overrides=overrides, name=key(choice or WARM_START, seed), model_weights=weights, quiet=True
    )
    result = trainer.train()
    if choice is not None:
        assert result is not None
        assert result.status == "completed", result.status
    return MultiTurnRLEvaluator(trainer, temperatures=[1.0]).evaluate().evaluations[-1].success.mean


def run_all(todo: Sequence[str], done: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Run each cell in a separate process with one thread, several cells at a time."""

    def one(cell: str) -> None:
        command = [sys.executable, "-m", "benchmarks.learning_matrix", "--cell", cell]
        command += ["--steps", str(arguments.steps), "--state", str(arguments.state)]
        finished = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        lines = finished.stdout.strip().splitlines()
        if finished.returncode or not lines:
            done[cell] = {"failed": (finished.stderr.strip().splitlines() or ["no output"])[-1]}
        else:
            done[cell] = {"success": float(lines[-1])}
        (arguments.state / "cells.json").write_text(json.dumps(done, indent=1) + "\n", "utf-8")
        bar.update(task, advance=1)
        bar.console.print(f"{cell}: {next(iter(done[cell].values()))}")

    with Progress(console=Console(stderr=True)) as bar, ThreadPoolExecutor(arguments.parallel) as pool:
        task = bar.add_task("runs", total=len(todo))
        list(pool.map(one, todo))


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a mean."""
    rng = random.Random(seed)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(2000))
    return means[49], means[1949]


def summary(done: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, float], dict[str, dict[str, float]]]:
    """Return one row per part and name, and the differences from synchronous training, paired by seed."""
    rows, figures, targets = [], {}, {}
    seeds = range(max(int(cell.rsplit("-", 1)[-1]) for cell in done) + 1)

    def successes(choice: Choice | str) -> dict[int, float]:
        results = {seed: done.get(key(choice, seed), {}).get("success") for seed in seeds}
        return {seed: success for seed, success in results.items() if success is not None}

    warm, synchronous = successes(WARM_START), successes(SYNCHRONOUS)
    for part, choices in MATRIX.items():
        for name, choice in choices.items():
            after = successes(choice)
            if not any(key(choice, seed) in done for seed in seeds):
                continue
            if not after:
                reason = next(done[key(choice, s)]["failed"] for s in seeds if key(choice, s) in done)
                rows.append({"part": part, "name": name, "seeds": 0, "learned": f"failed: {reason}"})
                continue
            before = fmean(warm[seed] for seed in after if seed in warm)
            # This is the interval over tasks for these seeds.
            num = NUM_TASKS * len(after)
            right = round(fmean(after.values()) * num)
            shown = mean_interval([1.0] * right + [0.0] * (num - right))
            row = {
                "part": part,
                "name": name,
                "seeds": len(after),
                "before": before,
                "after": fmean(after.values()),
                "after, 95%": f"{shown.low:.2f} to {shown.high:.2f}",
                "learned": "yes" if shown.low - before >= LEARNED else "no",
            }
            pairs = [after[seed] - synchronous[seed] for seed in after if seed in synchronous]
            if part.startswith("staleness") and choice != SYNCHRONOUS and pairs:
                low, high = interval(pairs)
                row["to synchronous, 95%"] = f"{low:+.2f} to {high:+.2f}"
                figure = f"{part}, {name}: lower bound of the difference to synchronous"
                figures[figure] = low
                if name != UNCORRECTED:
                    targets[figure] = {"at_least": -0.10}
            rows.append(row)
    figures["share of advantages and losses that learned"] = fmean(
        row["learned"] == "yes" for row in rows if not row["part"].startswith("staleness")
    )
    return rows, figures, targets


def smoke(arguments: argparse.Namespace) -> int:
    """Train the warm start and two choices, each for one step, in this process."""
    chosen = (None, SYNCHRONOUS, MATRIX[f"staleness {STALE}"]["cispo, geometric_mask"])
    with tempfile.TemporaryDirectory() as folder:
        done = {key(choice or WARM_START, 0): {"success": play(choice, 0, 1, Path(folder), SMOKE)} for choice in chosen}
        steps = {cell: len(list((Path(folder) / cell / "checkpoints").iterdir())) for cell in done}
    rows, figures, _ = summary(done)
    return report("learning_matrix", rows, figures=figures, targets={}, path=arguments.json, sides=steps, smoke=True)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer steps")
    parser.add_argument("--steps", type=int, help="RL steps per run (default: 30, or 20 with --quick)")
    parser.add_argument("--parallel", type=int, default=2, help="number of simultaneous runs, with one thread each")
    parser.add_argument(
        "--state", type=Path, default=ROOT / "runs" / "learning_matrix", help="folder that keeps finished runs"
    )
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or (20 if arguments.quick else 30)
    if arguments.cell is None:
        arguments.state = arguments.state.resolve() / f"{arguments.steps}-steps"
    wanted = cells(1, 1) if arguments.quick else cells(3, 10)
    warm = {key(WARM_START, seed): (None, seed) for seed in sorted({seed for _, seed in wanted.values()})}
    if arguments.cell is not None:
        choice, seed = ({**warm, **wanted} | {**cells(3, 10)})[arguments.cell]
        print(play(choice, seed, arguments.steps, arguments.state))
        return 0
    if arguments.smoke:
        return smoke(arguments)
    arguments.state.mkdir(parents=True, exist_ok=True)
    kept = arguments.state / "cells.json"
    done = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    for part in (warm, wanted):
        run_all([cell for cell in part if "success" not in done.get(cell, {})], done, arguments)
    rows, figures, targets = summary({cell: done[cell] for cell in (*warm, *wanted)})
    sides = {cell: 1.0 + one["success"] for cell, one in done.items() if "success" in one}
    return report(
        "learning_matrix",
        rows,
        figures=figures,
        targets=targets,
        path=arguments.json,
        smoke=arguments.smoke,
        sides=sides,
    )


if __name__ == "__main__":
    sys.exit(main())
