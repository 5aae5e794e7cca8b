"""`sparring control`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import Json, Run, app, print_json, report_failures, resolve_run, say
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.training_run.control import Control


@app.command()
@report_failures
def control(
    run: Run,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Supervised steps; by default warm_start.control_steps, or as many as the warm start, and more if RL took "
            "longer.",
        ),
    ] = None,
    during_training: Annotated[
        bool,
        typer.Option(
            "--during-training", help="Start while another process trains the run, and end after RL; for idle cores."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue a run's warm start for at least as long as RL took. `sparring eval` then shows whether RL did better
    than this."""
    from sparring.training_run.control import continue_warm_start

    path = resolve_run(run)
    made = continue_warm_start(path, steps=steps, during_training=during_training, quiet=as_json)
    if as_json:
        print_json({"run": str(path), **asdict(made)})
    else:
        show_control(made, path)
        if made.seconds >= made.rl_seconds:
            say(f"next: sparring eval {shlex.quote(str(path))}")


def show_control(made: Control, run: Path) -> None:
    """Show a control of the run, and the command that trains a longer one if it took less time than RL."""
    from sparring.evaluation.controls import enough_steps

    rows: list[list[object]] = [
        [step, f"{success:.3f}", "kept" if step == made.best_step else ""] for step, success in made.validated.items()
    ]
    Console().table(
        f"the warm start continued for {made.steps} steps, {made.seconds:.0f} s (RL's steps took {made.rl_seconds:.0f} s)",
        ["supervised steps", "success on validation tasks", ""],
        rows,
    )
    if made.seconds < made.rl_seconds:
        longer = f"sparring control {shlex.quote(str(run))} --steps {enough_steps(made.steps, made.seconds, made.rl_seconds)}"
        say(f"note: this took less time than RL, so a comparison would favor RL; before an evaluation: {longer}")
