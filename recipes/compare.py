"""Trains a recipe and its control, then evaluates base, warm start, control and tuned on the same held-out tasks.

The control continues the warm start with supervised steps on the same demonstrations, for longer than the RL training
took.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sparring import MultiTurnRLEvaluator, MultiTurnRLTrainer
from sparring.cli.control import show_control
from sparring.cli.tables import show_evaluations
from sparring.errors import SparringError
from sparring.evaluation.of_run import claim_of_report
from sparring.evaluation.report import EvaluationReport
from sparring.training_run.control import continue_warm_start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path, help="folder of a recipe with a [warm_start]")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        with MultiTurnRLTrainer(arguments.recipe, overrides=arguments.overrides) as trainer:
            result = trainer.train()
        if result is None or result.status != "completed":
            return 0
        show_control(continue_warm_start(result.run))
        report = MultiTurnRLEvaluator(result.run).evaluate()
    except SparringError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(report, result.run, time.monotonic() - began)
    return 0


def show(report: EvaluationReport, run: Path, seconds: float) -> None:
    """Print the README table and the paths of the results."""
    title = f"{len(report.evaluations[0].task_ids)} held-out tasks"
    show_evaluations(report.evaluations, report.comparisons, title=title)
    for line in claim_of_report(report).lines():
        print(line)
    print(f"run: {run}\nevaluation: {report.path}\nwall time: {seconds / 60:.1f} minutes")


if __name__ == "__main__":
    sys.exit(main())
