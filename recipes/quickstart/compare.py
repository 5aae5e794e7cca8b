"""`make quickstart`: train, then judge base, warm start, the warm start continued, and tuned on the same held-out tasks."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sparring.errors import SparringError
from sparring.evaluator import EvaluationReport, MultiTurnRLEvaluator
from sparring.tracking.console import Console, interval
from sparring.trainer import MultiTurnRLTrainer

RECIPE = Path(__file__).with_name("recipe.toml")
LONG = ("schedule.max_seconds=1000", "schedule.max_steps=60", "evaluation.eval_num_tasks=128")
"""Overrides of `--long`: what fits into 45 minutes on two cores."""
SHUFFLED = ("reward.reward=environment:shuffled_reward",)
"""Overrides of `--shuffled`: rewards that have nothing to do with what was played."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="train for up to 17 minutes instead of about 3")
    parser.add_argument("--shuffled", action="store_true", help="control: random rewards must give no gain")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    overrides = [*(LONG if arguments.long else ()), *(SHUFFLED if arguments.shuffled else ()), *arguments.overrides]
    began = time.monotonic()
    try:
        trainer = MultiTurnRLTrainer(RECIPE, overrides=overrides)
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
