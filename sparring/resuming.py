"""Whether a run can go on: its ledger, its checkpoints and its status must fit each other. Nothing is written here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from sparring.config import Config
from sparring.errors import DataError
from sparring.ledger.rows import LineageEntry, standing
from sparring.ledger.verification import Account, read_account
from sparring.logs import get_logger
from sparring.tracking import RunFolder
from sparring.tracking.run_folder import WARM_START
from sparring.training import checkpoint_files

logger = get_logger(__name__)

MOST_SHOWN = 3


def find_start(folder: RunFolder, changes: Sequence[str] = ()) -> Path | None:
    """The checkpoint that a run goes on from, None when it begins anew. `changes` are the settings it would go on with.

    Raises DataError for a run whose files do not fit each other, and ServiceError when one cannot be read.
    """
    account = _account(folder, changes)
    directory = folder.checkpoints
    standing_now = standing(account.lineage)
    problem: DataError | None = None
    for checkpoint in checkpoint_files.newest_first(directory):
        try:
            checkpoint_files.verify(checkpoint)
        except DataError as error:
            logger.warning("a checkpoint is passed over: %s", error)
            problem = problem or error
            continue
        if _is_in(standing_now, checkpoint):
            return checkpoint
        if not _is_in(account.lineage, checkpoint):
            raise _refusal(
                folder, f"{checkpoint} is not a checkpoint that {folder.ledger} knows: one of them is of another run, or of "
                f"another time of this one. If the ledger is the right one, move {checkpoint} elsewhere and resume", changes,
                standing_now,
            )  # fmt: skip
        logger.warning("a checkpoint is passed over: the run has gone back behind %s", checkpoint)
    published = [entry for entry in standing_now if entry.kind == "published"]
    if problem is None and not published and folder.status().get("status") != "completed":
        return None
    what = str(problem) if problem else f"{directory} holds no checkpoint: {_name(published)} was written and is gone."
    raise _refusal(folder, f"{what} None that is good is left to go on from", changes)


def unknown_checkpoints(checkpoints: Iterable[Path], lineage: Sequence[LineageEntry]) -> list[str]:
    """Those that the ledger does not know, each in a sentence. They must have been listed before the ledger was read."""
    found: list[str] = []
    for checkpoint in checkpoints:
        try:
            if not _is_in(lineage, checkpoint):
                found.append(f"{checkpoint} is not a checkpoint that the ledger knows: one of them is of another run.")
        except OSError:  # damaged, or deleted by a run that goes on
            continue
    return found


def lost_steps(folder: RunFolder, account: Account, step: int) -> str:
    """That the ledger does not reach a step that the run has taken, in words; empty when it does."""
    if account.last_step >= step:
        return ""
    path = folder.ledger
    return (
        f"{path} ends before step {step}, which the run has taken: it is an older copy, of another run, or without its "
        f"{path.name}-wal"
    )


def _account(folder: RunFolder, changes: Sequence[str]) -> Account:
    """What the ledger says. Raises DataError for one that is not whole, or behind what the run has done."""
    path = folder.ledger
    if not path.exists() or path.stat().st_size == 0:
        # SQLite keeps what is new beside the file at first: an empty one with that is none that was emptied.
        log = path.with_name(f"{path.name}-wal")
        if not path.exists() or not log.exists():
            if "contents" not in folder.manifest() and not checkpoint_files.any_in(folder.checkpoints):
                return Account([], [], 0)
            what = "is empty" if path.exists() else "is missing"
            raise _refusal(folder, f"{path} {what}, and the run has been trained", changes)
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
    """Whether a checkpoint is one of these, by name and content. Raises OSError when it has no manifest."""
    name, digest = checkpoint_files.original_name(checkpoint), checkpoint_files.digest(checkpoint)
    return any(
        entry.checkpoint == name and entry.digest in (None, digest) for entry in lineage if entry.kind != "resumed"
    )


def _name(published: Sequence[LineageEntry]) -> str:
    return published[-1].checkpoint if published else "one"


def _refusal(folder: RunFolder, what: str, changes: Sequence[str], lineage: Sequence[LineageEntry] = ()) -> DataError:
    """`what` does not fit, and what can be done."""
    return DataError(
        f"{what}. {folder.path} cannot be resumed like that, and nothing was changed. Restore its files as they were at one "
        f"moment, {folder.ledger.name}-wal included if there was one, or {_way_on(folder, changes, lineage)}"
    )


def _way_on(folder: RunFolder, changes: Sequence[str], lineage: Sequence[LineageEntry]) -> str:
    """The command with which the work goes on in a run of its own."""
    run, config = folder.path, folder.config(changes)
    good = _good(folder.checkpoints)
    known = [path for path in good if _is_in(lineage, path)]
    step = next((_step(path) for path in [*known, *good]), None)
    if step is None:
        # As before: a run that was begun without the checks need not pass them.
        options = ["--name", _free_name(run), *([] if "checked" in folder.manifest() else ["--no-check"])]
        return f"train it anew: sparring train {_shown(run / 'run.toml', *changes, *options)}"
    more = [] if step < config.schedule.max_steps else [f"schedule.max_steps={step + _more_steps(config)}"]
    return f"go on in a new run with a ledger of its own: sparring runs branch {_shown(run, *changes, *more)} --from {step}"


def _more_steps(config: Config) -> int:
    return max(1, config.schedule.save_every)


def _good(checkpoints: Path) -> list[Path]:
    """The checkpoints that a run can be branched from, newest first."""
    found: list[Path] = []
    for checkpoint in checkpoint_files.newest_first(checkpoints):
        if checkpoint.name.isdigit() or checkpoint.name == WARM_START:
            with suppress(DataError):
                checkpoint_files.verify(checkpoint)
                found.append(checkpoint)
    return found


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name) if checkpoint.name.isdigit() else 0


def _free_name(run: Path) -> str:
    number = 2
    while (run.parent / f"{run.name}-{number}").exists():
        number += 1
    return f"{run.name}-{number}"


def _shown(*words: object) -> str:
    return shlex.join([str(word) for word in words])
