"""`sparring diagnose` and `sparring runs branch`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparring.cli.command import Json, Run, app, print_json, report_failures, resolve_run, runs_app, say
from sparring.cli.tables import format_evidence
from sparring.cli.train import resume_training
from sparring.run_folders import RunFolder
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.diagnosis.diagnose import Diagnosis
    from sparring.findings import Finding


@app.command()
@report_failures
def diagnose(run: Run, as_json: Json = False) -> None:
    """Read the files of a run and explain why it does not improve, and what to change first. Works during training."""
    from sparring.diagnosis.reading import diagnose_run

    path = resolve_run(run)
    with Console(quiet=as_json).phase("reading the run"):
        found = diagnose_run(path)
    if as_json:
        print_json(found.as_json())
    else:
        _show(found)


Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Settings that differ from the run's.")
]
FromStep = Annotated[
    int | None,
    typer.Option(
        "--from",
        metavar="STEP",
        min=0,
        help="Step of a checkpoint; 0 is after the warm start. By default the newest.",
    ),
]
NewName = Annotated[str | None, typer.Option(help="Name of the new run's folder, which is created next to RUN.")]
NewCode = Annotated[
    Path | None,
    typer.Option(
        metavar="RECIPE", help="Use the code of this recipe, such as a corrected reward, with the run's settings."
    ),
]
Train = Annotated[bool, typer.Option("--train/--no-train", help="Start the new run at once.")]


@runs_app.command("branch")
@report_failures
def runs_branch(
    run: Run,
    changes: Changes = None,
    step: FromStep = None,
    name: NewName = None,
    recipe: NewCode = None,
    train: Train = True,
    as_json: Json = False,
) -> None:
    """Create a new run from a checkpoint of RUN with one change, and start it. `sparring diagnose` then compares the
    two runs."""
    from sparring.reproduce.branch import branch

    child = branch(resolve_run(run), changes or [], step=step, name=name, recipe=recipe)
    origin = child.origin() or {}
    if not train:
        if as_json:
            print_json({"path": str(child.path), **origin})
            return
        say(f"created {child.path} from step {origin['step']} of {resolve_run(run)}")
        say(f"next: sparring train --resume {shlex.quote(str(child.path))}")
        return
    if not as_json:
        say(f"{child.path} continues from step {origin['step']} of {resolve_run(run)}")
    resume_training(child.path, [], as_json=as_json)
    if not as_json:
        say(f"then: sparring diagnose {child.path}")


def _show(found: Diagnosis) -> None:
    from sparring.diagnosis.proposal import overrides

    say(found.headline)
    if found.claim is not None:
        say(f"evaluated: {' '.join(found.claim.lines())}")
    if found.findings:
        rows = [
            [
                one.severity.value,
                f"{one.rule}{_since(one)}: {one.symptom}\n"
                + format_evidence({k: v for k, v in one.evidence.items() if k != "examples"}),
                "\n".join([one.change, *overrides(one.settings)]),
                one.confirm + (f" Check it after {one.confirm_after} steps." if one.confirm_after is not None else ""),
            ]
            for one in found.findings
        ]
        title = f"{found.run}, after step {found.step}"
        Console().table(title, ["severity", "symptom and evidence", "change", "how to confirm it"], rows)
    for one in found.silenced:
        say(f"left out: {one.finding.rule}, which is explained by {one.by}")
    for one in found.past:
        say(f"present after {_steps(one)}, but not now: {one.rule}: {one.symptom}")
    course = ", ".join(f"{name} {json.dumps(values)}" for name, values in found.course.items())
    say(f"at first and now: {course}" if found.course else "no step has been trained yet")
    first = found.first
    if first is not None and first.settings:
        say(f"next: {_next_command(Path(found.run), first)}")


def _next_command(run: Path, finding: Finding) -> str:
    from sparring.diagnosis.next_command import next_command
    from sparring.run_folders.stored import read_metrics

    folder, numbers = RunFolder(run), run / "metrics.jsonl"
    return next_command(run, folder.config(), read_metrics(numbers)[0] if numbers.is_file() else {}, finding)


def _since(finding: Finding) -> str:
    return "" if finding.first_step is None else f" (since step {finding.first_step})"


def _steps(finding: Finding) -> str:
    first, last = finding.first_step, finding.step
    return f"step {last}" if first is None else f"steps {first} to {last}"
