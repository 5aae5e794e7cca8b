"""`sparring runs erase`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import Json, Run, note, print_json, report_failures, resolve_run, runs_app, say
from sparring.erasure import Found, Selection, erase, find, finish, list_remaining, list_unread
from sparring.errors import ServiceError, UsageError
from sparring.run_folders import RunFolder
from sparring.tracking import Console

MOST_SHOWN = 20


@runs_app.command("erase")
@report_failures
def runs_erase(
    run: Run,
    task: Annotated[list[str] | None, typer.Option(metavar="ID", help="Erase all episodes of this task.")] = None,
    containing: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Erase episodes that contain this text, such as a name.")
    ] = None,
    is_sure: Annotated[bool, typer.Option("--yes/--dry-run", help="Erase, or only list.")] = False,
    as_json: Json = False,
) -> None:
    """List the episodes of a task or a person in a run or a recording, and erase them with `--yes`. Numbers stay. What the
    command cannot erase is listed."""
    selection = Selection(tasks=frozenset(task or ()), texts=tuple(containing or ()))
    _check(selection)
    path = resolve_run(run)
    folder = RunFolder(path) if RunFolder.is_run(path) else None
    if folder is None and not any(path.glob("trajectories/recorded-*.jsonl")):
        raise UsageError(f"{path} is neither a run nor a folder that `sparring record` wrote.")
    if folder is not None:
        _refuse_unfinished(folder)
    with nullcontext() if folder is None else folder.lock_for_training():
        found = find(path, selection)
        if is_sure:
            erase(path, found, selection)
            if folder is not None and found.ids:
                _erase_copy(folder)
            finish(path)
    remaining = [str(one) for one in list_remaining(path, selection, found.tasks)] if is_sure else []
    elsewhere = [f"{one}, which is compressed and was not searched" for one in list_unread(path)]
    elsewhere += [] if folder is None else _list_elsewhere(folder)
    if as_json:
        files = [{"file": str(file), "episodes": num} for file, num in found.files.items()]
        print_json(
            {"path": str(path), "erased": is_sure, "episodes": sorted(found.ids), "tasks": sorted(found.tasks), "files": files}
            | {"deleted": [str(one) for one in found.derived], "remaining": remaining, "elsewhere": elsewhere}
        )  # fmt: skip
        return
    _show(path, found, is_sure=is_sure)
    for one in remaining:
        say(f"still has it: {one}")
    for one in elsewhere if is_sure and found.ids else ():
        say(f"not erased: {one}")


def _check(selection: Selection) -> None:
    """Raise UsageError for a selection that names nothing, or that an unset variable of a shell would make match everything."""
    if not selection.tasks and not selection.texts:
        raise UsageError("Name what to erase: --task ID, or --containing TEXT.")
    if not all(text.strip() for text in (*selection.tasks, *selection.texts)):
        raise UsageError("An empty --task or --containing names nothing to erase; give an id or a text, or remove it.")
    for text in (*selection.tasks, *selection.texts):
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            raise UsageError(f"{text!r} is not valid UTF-8; give the text in UTF-8.")


def _refuse_unfinished(folder: RunFolder) -> None:
    """Raise UsageError if a process or an evaluation in progress may write episodes again."""
    folder.manifest()  # refuses the run of a newer version
    if folder.has_process():
        raise UsageError(f"{folder.path} is running; stop it first (`sparring runs stop {folder.path}`).")
    if parts := sorted(folder.evaluations.glob("*.part")):
        raise UsageError(f"{parts[0]} is an evaluation in progress; finish it with `sparring eval`, or delete it.")


def _erase_copy(folder: RunFolder) -> None:
    """Replace the copy of a run in its store. Raises ServiceError if the store is not available."""
    copy_to = folder.config().run.copy_to
    if copy_to is None:
        return
    from sparring.copies.copier import open_copier

    for _ in range(2):  # a copy keeps its newest two lists of files
        if not open_copier(folder, copy_to, is_resumed=True, say=note).close():
            raise ServiceError(
                f"{folder.path}: the episodes are erased, but {copy_to} still has them; the warnings above give the reason. "
                f"Run `sparring runs copy {folder.path}` twice, later."
            )


def _list_elsewhere(folder: RunFolder) -> Iterator[str]:
    """Yield the places of a run's data that are not in its folder or its copy."""
    config = folder.config()
    tracking = config.tracking
    if tracking.mlflow and tracking.mlflow_uri is not None:
        yield f"traces at {tracking.mlflow_uri}; they have the tag `task`"
    if tracking.wandb:
        yield "the run at Weights & Biases, and its files in `wandb/` of other folders"
    if config.tracking.webhook_url_env is not None:
        yield "messages that the webhook received"
    if any(folder.checkpoints.glob("*")):
        yield "weights in checkpoints/ and exports that were trained with the episodes"
    yield "your data files, exports, reports in other places, and backups"


def _show(path: Path, found: Found, *, is_sure: bool) -> None:
    if not found.ids:
        say(f"{path}: no episode matches")
        return
    rows: list[list[object]] = []
    rows.extend([str(file.relative_to(path)), num] for file, num in found.files.items())
    rows.extend([f"{one.relative_to(path)} (deleted as a whole)", ""] for one in found.derived)
    if len(rows) > MOST_SHOWN:
        more: list[object] = [f"... and {len(rows) - MOST_SHOWN} more (--json lists all)", ""]
        rows[MOST_SHOWN:] = [more]
    Console().table("erased" if is_sure else "would be erased", ["file", "lines"], rows)
    what = f"{_count(found.ids, 'episode')} of {_count(found.tasks, 'task')}"
    if is_sure:
        say(f"erased {what} from {path}; the ledger keeps their counts")
    else:
        say(f"{what} in {shlex.quote(str(path))}; nothing was erased: add --yes")


def _count(found: Collection[str], what: str) -> str:
    return f"{len(found)} {what}{'s' if len(found) != 1 else ''}"
