"""`sparring train`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from sparring.cli.command import (
    Json,
    On,
    Overrides,
    app,
    note,
    print_json,
    read_place_overrides,
    report_failures,
    resolve_run,
    say,
)
from sparring.cli.seeds import train_family
from sparring.cli.tables import show_evaluations
from sparring.config import find_warnings, load_config, read_recipe, resolved_view, untrainable
from sparring.config.seeds import read_seeds
from sparring.errors import UsageError
from sparring.run_folders import RunFolder
from sparring.run_folders.recipe_files import find_code_folder
from sparring.run_folders.run_folder import CONTINUED, WARM_START
from sparring.supervision.supervisor import Supervisor
from sparring.tracking import Console


@app.command()
@report_failures
def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A recipe.toml, or the folder it is in.")
    ] = None,
    overrides: Overrides = None,
    on: On = None,
    name: Annotated[str | None, typer.Option(help="Name of the run folder; it must be new.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="SEEDS",
            help="Train several seeds, one after another: `3` means three seeds from run.seed on, `0,4,7` means these seeds. "
            "Repeat the command to continue.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every setting, load everything, and stop before training.")
    ] = False,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue this run instead of a RECIPE.")] = None,
    allow_changed: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="With --resume: parts that may have changed (model,tokenizer,template,data,recipe).",
        ),
    ] = None,
    model_weights: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Start from the weights of a run (RUN@STEP, RUN@best) or a checkpoint's folder, without its optimizer.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the recipe first, and stop if a finding is an error.")
    ] = True,
    supervise: Annotated[
        bool,
        typer.Option("--supervise/--no-supervise", help="Train in a separate process, and resume after a crash."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Train a recipe. The first Ctrl-C saves a checkpoint and stops; the second one stops at once."""
    changes = list(overrides or [])
    if resume is not None:
        _refuse_options_of_new_runs(seeds, model_weights)
        if recipe is not None:
            changes.insert(0, recipe)
        resume_training(
            resolve_run(resume),
            changes,
            on=on,
            name=name,
            dry_run=dry_run,
            supervise=supervise,
            as_json=as_json,
            allow_changed=allow_changed,
        )
        return
    if allow_changed is not None:
        raise UsageError("--allow-changed applies only to a resumed run; give it with --resume RUN, or leave it out.")
    if recipe is None:
        raise UsageError(
            "no recipe was given; specify a recipe.toml (`sparring init FOLDER` writes one), or give --resume RUN."
        )
    _train_recipe(
        recipe,
        changes,
        on=on,
        name=name,
        seeds=seeds,
        weights=model_weights,
        dry_run=dry_run,
        check=check,
        supervise=supervise,
        as_json=as_json,
    )


def _refuse_options_of_new_runs(seeds: str | None, model_weights: str | None) -> None:
    """Raise UsageError if options that start runs are given with --resume."""
    if seeds is not None:
        raise UsageError(
            "--resume continues one run, not a family of runs; to continue a family, run `sparring train RECIPE "
            "--seeds ...` again."
        )
    if model_weights is not None:
        raise UsageError("--model-weights starts a new run, but --resume continues one; leave one of them out.")


def _train_recipe(
    recipe: str,
    changes: list[str],
    *,
    on: Path | None,
    name: str | None,
    seeds: str | None,
    weights: str | None,
    dry_run: bool,
    check: bool,
    supervise: bool,
    as_json: bool,
) -> None:
    """Start a new run or a family of runs. With `dry_run`, only show the settings and load everything."""
    path = Path(recipe) / "recipe.toml" if Path(recipe).is_dir() else Path(recipe)
    placed = read_place_overrides(on, path, changes)
    source = None if weights is None else _find_weights(weights)
    if dry_run:
        _check_code_and_data(path, [*placed, *changes])
        _show_settings(path, changes, as_json, placed)
    changes = [*placed, *changes]
    # Before torch is imported, so that a mistake in the recipe is reported at once.
    config = load_config(path, changes)
    from sparring.checks.running.accept import refuse_unknown_checks

    refuse_unknown_checks(config, path)
    if not config.is_trainable:
        raise untrainable(config, str(path))
    if seeds is not None:
        read_seeds(seeds, config, changes)
    elif not dry_run:
        RunFolder.require_new(Path(config.run.runs_dir), name or config.run.name)
    if supervise and not dry_run:
        named = [] if name is None else ["--name", name]
        unchecked = [] if check else ["--no-check"]
        several = [] if seeds is None else ["--seeds", seeds]
        started = [] if source is None else ["--model-weights", str(source)]
        begin = [str(path), *changes, *named, *unchecked, *several, *started]
        _supervise(begin, again=None if seeds is None else begin, as_json=as_json)
    if seeds is not None and not dry_run:
        train_family(path, seeds, changes, name=name, weights=source, check=check, as_json=as_json)
        return
    from sparring.trainer import MultiTurnRLTrainer

    with MultiTurnRLTrainer(
        path, overrides=changes, name=name, model_weights=source, check=check, quiet=as_json
    ) as trainer:
        if dry_run:
            trainer.train(dry_run=True)
            note("recipe, environment, data and model fit together; nothing was trained.")
            return
        _report_training(trainer.train(), as_json)


def _find_weights(weights: str) -> Path:
    """Return the checkpoint that the option names. Raises UsageError and DataError if there is none."""
    from sparring.assembly.policies import find_checkpoint as find_in_folder
    from sparring.evaluation.policies import checkpoint_of, find_checkpoint

    named = find_checkpoint(weights)
    return find_in_folder(weights) if named is None else checkpoint_of(*named)


