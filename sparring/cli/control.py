"""`sparring control`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
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
    as_json: Json = False,
) -> None:
    """Continue a run's warm start for at least as long as RL took. `sparring eval` then shows whether RL did better
    than this."""
    from sparring.training_run.control import continue_warm_start

    path = resolve_run(run)
    made = continue_warm_start(path, steps=steps, quiet=as_json)
    if as_json:
        print_json({"run": str(path), **asdict(made)})
    else:
        show_control(made)
        say(f"next: sparring eval {shlex.quote(str(path))}")


def show_control(made: Control) -> None:
    rows: list[list[object]] = [
        [step, f"{success:.3f}", "kept" if step == made.best_step else ""] for step, success in made.validated.items()
    ]
    Console().table(
        f"the warm start continued for {made.steps} steps, {made.seconds:.0f} s (RL's steps took {made.rl_seconds:.0f} s)",
        ["supervised steps", "success on validation tasks", ""],
        rows,
    )
    if made.seconds < made.rl_seconds:
        say(
            "note: this took less time than RL, so the comparison favors RL; leave out --steps and warm_start.control_steps, and "
            "the control takes as many steps as it needs"
        )
