"""Train a recipe, then judge base, warm start, the warm start continued, and tuned on the same held-out tasks.

The warm start continued is the control: the same demonstrations for as long as RL took.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sparring.errors import SparringError
from sparring.evaluation.report import EvaluationReport
from sparring.evaluation.tables import comparison_table, notes, result_table
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.tracking.console import Console
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
        report = MultiTurnRLEvaluator(trainer, temperatures=[trainer.config.serving_temperature]).evaluate(
            extra={"warm start continued": control}
        )
    except SparringError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(report, result.run, time.monotonic() - began)
    return 0


def show(report: EvaluationReport, run: Path, seconds: float) -> None:
    """The table that the README shows, and where everything is."""
    console = Console()
    console.table(*result_table(report.evaluations, title=f"{len(report.evaluations[0].task_ids)} held-out tasks"))
    differences = comparison_table(report.evaluations, report.comparisons)
    if differences is not None:
        console.table(*differences)
    for line in notes(report.evaluations, report.comparisons):
        print(line)
    print(f"run: {run}\nevaluation: {report.path}\nwall time: {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    sys.exit(main())