def _supervise(
    begin: Sequence[str], changes: Sequence[str] = (), *, again: Sequence[str] | None = None, as_json: bool
) -> NoReturn:
    """Train in separate processes, and exit with the exit code of the last one.

    `changes` are the overrides of a resumed run. For a family of runs, `again` replaces the resume command.
    """
    command = (sys.executable, "-P", "-m", "sparring", "train", "--no-supervise", *(["--json"] if as_json else []))
    supervisor = Supervisor(
        (*command, *begin),
        lambda run: (*command, *(again or ("--resume", run, *changes))),
        say=note,
    )
    sys.exit(supervisor.run())


def _refuse_resuming(folder: RunFolder, changes: Sequence[str], name: str | None) -> None:
    """Raise UsageError if the run cannot be resumed, or cannot be resumed with these arguments."""
    run = folder.path
    if name is not None:
        raise UsageError("--name names a new run, but --resume continues an existing run; leave one of them out.")
    if folder.status().get("status") == "running":
        raise UsageError(f"{run} is already running; stop it first (`sparring runs stop {run}`), or leave it running.")
    misplaced = [change for change in changes if "=" not in change]
    if misplaced:
        raise UsageError(
            f"--resume continues {run} with its own recipe, so {misplaced[0]!r} cannot be used; leave it out."
        )


def resume_training(
    run: Path,
    changes: Sequence[str],
    *,
    on: Path | None = None,
    name: str | None = None,
    dry_run: bool = False,
    supervise: bool = True,
    as_json: bool = False,
    allow_changed: str | None = None,
) -> None:
    folder = RunFolder(run)
    _refuse_resuming(folder, changes, name)
    placed = read_place_overrides(on, folder.recipe, changes)
    folder.config([*placed, *changes])
    allowed = [] if allow_changed is None else [part.strip() for part in allow_changed.split(",")]
    if allowed:
        from sparring.assembly import check_parts

        check_parts(allowed)
    if dry_run:
        _show_settings(folder.recipe, changes, as_json, placed)
        return
    changes = [*placed, *changes]
    if _is_complete(folder, changes):
        _report_complete(folder, folder.config(changes).schedule.max_steps, as_json)
        return
    if supervise:
        again = [*changes, *([] if allow_changed is None else ["--allow-changed", allow_changed])]
        _supervise(["--resume", str(run), *again], again, as_json=as_json)
    from sparring.trainer import MultiTurnRLTrainer

    with MultiTurnRLTrainer.attach(run, overrides=changes) as trainer:
        _report_training(trainer.train(resume=True, allow_changed=allowed), as_json)


def _is_complete(folder: RunFolder, changes: Sequence[str]) -> bool:
    """Return whether a run has completed all its steps. Raises DataError if its files do not agree."""
    if folder.status().get("status") != "completed":
        return False
    from sparring.training.checkpoint_files import get_original_name
    from sparring.training_run.resuming import find_start

    checkpoint = find_start(folder, changes)
    step = "" if checkpoint is None else get_original_name(checkpoint)
    return step.isdigit() and int(step) >= folder.config(changes).schedule.max_steps


def _report_complete(folder: RunFolder, max_steps: int, as_json: bool) -> None:
    """Show that nothing is left to train, and how the run can be continued."""
    if as_json:
        from sparring.training_run.following import read_result

        _report_training(read_result(folder), as_json)
        return
    run, step = shlex.quote(str(folder.path)), folder.status().get("step", 0)
    say(f"{folder.path} is complete: it has taken {step} steps, and schedule.max_steps is {max_steps}.")
    say(f"to continue it, raise schedule.max_steps: sparring train --resume {run} schedule.max_steps={2 * step or 1}")
    say(f"next: {_name_next(folder)}")


def _report_training(result: Any, as_json: bool) -> None:
    """Show the trainer's TrainResult."""
    if as_json:
        validations = {str(step): evaluation.as_json() for step, evaluation in result.validations.items()}
        shown = {"run": str(result.run), "status": result.status, "step": result.step}
        print_json(
            {
                **shown,
                "train_seconds": result.train_seconds,
                "validations": validations,
                "claim": result.claim.as_json(),
            }
        )
        return
    if result.validations:
        show_evaluations(list(result.validations.values()), [], title="validation")
    for line in result.claim.lines():
        say(line)
    if result.status == "stopped":
        say(f"to continue it: sparring train --resume {shlex.quote(str(result.run))}")
    say(f"next: {_name_next(RunFolder(Path(result.run)))}")


def _name_next(folder: RunFolder) -> str:
    """Return the command that evaluates the run, after the one that makes its strongest control if there is none yet."""
    run = shlex.quote(str(folder.path))
    has_control = not (folder.checkpoints / WARM_START).is_dir() or (folder.controls / CONTINUED).is_dir()
    return f"sparring eval {run}" if has_control else f"sparring control {run}, then sparring eval {run}"


def _check_code_and_data(path: Path, changes: Sequence[str]) -> None:
    """Report a wrong name in the recipe before its settings, and before the model is loaded."""
    from sparring.assembly.user_code import check_code_and_data

    config = load_config(path, changes)
    if config.is_trainable:
        check_code_and_data(config, find_code_folder(path))


def _show_settings(path: Path, changes: Sequence[str], as_json: bool, placed: Sequence[str]) -> None:
    config = load_config(path, [*placed, *changes])
    Console(quiet=as_json).warned(find_warnings(config))
    rows = resolved_view(read_recipe(path), changes, config, placed=placed)
    if as_json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
    else:
        Console().table(
            str(path), ["key", "value", "from"], [[key, json.dumps(value), origin] for key, value, origin in rows]
        )
