"""Retention: finds and removes episodes, traces and checkpoints that a run can do without, and records what was removed.

The newest checkpoint and the best one, checkpoints with names (such as `warm_start`), the ledger, metrics, evaluations and the
recipe are always kept, so a run can be resumed, verified and reported. Each removal is recorded in `pruned.jsonl` before it
begins. If the process dies, the next removal finds what is left.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparring.run_folders import RunFolder
from sparring.run_folders.encode import encode_line
from sparring.run_folders.history import FIRST_STEPS, LAST_STEPS
from sparring.run_folders.stored import read_rows
from sparring.runtime.private_files import open_private
from sparring.training.checkpoint_files import find_best, list_numbered

KINDS = ("episodes", "traces", "checkpoints")
RECORD = "pruned.jsonl"
_REMOVED = ".removed"
_EPISODES = ("trajectories", "environment", "digests")
_TRACES = ("mlflow.sqlite", "mlflow.sqlite-wal", "mlflow.sqlite-shm", "mlflow_artifacts", "mlflow.json")
_NAME = re.compile(r"([a-z_]+)-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """The files of one step's episodes, one checkpoint, or all traces of a run."""

    kind: str
    name: str
    paths: tuple[Path, ...]
    num_bytes: int
    modified: float
    """The time of the newest change, in seconds since 1970."""


def find_removable(
    folder: RunFolder, kinds: Sequence[str] = KINDS, *, before: float | None = None, keep: int = 0
) -> list[Removable]:
    """Return what can be removed from a run, oldest first.

    `before` limits it to files that were last changed before this time. `keep` is the number of newest checkpoints, and of
    newest steps with episodes in each split, that are kept in any case.
    """
    found: list[Removable] = []
    if "episodes" in kinds:
        found += _episodes(folder, keep)
    if "traces" in kinds and (folder.path / _TRACES[0]).is_file():
        paths = [folder.path / name for name in _TRACES]
        found.append(_removable("traces", "mlflow", [path for path in paths if path.exists()]))
    if "checkpoints" in kinds:
        found += _checkpoints(folder, keep)
    return sorted((one for one in found if before is None or one.modified < before), key=lambda one: one.modified)


def remove(folder: RunFolder, found: Sequence[Removable], *, now: float) -> None:
    """Record what is removed at the time `now`, and remove it. The caller holds the run's lock. Raises OSError."""
    with open_private(folder.path / RECORD, "ab") as file:
        for one in found:
            file.write(encode_line({"time": now, "kind": one.kind, "name": one.name, "bytes": one.num_bytes}))
        file.flush()
        os.fsync(file.fileno())
    for path in (path for one in found for path in one.paths):
        if path.is_dir():
            # A folder that is partly deleted must not look like a damaged checkpoint.
            hidden = path.with_name(f".{path.name.strip('.').removesuffix(_REMOVED)}{_REMOVED}")
            shutil.rmtree(path.rename(hidden))
        else:
            path.unlink(missing_ok=True)


def describe_removed(run: Path) -> str | None:
    """Return a sentence about what was removed from a run, or None if nothing was. Raises DataError if the record is damaged."""
    path = run / RECORD
    names: dict[str, set[str]] = {}
    for _, row in read_rows(path, is_growing=True) if path.is_file() else ():
        names.setdefault(str(row.get("kind")), set()).add(str(row.get("name")))
    if not names:
        return None
    words: Mapping[str, str] = {
        "episodes": "the episodes of {} steps",
        "checkpoints": "{} checkpoints",
        "traces": "traces",
    }
    parts = [words[kind].format(len(names[kind])) for kind in KINDS if kind in names]
    return f"`sparring runs prune` has removed {', '.join(parts)} of this run."


def _episodes(folder: RunFolder, keep: int) -> Iterator[Removable]:
    by_split: dict[str, dict[int, list[Path]]] = {}
    for part in _EPISODES:
        for path in (folder.path / part).glob("*.jsonl"):
            if name := _NAME.fullmatch(path.name):
                by_split.setdefault(name[1], {}).setdefault(int(name[2]), []).append(path)
    unfinished = {path.stem for path in folder.evaluations.glob("*.part")}
    can_continue = folder.status().get("status") != "completed"
    for split, steps in by_split.items():
        numbers = sorted(steps)
        needed = set(numbers[len(numbers) - keep :] if keep else [])
        if can_continue and split in ("train", "validation"):
            # The detectors of a resumed run read the first and the last steps again.
            needed |= {*numbers[:FIRST_STEPS], *numbers[-LAST_STEPS:]}
        for number in numbers:
            if number not in needed and f"{split}-{number:03}" not in unfinished:
                yield _removable("episodes", f"{split}-{number}", steps[number])


def _checkpoints(folder: RunFolder, keep: int) -> Iterator[Removable]:
    best = find_best(folder.checkpoints, folder.validation_scores())
    for path in list_numbered(folder.checkpoints)[max(1, keep) :]:
        if path != best:
            yield _removable("checkpoints", path.name, [path])
    aside = folder.path / "set_aside"
    left = [path for one in (folder.checkpoints, aside) for path in one.glob(f".*{_REMOVED}")]
    for path in (*list_numbered(aside), *left):
        yield _removable("checkpoints", str(path.relative_to(folder.path)), [path])


def _removable(kind: str, name: str, paths: Sequence[Path]) -> Removable:
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    states = [file.stat() for file in files]
    return Removable(
        kind=kind,
        name=name,
        paths=tuple(paths),
        num_bytes=sum(state.st_size for state in states),
        modified=max((state.st_mtime for state in states), default=0.0),
    )
