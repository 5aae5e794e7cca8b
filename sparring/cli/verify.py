"""`sparring verify`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import Json, app, print_json, report_failures, resolve_run, say
from sparring.errors import DataError
from sparring.ledger.erasure import list_erased
from sparring.ledger.rows import LineageEntry, published_in
from sparring.ledger.verification import read_account
from sparring.models.export_files import ADAPTER, is_export
from sparring.models.export_files import verify as verify_export
from sparring.run_folders import RunFolder
from sparring.training.retention import describe_removed

MOST_SHOWN = 20


@app.command()
@report_failures
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a folder that `sparring export` wrote.")],
    as_json: Json = False,
) -> None:
    """Check that every rollout and turn of a run is accounted for, and that its checkpoints are complete and match its
    ledger. The run may still be in progress. For an export, check its files."""
    if is_export(run):
        _verify_export(run, as_json=as_json)
        return
    folder = RunFolder(resolve_run(run))
    began = time.monotonic()
    broken, damaged = _find_problems(folder)
    if as_json:
        seconds = time.monotonic() - began
        print_json({"run": str(folder.path), "broken": broken, "checkpoints": damaged, "seconds": seconds})
    else:
        _show_problems(broken, damaged)
    if broken or damaged:
        raise DataError(
            f"{folder.path}: {len(broken)} broken invariants in the ledger, {len(damaged)} checkpoints that are damaged, "
            "missing or from another run. Results that depend on these files cannot be trusted; restore the files. `sparring "
            "train --resume` refuses to continue if it cannot do so exactly, and names the alternatives."
        )
    if not as_json:
        say(f"{folder.path}: every rollout and turn is accounted for ({time.monotonic() - began:.1f} s)")
        if removed := describe_removed(folder.path):
            say(removed)
        if num := len(list_erased(folder.ledger)):
            say(f"`sparring runs erase` has erased the content of {num} of them.")


def _find_problems(folder: RunFolder) -> tuple[list[str], list[str]]:
    """Return the broken invariants of the ledger, and the problems of checkpoints."""
    from sparring.training.checkpoint_files import list_newest_first
    from sparring.training_run.resuming import lost_steps, unknown_checkpoints

    # This precedes the reading of the ledger, because a run in progress records each checkpoint there first.
    checkpoints, step = list_newest_first(folder.checkpoints), folder.status().get("step", 0)
    _require_ledger(folder, has_checkpoints=bool(checkpoints))
    account = read_account(folder.ledger, max_steps_off_policy=folder.config().rollout.max_steps_off_policy)
    broken = account.broken
    if not broken and (lost := lost_steps(folder, account, step)):
        broken = [lost]
    damaged = [
        *_missing(folder.checkpoints, account.lineage),
        *unknown_checkpoints(checkpoints, account.lineage),
        *_damage(folder.checkpoints),
    ]
    return broken, damaged


def _require_ledger(folder: RunFolder, *, has_checkpoints: bool) -> None:
    path = folder.ledger
    if path.is_file():
        return
    if has_checkpoints:
        raise DataError(
            f"{path} is missing, but the run has checkpoints, so their training data cannot be verified. Restore the file."
        )
    if "contents" in folder.manifest():
        raise DataError(f"{path} is missing, but the run has been trained. Restore the file.")
    raise DataError(f"{folder.path} has no ledger.sqlite: it has not run any episode yet.")


def _show_problems(broken: Sequence[str], damaged: Sequence[str]) -> None:
    for line in (*broken[:MOST_SHOWN], *damaged):
        say(line)
    if len(broken) > MOST_SHOWN:
        say(f"... and {len(broken) - MOST_SHOWN} more; --json shows all of them")


def _verify_export(folder: Path, *, as_json: bool) -> None:
    manifest = verify_export(folder)
    if as_json:
        print_json({"export": str(folder), **manifest})
    else:
        say(
            f"{folder}: every file of the {manifest['kind']} is as exported, from {manifest['run']}, step {manifest['step']}, "
            f"policy {manifest['fingerprint']}"
            + ("; its base model is checked when it is loaded" if manifest["kind"] == ADAPTER else "")
        )


def _missing(checkpoints: Path, lineage: Sequence[LineageEntry]) -> list[str]:
    """Return an error message if the newest checkpoint in the ledger is missing and no newer checkpoint exists.

    A run in progress may have a newer checkpoint.
    """
    from sparring.training.checkpoint_files import list_numbered

    published = published_in(lineage)
    step = max(published, default=-1)
    is_there = step < 0 or (checkpoints / published[step]).is_dir()
    if is_there or any(int(path.name) > step for path in list_numbered(checkpoints)):
        return []
    return [f"{checkpoints / published[step]} is missing, but the ledger's training up to step {step} depends on it."]


def _damage(checkpoints: Path) -> list[str]:
    """Return an error message for each damaged checkpoint."""
    from sparring.training.checkpoint_files import verify as verify_checkpoint

    found: list[str] = []
    for checkpoint in sorted(checkpoints.glob("[!.]*")) if checkpoints.is_dir() else ():
        try:
            verify_checkpoint(checkpoint)
        except DataError as error:
            if checkpoint.exists():  # a run in progress deletes old checkpoints
                found.append(str(error))
    return found
