"""Erases the episodes of a task or a person from a run or a recording, wherever the folder has a copy of them.

The lines of the episodes are removed, and the rows of the ledger keep their counts only. Files that are derived from
episodes are deleted; other commands write them again. Numbers stay: metrics, rewards, scores, and the ids of episodes.
Each file is replaced as a whole. While an erasure goes on, `PENDING` lists its episodes, so that one that was interrupted can
be repeated, although some files do not have its episodes any more.
"""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sparring.ledger.erasure import ERASED, erase_rollouts, find_rollouts
from sparring.run_folders.encode import encode, encode_line
from sparring.run_folders.run_folder import LEDGER, STATUS
from sparring.run_folders.stored import read_rows
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import write_private
from sparring.types import Outcome, StopReason

PENDING = ".erasing.json"
"""The file with the ids of the episodes of an erasure that goes on or was interrupted, by episode, with their tasks."""
_DERIVED = ("report.html", "tensorboard", "tensorboard.json", "wandb", "stalls.txt", ".copy")
"""What contains texts of episodes and can be written again, or is not needed any more."""
_MLFLOW = ("mlflow_artifacts", "mlflow.json", "mlflow.sqlite-wal", "mlflow.sqlite-shm", "mlflow.sqlite")
"""The same of MLflow, if its store is in the folder. The store is deleted last, since the rest is recognized by it."""
_LEFT_BEHIND = tuple(
    f"{folder}/{name}"
    for folder in ("trajectories", "environment", "digests", "evaluations")
    for name in ("*.tmp", ".*.tmp", "*.part", ".*.part", ".*.erasing")
)
"""Files that a killed process did not complete."""
_QUOTING = ("log.jsonl", "findings.jsonl", "restarts.jsonl")
_LABELS = frozenset(
    {
        "rule", "severity", "level", "logger", "name", "label", "split", "scorer", "independence", "fingerprint",
        "during", "endpoint", "status", "process",
    }
)  # fmt: skip
"""The keys of a logged row, a status or an evaluation whose values are the format's own."""
_WEIGHTS = (".safetensors", ".gguf")
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".parquet")
_PIECE = 2**20
_MOST_ESCAPES = 4
"""How often a text may be escaped: a call's arguments are JSON in the JSON of an episode, and may quote JSON themselves."""
_LONGEST_ESCAPE = 32
"""The bytes of one character that is escaped as often as that, or more."""
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))""")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_FEWEST_LETTERS = 3
"""The letters that tokens must have as they are before other characters of a text may be split into several tokens."""

_KEYS = frozenset(
    {
        "format", "id", "task", "messages", "fields", "seed", "attempt", "outcome", "error", "began", "seconds",
        "turns", "other_turns", "reward", "score", "score_parts", "metrics", "final_state", "artifacts", "parent",
        "branch_reason", "prompt_ids", "token_ids", "sampled_logprobs", "versions", "fingerprint", "stop_reason",
        "temperature", "top_p", "removed_mass", "untrained_reason", "max_tokens", "message", "num_computed_tokens",
        "usage", "policy", "total", "per_turn", "components", "record", "trajectory_id", "task_id", "index",
        "transition", "role", "content", "tool_calls", "function", "name", "arguments", "type", "tool_call_id",
    }
)  # fmt: skip
"""The keys of the format itself. They are in every episode, so a text that is a part of one, such as "art", is not in them."""
_VALUES = frozenset({*Outcome, *StopReason, "system", "developer", "user", "assistant", "tool", "function"})
"""The constants of the format, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which episodes are erased: those of tasks, and those that contain a text, whatever its case is."""

    tasks: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()

    def matches(self, text: str) -> bool:
        """Whether one of the texts is in this text, plain or escaped as in JSON, or as in JSON within JSON."""
        wanted = [_fold(one) for one in self.texts]
        return any(one in folded for folded in map(_fold, _readings(text)) for one in wanted)

    def matches_tokens(self, text: str) -> bool:
        """Whether one of the texts may be in decoded tokens, in which U+FFFD stands for a part of a character."""
        if self.matches(text):
            return True
        patterns = [] if "\ufffd" not in text else [one for one in map(_split_pattern, self.texts) if one is not None]
        return any(one.search(_fold(text)) for one in patterns)

    def contains(self, value: Any) -> bool:
        """Whether a JSON value has a string or a key that matches, except for keys and constants of an episode's format."""
        return bool(self.texts) and any(map(self.matches, _strings(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The episodes to erase, and the files that have them."""

    episodes: Mapping[str, str]
    """The task of each, by id."""
    ids: frozenset[str]
    tasks: frozenset[str]
    files: Mapping[Path, int]
    """The number of lines to remove from each file of episodes."""
    derived: tuple[Path, ...]
    """Files and folders to delete."""


def find(folder: Path, selection: Selection) -> Found:
    """Return what `erase` changes. Raises DataError for a damaged file."""
    ids: dict[str, str] = _read_pending(folder)
    for file in _episode_files(folder):
        for _, row in read_rows(file):
            id, task = _named(row)
            # Ids of episodes and the names of metrics stay. The first begin with a word such as "validation".
            if task in selection.tasks or selection.contains({**row, "metrics": {}, "id": "", "trajectory_id": ""}):
                ids[id] = task
    if (folder / LEDGER).is_file():
        found = find_rollouts(
            folder / LEDGER, selection.tasks, selection.contains, selection.matches_tokens, _vocabulary(folder)
        )
        ids.update(found)
    files = {file: sum(_named(row)[0] in ids for _, row in read_rows(file)) for file in _episode_files(folder)}
    derived = [folder / name for name in (*_DERIVED, *(_MLFLOW if (folder / _MLFLOW[-1]).exists() else ()))]
    derived += sorted({path for pattern in _LEFT_BEHIND for path in folder.glob(pattern)})
    return Found(
        episodes=ids,
        ids=frozenset(ids),
        tasks=frozenset(ids.values()),
        files={file: num for file, num in files.items() if num},
        derived=tuple(path for path in derived if ids and path.exists()),
    )


def erase(folder: Path, found: Found, selection: Selection) -> None:
    """Erase the episodes. The caller holds the run's lock, and calls `finish` when the copy is erased, too. Raises UsageError
    if another process uses the ledger, and OSError."""
    if found.ids:
        write_private(folder / f"{PENDING}.new", encode_line(found.episodes))
        (folder / f"{PENDING}.new").replace(folder / PENDING)
    if (folder / LEDGER).is_file() and found.ids:
        erase_rollouts(folder / LEDGER, found.ids)
    for file in found.files:
        # Digests quote episodes. Without the lines of an episode, the next erasure would not know that they do.
        (folder / "digests" / file.name).unlink(missing_ok=True)
        kept = [encode_line(row) for _, row in read_rows(file) if _named(row)[0] not in found.ids]
        _replace(file, b"".join(kept))
    for path in found.derived:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)

    ids = re.compile(
        rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(found.ids, reverse=True)))})(?!\w)" if found.ids else r"(?!)"
    )

    def quotes(text: str) -> bool:
        return text not in found.ids and (selection.matches(text) or ids.search(text) is not None)

    for name in _QUOTING:
        if (folder / name).is_file():
            rows = [row for _, row in read_rows(folder / name, is_growing=True)]
            _replace(folder / name, b"".join(encode_line(_without_labelled(row, quotes)) for row in rows))
    status = [folder / STATUS] if (folder / STATUS).is_file() else []
    for file in [*status, *(folder / "evaluations").glob("*.json")]:
        content = parse_json(file.read_bytes())
        left = _without_labelled(content, quotes)
        if "evaluations" in content:
            left["evaluations"] = [_without_labelled(one, quotes) for one in content["evaluations"]]
        if left != content:
            _replace(file, encode(left, indent=True) + b"\n")


def finish(folder: Path) -> None:
    """Note that an erasure is complete, also that of the copy."""
    (folder / PENDING).unlink(missing_ok=True)


def list_remaining(folder: Path, selection: Selection, tasks: Collection[str]) -> list[Path]:
    """Return the files of the folder that still contain a text, also in their name, and those of its recipe with the id of an
    erased task. Weights are left out, and compressed files are not read (`list_unread`)."""
    by_task = Selection(texts=tuple(json.dumps(task, ensure_ascii=False) for task in tasks))
    found: list[Path] = []
    for path in _other_files(folder):
        is_data = (folder / "recipe") in path.parents
        is_named = bool(selection.texts) and selection.matches(str(path.relative_to(folder)))
        if is_named or _has(path, selection) or (is_data and _has(path, by_task)):
            found.append(path)
    return found


def list_unread(folder: Path) -> list[Path]:
    """Return the compressed files of the folder, which may contain anything."""
    return [path for path in _other_files(folder) if path.suffix in _COMPRESSED]


def _other_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in _WEIGHTS]


def _read_pending(folder: Path) -> dict[str, str]:
    path = folder / PENDING
    return dict(parse_json(path.read_bytes())) if path.is_file() else {}


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
        if value not in _VALUES:
            yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if key not in _KEYS:
                yield str(key)
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _without_labelled(row: Mapping[str, Any], quotes: Callable[[str], bool]) -> dict[str, Any]:
    return {key: one if key in _LABELS else _without(one, quotes) for key, one in row.items()}


def _without(value: Any, quotes: Callable[[str], bool]) -> Any:
    """Return a JSON value in which strings that quote an erased episode are replaced."""
    if isinstance(value, str):
        return ERASED if quotes(value) else value
    if isinstance(value, Mapping):
        return {key: _without(one, quotes) for key, one in value.items()}
    if isinstance(value, list):
        return [_without(one, quotes) for one in value]
    return value


def _fold(text: str) -> str:
    """Return a text without the difference of cases, and of characters that Unicode can write in two ways."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _readings(text: str) -> Iterator[str]:
    """Yield a text as it is, and without the escapes of JSON, one level after the other."""
    yield text
    for _ in range(_MOST_ESCAPES):
        if "\\" not in text:
            return
        text = _ESCAPE.sub(_unescape, text)
        # Two escapes may stand for one character.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield text


def _unescape(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _ESCAPED.get(escape[2], escape[2])


@cache
def _split_pattern(text: str) -> re.Pattern[str] | None:
    """Return the pattern of a folded text in which each character that is not ASCII may be several tokens. Return None if there
    is no such character, or if the others would match too much."""
    folded = _fold(text)
    if folded.isascii() or sum(one.isascii() and one.isalnum() for one in folded) < _FEWEST_LETTERS:
        return None
    return re.compile(
        "".join(re.escape(one) if one.isascii() else f"(?:{re.escape(one)}|\ufffd{{1,4}})" for one in folded)
    )


def _has(path: Path, selection: Selection) -> bool:
    if not selection.texts:
        return False
    overlap = _LONGEST_ESCAPE * max(map(len, selection.texts))
    with path.open("rb") as file:
        end = b""
        while piece := file.read(_PIECE):
            content = end + piece
            if selection.matches(content.decode("utf-8", "ignore")):
                return True
            end = content[-overlap:]
    return False


def _replace(file: Path, content: bytes) -> None:
    temporary = file.with_name(f".{file.name}.erasing")
    write_private(temporary, content)
    temporary.chmod(file.stat().st_mode & 0o777)
    temporary.replace(file)
