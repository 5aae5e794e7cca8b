"""Erases the episodes of a task or a person from a run or a recording, wherever the folder has a copy of them.

The lines of the episodes are removed, and the rows of the ledger keep their counts only. Files that are derived from
episodes are deleted; other commands write them again. Numbers stay: metrics, rewards, scores, and the ids of episodes.
Each file is replaced as a whole, so that an interrupted erasure can be repeated.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.ledger.erasure import ERASED, erase_rollouts, find_rollouts
from sparring.run_folders.encode import encode, encode_line
from sparring.run_folders.run_folder import LEDGER
from sparring.run_folders.stored import read_rows
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import write_private

_DERIVED = ("report.html", "tensorboard", "tensorboard.json", "wandb", "stalls.txt")
"""What contains texts of episodes and can be written again, or is not needed any more."""
_MLFLOW = ("mlflow.sqlite", "mlflow.sqlite-wal", "mlflow.sqlite-shm", "mlflow_artifacts", "mlflow.json")
"""The same of MLflow, if its store is in the folder."""
_QUOTING = ("log.jsonl", "findings.jsonl", "restarts.jsonl")
_WEIGHTS = (".safetensors", ".gguf")
_PIECE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which episodes are erased: those of tasks, and those that contain a text, whatever its case is."""

    tasks: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()

    def matches(self, text: str) -> bool:
        """Whether one of the texts is in this text, plain or escaped as in JSON within JSON."""
        folded = text.casefold()
        return any(form in folded for one in self.texts for form in _forms(one.casefold()))

    def contains(self, value: Any) -> bool:
        """Whether a JSON value has a string or a key that matches."""
        return bool(self.texts) and any(map(self.matches, _strings(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The episodes to erase, and the files that have them."""

    ids: frozenset[str]
    tasks: frozenset[str]
    files: Mapping[Path, int]
    """The number of lines to remove from each file of episodes."""
    derived: tuple[Path, ...]
    """Files and folders to delete."""


def find(folder: Path, selection: Selection) -> Found:
    """Return what `erase` changes. Raises DataError for a damaged file."""
    ids: dict[str, str] = {}
    for file in _episode_files(folder):
        for _, row in read_rows(file):
            id, task = _named(row)
            if task in selection.tasks or selection.contains(row):
                ids[id] = task
    if (folder / LEDGER).is_file():
        ids.update(find_rollouts(folder / LEDGER, selection.tasks, selection.matches, _vocabulary(folder)))
    files = {file: sum(_named(row)[0] in ids for _, row in read_rows(file)) for file in _episode_files(folder)}
    derived = [folder / name for name in (*_DERIVED, *(_MLFLOW if (folder / _MLFLOW[0]).exists() else ()))]
    return Found(
        ids=frozenset(ids),
        tasks=frozenset(ids.values()),
        files={file: num for file, num in files.items() if num},
        derived=tuple(path for path in derived if ids and path.exists()),
    )


def erase(folder: Path, found: Found, selection: Selection) -> None:
    """Erase the episodes. The caller holds the run's lock. Raises UsageError if another process uses the ledger, and
    OSError."""
    if (folder / LEDGER).is_file() and found.ids:
        erase_rollouts(folder / LEDGER, found.ids)
    for file in found.files:
        kept = [encode_line(row) for _, row in read_rows(file) if _named(row)[0] not in found.ids]
        _replace(file, b"".join(kept))
        (folder / "digests" / file.name).unlink(missing_ok=True)
    for path in found.derived:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def quotes(text: str) -> bool:
        return text not in found.ids and (selection.matches(text) or any(id in text for id in found.ids))

    for name in _QUOTING:
        if (folder / name).is_file():
            rows = [row for _, row in read_rows(folder / name, is_growing=True)]
            _replace(folder / name, b"".join(encode_line(_without(row, quotes)) for row in rows))
    for file in (folder / "evaluations").glob("*.json"):
        content = parse_json(file.read_bytes())
        if (left := _without(content, quotes)) != content:
            _replace(file, encode(left, indent=True) + b"\n")


def list_remaining(folder: Path, selection: Selection, tasks: Collection[str]) -> list[Path]:
    """Return the files of the folder that still contain a text, and those of its recipe with the id of an erased task.

    Weights are left out.
    """
    forms = [form.encode() for one in selection.texts for form in _forms(one.casefold())]
    quoted = [json.dumps(task, ensure_ascii=False).encode() for task in tasks]
    found: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in _WEIGHTS:
            is_data = (folder / "recipe") in path.parents
            if _has(path, forms, fold=True) or (is_data and _has(path, quoted, fold=False)):
                found.append(path)
    return found


def _episode_files(folder: Path) -> list[Path]:
    return [file for part in ("environment", "trajectories") for file in sorted((folder / part).glob("*.jsonl"))]


def _named(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the id of an episode and that of its task, from a line of `trajectories/` or `environment/`."""
    if "trajectory_id" in row:
        return str(row["trajectory_id"]), str(row.get("task_id"))
    task = row.get("task")
    return str(row.get("id")), str(task.get("id")) if isinstance(task, Mapping) else ""


def _vocabulary(folder: Path) -> list[str]:
    path = folder / "vocabulary.json"
    return [str(text) for text in parse_json(path.read_bytes())] if path.is_file() else []


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _without(value: Any, quotes: Callable[[str], bool]) -> Any:
    """Return a JSON value in which strings that quote an erased episode are replaced."""
    if isinstance(value, str):
        return ERASED if quotes(value) else value
    if isinstance(value, Mapping):
        return {key: _without(one, quotes) for key, one in value.items()}
    if isinstance(value, list):
        return [_without(one, quotes) for one in value]
    return value


def _forms(text: str) -> set[str]:
    """Return a text as it is, and as it is within a JSON string, with and without escapes for other scripts."""
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _has(path: Path, parts: Collection[bytes], *, fold: bool) -> bool:
    if not parts:
        return False
    overlap = max(map(len, parts))
    with path.open("rb") as file:
        end = b""
        while piece := file.read(_PIECE):
            content = end + piece
            if fold:
                content = content.decode("utf-8", "ignore").casefold().encode()
            if any(part in content for part in parts):
                return True
            end = piece[-overlap:]
    return False


def _replace(file: Path, content: bytes) -> None:
    temporary = file.with_name(f".{file.name}.erasing")
    write_private(temporary, content)
    temporary.chmod(file.stat().st_mode & 0o777)
    temporary.replace(file)
