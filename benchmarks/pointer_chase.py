"""Does the whole loop learn? Pointer chase over seeds, synchronously and two steps off-policy, greedy on held-out tasks."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import report
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.trainer import MultiTurnRLTrainer

RECIPE = Path(__file__).parents[1] / "recipes" / "pointer_chase" / "recipe.toml"
SECONDS = 180.0
WARM, TUNED = 0.45, 0.80


def run(seed: int, bound: int, folder: str) -> dict[str, float]:
    """One training run, warm start and evaluation included in its seconds."""
    began = time.monotonic()
    overrides = [f"run.runs_dir={folder}", f"run.seed={seed}", f"rollout.max_steps_off_policy={bound}"]
    trainer = MultiTurnRLTrainer(RECIPE, overrides=overrides, quiet=True)
    result = trainer.train()
    if result is None or result.status != "completed":
        # An interrupted run stops cleanly, after a checkpoint: nothing to judge.
        raise SystemExit(f"seed {seed}, bound {bound}: stopped before its end; nothing was measured")
    seconds = time.monotonic() - began
    evaluations = MultiTurnRLEvaluator(trainer).evaluate().evaluations
    warm, tuned = evaluations[1].success.mean, evaluations[2].success.mean
    print(f"seed {seed}, bound {bound}: {warm:.3f} -> {tuned:.3f} in {seconds:.0f} s", file=sys.stderr, flush=True)
    return {"max_steps_off_policy": bound, "seed": seed, "warm start": warm, "tuned": tuned, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [run(seed, bound, folder) for seed in range(arguments.seeds) for bound in arguments.bounds]
    figures: dict[str, float] = {}
    for bound in arguments.bounds:
        chosen = [row for row in rows if row["max_steps_off_policy"] == bound]
        learned = [row["warm start"] <= WARM and row["tuned"] >= TUNED and row["seconds"] <= SECONDS for row in chosen]
        figures[f"share of seeds that learn, bound {bound}"] = sum(learned) / len(learned)
    return report(
        "pointer_chase", rows, figures=figures, targets={key: {"at_least": 0.8} for key in figures}, path=arguments.json
    )


if __name__ == "__main__":
    sys.exit(main())
