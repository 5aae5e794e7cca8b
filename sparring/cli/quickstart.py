"""`sparring quickstart`."""

from __future__ import annotations

import shlex
import shutil
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import Json, Overrides, app, print_json, report_failures, say
from sparring.cli.control import show_control
from sparring.cli.tables import show_evaluations
from sparring.config import load_config
from sparring.errors import UsageError
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.evaluation.report import EvaluationReport

FILES = ("recipe.toml", "environment.py", "model.py")
"""The files of the recipe that the command writes. The folder in `templates/` is a link to `recipes/pointer_chase`."""
FOLDER = "quickstart"


@app.command()
@report_failures
def quickstart(
    folder: Annotated[
        str | None,
        typer.Argument(help=f"A new folder for the recipe, or the folder of a recipe; by default `{FOLDER}`."),
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write a small recipe, train it and its control, and compare both on held-out tasks. It takes minutes on two
    cores, and needs no download."""
    began, changes = time.monotonic(), list(overrides or ())
    if folder is not None and "=" in folder:
        folder, changes = None, [folder, *changes]
    recipe = Path(folder or FOLDER) / "recipe.toml"
    if not recipe.is_file():
        _write_recipe(recipe.parent)
        if not as_json:
            say(f"wrote {', '.join(str(recipe.parent / name) for name in FILES)}")
    if load_config(recipe, changes).warm_start is None:
        raise UsageError(
            f"{recipe} has no [warm_start], and the control continues a warm start. Run `sparring train "
            f"{shlex.quote(str(recipe.parent))}` and `sparring eval` instead, or specify a new folder."
        )
    report = _train_and_evaluate(recipe, changes, as_json)
    if report is not None:
        _show(report, time.monotonic() - began, as_json)


def _write_recipe(folder: Path) -> None:
    """Write the files of the recipe into a folder, which must be new or empty."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} contains files but no recipe.toml; specify a new folder, or a recipe's folder.")
        folder.mkdir(parents=True, exist_ok=True)
        with as_file(files("sparring") / "templates" / "quickstart") as template:
            for name in FILES:
                shutil.copyfile(template / name, folder / name)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}; specify a folder that can be created.") from error


def _train_and_evaluate(recipe: Path, changes: list[str], as_json: bool) -> EvaluationReport | None:
    """Return the evaluation, or None if the training was stopped."""
    from sparring.evaluator import MultiTurnRLEvaluator
    from sparring.trainer import MultiTurnRLTrainer
    from sparring.training_run.control import continue_warm_start
    from sparring.training_run.parallel_control import ParallelControl

    trainer = MultiTurnRLTrainer(recipe, overrides=changes, quiet=as_json)
    with ParallelControl(trainer.config, lambda: trainer.folder, Console(quiet=as_json)) as parallel:
        with trainer:
            result = trainer.train()
        assert result is not None, "only a dry run returns no result"
        if result.status != "completed":
            resume = f"sparring train --resume {shlex.quote(str(result.run))}"
            if as_json:
                print_json({"run": str(result.run), "status": result.status, "step": result.step})
            else:
                say(f"{result.run} is {result.status}; next: {resume}")
            return None
        control = parallel.wait() or continue_warm_start(result.run, quiet=as_json)
    if not as_json:
        show_control(control, result.run)
    return MultiTurnRLEvaluator(result.run, quiet=as_json).evaluate()


def _show(report: EvaluationReport, seconds: float, as_json: bool) -> None:
    """Show the evaluations as a table, what they show, and where the results are."""
    from sparring.evaluation.of_run import claim_of_report

    here, claim = Path.cwd(), claim_of_report(report)
    path = report.path.relative_to(here) if report.path.is_relative_to(here) else report.path
    run = path.parents[1]
    if as_json:
        shown = {"run": str(run), "evaluation": str(path), "seconds": seconds}
        print_json({**shown, **report.as_json(), "claim": claim.as_json()})
        return
    title = f"{len(report.evaluations[0].task_ids)} held-out tasks"
    show_evaluations(report.evaluations, report.comparisons, title=title)
    for line in claim.lines():
        say(line)
    say(f"run: {run}\nevaluation: {path}\nwall time: {seconds / 60:.1f} minutes")
    say(f"next: sparring report {shlex.quote(str(run))}")
