"""Check whether a run can continue: its ledger, checkpoints and status must agree. This module writes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from sparring.config import Config
from sparring.errors import DataError
from sparring.ledger.rows import LineageEntry, current_lineage
from sparring.ledger.verification import Account, read_account
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import WARM_START
from sparring.runtime.logs import get_logger
from sparring.training import checkpoint_files

logger = get_logger(__name__)

MOST_SHOWN = 3


def find_start(folder: RunFolder, changes: Sequence[str] = ()) -> Path | None:
    """Return the checkpoint that a run continues from, or None if it starts again from the beginning.

    `changes` are the overrides to resume with. Raises DataError if the run's files do not agree, and ServiceError if a
    file cannot be read.
    """
    account = _account(folder, changes)
    directory = folder.checkpoints
    standing_now = current_lineage(account.lineage)
    problem: DataError | None = None
    for checkpoint in checkpoint_files.list_newest_first(directory):
        try:
            checkpoint_files.verify(checkpoint)
        except DataError as error:
            logger.warning("a checkpoint is skipped: %s", error)
            problem = problem or error
            continue
        if _is_in(standing_now, checkpoint):
            return checkpoint
        if not _is_in(account.lineage, checkpoint):
            raise _refusal(
                folder,
                f"{checkpoint} is not in {folder.ledger}: the checkpoint or the ledger is from another run, or from "
                f"a different time in this run. If the ledger is the correct one, move {checkpoint} elsewhere and resume",
                changes,
                standing_now,
            )
        logger.warning("a checkpoint is skipped: the run was rolled back to before %s", checkpoint)
    published = [entry for entry in standing_now if entry.kind == "published"]
    if problem is None and not published and folder.status().get("status") != "completed":
        return None
    what = (
        str(problem) if problem else f"{directory} contains no checkpoint: {_name(published)} was written but is gone."
    )
    raise _refusal(folder, f"{what} There is no intact checkpoint to continue from", changes)


def unknown_checkpoints(checkpoints: Iterable[Path], lineage: Sequence[LineageEntry]) -> list[str]:
    """Return an error message for each checkpoint that is not in the ledger.

    List the checkpoints before you read the ledger.
    """
    found: list[str] = []
    for checkpoint in checkpoints:
        try:
            if not _is_in(lineage, checkpoint):
                found.append(f"{checkpoint} is not in the ledger: the checkpoint or the ledger is from another run.")
        except OSError:  # damaged, or deleted by a run in progress
            continue
    return found


def lost_steps(folder: RunFolder, account: Account, step: int) -> str:
    """Return an error message if the ledger ends before a step that the run has taken, and otherwise ""."""
    if account.last_step >= step:
        return ""
    path = folder.ledger
    return (
        f"{path} ends before step {step}, which the run has taken: the file is an older copy, is from another run, or is "
        f"without its {path.name}-wal"
    )


def _account(folder: RunFolder, changes: Sequence[str]) -> Account:
    """Read the ledger. Raises DataError if the ledger is damaged or ends before the run's last step."""
    path = folder.ledger
    if not path.exists() or path.stat().st_size == 0:
        # SQLite first writes new rows to the -wal file: an empty ledger with this file was not emptied.
        log = path.with_name(f"{path.name}-wal")
        if not path.exists() or not log.exists():
            if "contents" not in folder.manifest() and not checkpoint_files.has_checkpoint(folder.checkpoints):
                return Account([], [], 0)
            what = "is empty" if path.exists() else "is missing"
            raise _refusal(folder, f"{path} {what}, but the run has been trained", changes)
    try:
        account = read_account(path)
    except DataError as error:
        raise _refusal(folder, str(error).rstrip("."), changes) from error.__cause__
    if account.broken:
        more = len(account.broken) - MOST_SHOWN
        shown = "; ".join(account.broken[:MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise _refusal(folder, f"{path} is damaged: {shown}", changes)
    if lost := lost_steps(folder, account, folder.status().get("step", 0)):
        raise _refusal(folder, lost, changes)
    return account


def _is_in(lineage: Iterable[LineageEntry], checkpoint: Path) -> bool:
    """Return whether the lineage contains a checkpoint, by name and content. Raises OSError if the checkpoint has no
    manifest."""
    name, digest = checkpoint_files.get_original_name(checkpoint), checkpoint_files.hash_checkpoint(checkpoint)
    return any(
        entry.checkpoint == name and entry.digest in (None, digest) for entry in lineage if entry.kind != "resumed"
    )


def _name(published: Sequence[LineageEntry]) -> str:
    return published[-1].checkpoint if published else "one"


def _refusal(folder: RunFolder, what: str, changes: Sequence[str], lineage: Sequence[LineageEntry] = ()) -> DataError:
    """Return the error for a run that cannot be resumed, with the reason `what` and the ways to continue."""
    return DataError(
        f"{what}. {folder.path} cannot be resumed in this state, and nothing was changed. Restore all its files from the "
        f"same moment, including {folder.ledger.name}-wal if there was one, or {_way_on(folder, changes, lineage)}"
    )


def _way_on(folder: RunFolder, changes: Sequence[str], lineage: Sequence[LineageEntry]) -> str:
    """Return the command that continues the work in a new run."""
    run, config = folder.path, folder.config(changes)
    good = _good(folder.checkpoints)
    known = [path for path in good if _is_in(lineage, path)]
    step = next((_step(path) for path in [*known, *good]), None)
    if step is None:
        # A run that was started without the checks need not pass them now.
        options = ["--name", _free_name(run), *([] if "checked" in folder.manifest() else ["--no-check"])]
        return f"train it again: sparring train {_shown(run / 'run.toml', *changes, *options)}"
    more = [] if step < config.schedule.max_steps else [f"schedule.max_steps={step + _more_steps(config)}"]
    return (
        f"continue in a new run with its own ledger: sparring runs branch {_shown(run, *changes, *more)} --from {step}"
    )


def _more_steps(config: Config) -> int:
    return max(1, config.schedule.save_every)


def _good(checkpoints: Path) -> list[Path]:
    """Return the checkpoints that a run can be branched from, newest first."""
    good: list[Path] = []
    for checkpoint in checkpoint_files.list_newest_first(checkpoints):
        if checkpoint.name.isdigit() or checkpoint.name == WARM_START:
            with suppress(DataError):
                checkpoint_files.verify(checkpoint)
                good.append(checkpoint)
    return good


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name) if checkpoint.name.isdigit() else 0


def _free_name(run: Path) -> str:
    number = 2
    while (run.parent / f"{run.name}-{number}").exists():
        number += 1
    return f"{run.name}-{number}"


def _shown(*words: object) -> str:
    return shlex.join([str(word) for word in words])
