"""`sparring runs prune`."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from sparring.cli.command import Json, Run, note, print_json, report_failures, resolve_run, runs_app, say
from sparring.errors import UsageError
from sparring.run_folders import RunFolder
from sparring.tracking import Console
from sparring.training.retention import KINDS, Removable, find_removable, remove

_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
MOST_SHOWN = 20


@runs_app.command("prune")
@report_failures
def runs_prune(
    run: Run,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only what was last changed before this time: 12h, 30d or 8w.")
    ] = None,
    keep: Annotated[
        int, typer.Option(min=0, help="Newest checkpoints, and newest steps with episodes of each split, to keep.")
    ] = 0,
    what: Annotated[str, typer.Option(help=f"{', '.join(KINDS)} or all.")] = "all",
    is_sure: Annotated[bool, typer.Option("--yes/--dry-run", help="Remove, or only list.")] = False,
    as_json: Json = False,
) -> None:
    """List the episodes, traces and checkpoints that a run can do without, and remove them with `--yes`. What `--resume`,
    `verify` and the best checkpoint need is kept."""
    if what not in (*KINDS, "all"):
        raise UsageError(f"--what {what} is unknown; use {', '.join(KINDS)} or all.")
    folder = RunFolder(resolve_run(run))
    folder.manifest()  # refuses the run of a newer version
    now = time.time()
    before = None if older_than is None else now - _read_age(older_than)
    kinds = KINDS if what == "all" else (what,)
    if folder.has_process():
        raise UsageError(
            f"{folder.path} is running; stop it first (`sparring runs stop {folder.path}`), or wait until it ends."
        )
    with folder.lock_for_training():
        found = find_removable(folder, kinds, before=before, keep=keep)
        if is_sure and found:
            remove(folder, found, now=now)
    if as_json:
        items = [{"kind": one.kind, "name": one.name, "bytes": one.num_bytes} for one in found]
        print_json({"path": str(folder.path), "removed": is_sure, "items": items})
        return
    _show(folder, found, is_sure=is_sure)


def _show(folder: RunFolder, found: list[Removable], *, is_sure: bool) -> None:
    if not found:
        say(f"{folder.path}: nothing to remove")
        return
    rows = [[one.kind, one.name, _size(one.num_bytes)] for one in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        rows.append(["", f"... and {len(found) - MOST_SHOWN} more (--json lists all)", ""])
    total = _size(sum(one.num_bytes for one in found))
    Console().table("removed" if is_sure else "would be removed", ["kind", "name", "size"], rows)
    if not is_sure:
        say(f"{total} in {folder.path}; nothing was removed: add --yes")
        return
    say(f"removed {total} from {folder.path}")
    if folder.config().run.copy_to is not None:
        note(f"its copy has them until `sparring runs copy {folder.path}` has run twice: the newest two lists are kept")


def _read_age(text: str) -> float:
    """Return an age in seconds. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6})([hdw])", text)
    if found is None:
        raise UsageError(f"--older-than {text} is not an age; give a number with h, d or w, such as 30d.")
    return int(found[1]) * _SECONDS[found[2]]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
