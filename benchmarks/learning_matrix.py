"""Does every algorithm learn? Each advantage with ppo, each loss with group_based, and corrections at staleness 3.

All on pointer chase, from one warm start a seed, judged by the strict scorer on held-out tasks at temperature 1. Cells
that are done stay in --state: an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import report
from sparring.algorithms.choice import ROOMS

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "pointer_chase" / "recipe.toml"
LEARNED = 0.15
"""How much better than the warm start a method must get on held-out tasks to have learned."""
STALE = 3
STALE_CHOICES = {
    "ppo, synchronous": ("ppo", "none", 0),
    "ppo, token_tis": ("ppo", "token_tis", STALE),
    "cispo, token_tis": ("cispo", "token_tis", STALE),
    "importance_sampling, token_tis": ("importance_sampling", "token_tis", STALE),
    "importance_sampling, uncorrected": ("importance_sampling", "none", STALE),
}


def cells(num_seeds: int, num_stale_seeds: int) -> Iterator[dict[str, Any]]:
    """Every run: which part of the matrix, its name there, its seed, what it changes in the recipe."""
    for seed in range(num_seeds):
        for method in ROOMS["advantage_method"]:
            yield {
                "part": "advantage",
                "name": method,
                "seed": seed,
                "changes": [f"algorithm.advantage_method={method}"],
            }
        for loss in ROOMS["loss_fn"]:
            yield {"part": "loss", "name": loss, "seed": seed, "changes": [f"algorithm.loss_fn={loss}"]}
    for seed in range(num_stale_seeds):
        for name, (loss, correction, bound) in STALE_CHOICES.items():
            changes = [
                f"algorithm.loss_fn={loss}", f"algorithm.off_policy_correction={correction}",
                f"rollout.max_steps_off_policy={bound}",
            ]  # fmt: skip
            yield {"part": "staleness", "name": name, "seed": seed, "changes": changes}


def key(cell: dict[str, Any]) -> str:
    return f"{cell['part']}/{cell['name']}/{cell['seed']}"


def play(cell: dict[str, Any], steps: int, folder: Path) -> dict[str, Any]:
    """Train a cell from the warm start of its seed, in this process; success on held-out tasks before and after."""
    from sparring.evaluator import MultiTurnRLEvaluator
    from sparring.trainer import MultiTurnRLTrainer

    warm = folder / f"warm-{cell['seed']}"
    common = [
        f"run.runs_dir={folder}", f"run.seed={cell['seed']}", f"schedule.max_steps={steps}", "schedule.val_every=0",
        "schedule.save_every=0", "evaluation.eval_temperature=1.0", "evaluation.val_num_tasks=16",
        "evaluation.val_temperature=1.0", "evaluation.allow_zero_baseline=true",
    ]  # fmt: skip
    if cell["part"] == "warm start":
        trainer = MultiTurnRLTrainer(RECIPE, overrides=[*common, "schedule.max_steps=0"], name=warm.name, quiet=True)
        trainer.train()
        return {**cell, "after": MultiTurnRLEvaluator(trainer).evaluate().evaluations[-1].success.mean}
    weights = warm / "checkpoints" / "warm_start"
    trainer = MultiTurnRLTrainer(
        RECIPE, overrides=[*common, *cell["changes"]], name=key(cell).replace("/", "-").replace(", ", "-"),
        model_weights=weights, quiet=True,
    )  # fmt: skip
    result = trainer.train()
    assert result is not None
    assert result.status == "completed", result.status
    evaluations = MultiTurnRLEvaluator(trainer).evaluate().evaluations
    return {**cell, "after": evaluations[-1].success.mean}


def run_all(todo: Sequence[dict[str, Any]], done: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Each cell in a process of its own, two at a time, a thread each."""

    def one(cell: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.learning_matrix", "--cell", json.dumps(cell)]
        command += ["--steps", str(arguments.steps), "--state", str(arguments.state)]
        finished = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        lines = finished.stdout.strip().splitlines()
        if finished.returncode or not lines:
            reason = (finished.stderr.strip().splitlines() or ["no output"])[-1]
            result = {**cell, "failed": reason}
        else:
            result = json.loads(lines[-1])
        done[key(cell)] = result
        (arguments.state / "cells.json").write_text(json.dumps(done, indent=1) + "\n", "utf-8")
        print(
            f"{len(done)}/{len(done) + len(todo)} {key(cell)}: {result.get('failed', result.get('after', 'done'))}",
            file=sys.stderr,
        )

    with ThreadPoolExecutor(max_workers=arguments.parallel) as pool:
        list(pool.map(one, todo))


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95% bootstrap interval of a mean."""
    rng = random.Random(seed)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(2000))
    return means[49], means[1949]


def summary(done: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, float], dict[str, dict[str, float]]]:
    rows, figures, targets = [], {}, {}
    warm = {cell["seed"]: cell["after"] for cell in done.values() if cell["part"] == "warm start"}
    ordered = sorted(
        (cell for cell in done.values() if cell["part"] != "warm start"), key=lambda c: (c["part"], c["name"])
    )
    for (part, name), group in itertools.groupby(ordered, key=lambda cell: (cell["part"], cell["name"])):
        members = list(group)
        worked = [cell for cell in members if "failed" not in cell]
        if not worked:
            rows.append({"part": part, "name": name, "seeds": 0, "95%": members[0]["failed"], "learned": "failed"})
            continue
        after = [cell["after"] for cell in worked]
        low, high = interval(after)
        before = fmean(warm[cell["seed"]] for cell in worked)
        rows.append(
            {
                "part": part, "name": name, "seeds": len(worked), "before": before, "after": fmean(after),
                "95%": f"{low:.2f} to {high:.2f}", "learned": "yes" if low - before >= LEARNED else "no",
            }
        )  # fmt: skip
        if part != "staleness":
            figures[f"{part} {name}: gain"] = fmean(after) - before
    synchronous = {c["seed"]: c["after"] for c in ordered if c["name"] == "ppo, synchronous" and "after" in c}
    for name in STALE_CHOICES:
        pairs = [
            c["after"] - synchronous[c["seed"]]
            for c in ordered
            if c["name"] == name and "after" in c and c["seed"] in synchronous
        ]
        if name != "ppo, synchronous" and pairs:
            figures[f"staleness {STALE}, {name}: lower bound of the difference to synchronous"] = interval(pairs)[0]
            if "uncorrected" not in name:
                targets[f"staleness {STALE}, {name}: lower bound of the difference to synchronous"] = {
                    "at_least": -0.10
                }
    return rows, figures, targets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer steps: about 15 minutes")
    parser.add_argument("--steps", type=int, help="RL steps a cell; 60, or 30 with --quick")
    parser.add_argument("--parallel", type=int, default=2, help="cells at a time, a thread each")
    parser.add_argument(
        "--state", type=Path, default=ROOT / "runs" / "learning_matrix", help="where finished cells are kept"
    )
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or (30 if arguments.quick else 60)
    arguments.state = arguments.state.resolve()
    if arguments.cell is not None:
        print(json.dumps(play(json.loads(arguments.cell), arguments.steps, arguments.state)))
        return 0
    arguments.state.mkdir(parents=True, exist_ok=True)
    kept = arguments.state / "cells.json"
    done = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    wanted = list(cells(1, 1) if arguments.quick else cells(3, 10))
    seeds = sorted({cell["seed"] for cell in wanted})
    warm = [{"part": "warm start", "name": "warm start", "seed": seed, "changes": []} for seed in seeds]
    for part in (warm, wanted):
        run_all([cell for cell in part if key(cell) not in done or "failed" in done[key(cell)]], done, arguments)
    rows, figures, targets = summary(dict(done.items()))
    return report("learning_matrix", rows, figures=figures, targets=targets, path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
