"""Train a recipe, then judge base, warm start, the warm start continued, and tuned on the same held-out tasks.

The warm start continued is the control: the same demonstrations for as long as RL took.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sparring.errors import SparringError
from sparring.evaluator import EvaluationReport, MultiTurnRLEvaluator
from sparring.tracking.console import Console, interval
from sparring.trainer import MultiTurnRLTrainer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path, help="folder of a recipe with a [warm_start]")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        trainer = MultiTurnRLTrainer(arguments.recipe, overrides=arguments.overrides)
        result = trainer.train()
        if result is None or result.status != "completed":
            return 0
        control = trainer.continue_warm_start(result.train_seconds)
        report = MultiTurnRLEvaluator(trainer).evaluate(extra={"warm start continued": control})
    except SparringError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(report, result.run, time.monotonic() - began)
    return 0


def show(report: EvaluationReport, run: Path, seconds: float) -> None:
    """The table that the README shows, and where everything is."""
    console = Console()
    differences = {comparison.before: interval(comparison.difference) for comparison in report.comparisons}
    rows = [
        [
            evaluation.name,
            interval(evaluation.success),
            f"{evaluation.metrics['eval/reward/mean']:.3f}",
            f"{evaluation.metrics['eval/completion']:.2f}",
            f"{evaluation.metrics['eval/turns/mean']:.1f}",
            differences.get(evaluation.name, ""),
        ]
        for evaluation in report.evaluations
    ]
    first = report.evaluations[0]
    judge = (
        "judged by the strict scorer" if first.is_independent else "NOT independent: no scorer, judged by the reward"
    )
    console.table(
        f"{len(first.task_ids)} held-out tasks, {judge}; mean [95% interval]",
        ["policy", "success", "reward", "completion", "turns", "tuned is better by (paired)"],
        rows,
    )
    print(f"run: {run}\nevaluation: {report.path}\nwall time: {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    sys.exit(main())
