"""The digests of a run's episodes: files with the data that reports and diagnoses need from each episode, written with
the episodes. Reading them takes much less time than reading the episodes.

The digests of `trajectories/train-3.jsonl` are in `digests/train-3.jsonl`, which has three lines:

    header     {"format", "sparring", "episodes": [size, mtime in ns], "sizes", "checksums": one for each other line}
    outline    what decides whether a page shows an episode: an `Outline`
    digests    what detectors and diagnoses read: a list of `Digest`

The file is used only if it is complete, if this version of Sparring wrote it, and if the file of episodes has the size and
time that the header states. Otherwise, the episodes are read, and the digests are written again if the folder allows it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

from sparring.algorithms.advantages import Rewarded
from sparring.algorithms.credit import rewarded
from sparring.run_folders.encode import encode, encode_line
from sparring.run_folders.history import FIRST_STEPS, LAST_STEPS, Digest, History, RecordedCall, summarize
from sparring.run_folders.stored import parse_trajectory, read_metrics, read_placed_trajectories
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import create_folder, open_private
from sparring.types import Message, Outcome, Reward, Task, Trajectory

FORMAT = 1
"""The version of the format. It increases whenever the lines change, or the results of `Digest.of` and `summarize`."""
FOLDER = "digests"

_OUTLINE, _DIGESTS = 0, 1
_TAG = re.compile(r"<([A-Za-z_][\w.-]*)>")

FileState: TypeAlias = tuple[int, int]
"""The size of a file in bytes and its time in nanoseconds. Both change when the file is written again."""


class Outlined(NamedTuple):
    """The data that decides whether a page shows an episode, and the episode's position in its file."""

    offset: int
    """The place of its line in the file, in bytes."""
    num_bytes: int
    """The length of its line."""
    trajectory: Trajectory
    """The id, the task's id, the outcome, the reward and the score with their parts, and the last message as
    `tags_of` reads it. The rest is empty."""
    rewarded: Rewarded | None
    """The rewards and lengths of its turns, or None without a reward."""
    version: int | None
    """See `version_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The data that a report needs from all episodes of one file."""

    episodes: Sequence[Outlined]
    tasks: Mapping[str, str]
    """The `content_hash` of each task, by id."""


@final
class DigestWriter:
    """Encodes the episodes of a file, and writes their digests once the file is complete:

    lines = [digests.add(row) for row in rows]
    digests.write(path_of_these_lines)
    """

    def __init__(self) -> None:
        self._offset = 0
        self._rows: list[tuple[int, int, Mapping[str, Any]]] = []

    def add(self, row: Mapping[str, Any]) -> bytes:
        """Return the line of an episode in the file."""
        line = encode_line(row)
        self._rows.append((self._offset, len(line) - 1, _without_tokens(row)))
        self._offset += len(line)
        return line

    def write(self, file: Path) -> None:
        """Write the digests of a file that consists of the lines."""
        placed = [(offset, num_bytes, _read_back(row)) for offset, num_bytes, row in self._rows]
        _write(file, state_of(file), _Parts(placed))


def read_outline(file: Path) -> Outline:
    """Return the outline of a file of episodes. Raises DataError if the episodes are read and are damaged."""
    stored = _read(file, _OUTLINE)
    content = _rebuild(file).outline if stored is None else stored
    return Outline(episodes=[_outlined(row) for row in content["episodes"]], tasks=content["tasks"])


def read_digests(file: Path) -> tuple[Digest, ...]:
    """Return what `summarize` returns for a file of episodes. Raises DataError if the episodes are read and are
    damaged."""
    stored = _read(file, _DIGESTS)
    return tuple(map(_digest, _rebuild(file).digests if stored is None else stored))


def read_history(run: Path, *, success_threshold: float = 1.0) -> History:
    """Return the history of a stored run or a run in progress. It is empty if the run has no metrics.jsonl.

    Only steps that keep digests are read. Raises DataError if files are damaged.
    """
    history, path = History(success_threshold=success_threshold), run / "metrics.jsonl"
    metrics = read_metrics(path)[0] if path.is_file() else {}
    for place, step in enumerate(metrics):
        found: dict[str, tuple[Digest, ...]] = {}
        if place < FIRST_STEPS or place >= len(metrics) - LAST_STEPS:
            files = {split: run / "trajectories" / f"{split}-{step}.jsonl" for split in ("train", "validation")}
            found = {split: read_digests(file) for split, file in files.items() if file.is_file()}
        history.add_digests(step, metrics=metrics[step], **found)
    return history


def state_of(file: Path) -> FileState:
    """Return the state of a file, which changes when it is written."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def version_of(trajectory: Trajectory) -> int | None:
    """Return the version of the weights that sampled the last token, or None if it is not known."""
    versions = trajectory.turns[-1].versions if trajectory.turns else ()
    return versions[-1][0] if versions else None


def content_hash(task: Task) -> str:
    """Return a string that is the same for all tasks with equal content."""
    content = json.dumps([task.messages, task.fields], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def tags_of(message: Message) -> list[str]:
    """Return the names of the tags in a message, such as `answer` for `<answer>`, in order."""
    return _TAG.findall(str(message.get("content") or ""))


class _Parts:
    """The content of the lines after the header, as JSON data."""

    def __init__(self, placed: Sequence[tuple[int, int, Trajectory]]) -> None:
        tasks: dict[str, str] = {}
        for _, _, one in placed:
            if one.task.id not in tasks:
                tasks[one.task.id] = content_hash(one.task)
        self.outline: Any = {"tasks": tasks, "episodes": [_outline_row(*one) for one in placed]}
        self.digests: Any = [_digest_row(one) for one in summarize([one for _, _, one in placed])]


def _rebuild(file: Path) -> _Parts:
    """Read the episodes, and write their digests if that is possible."""
    state = state_of(file)
    parts = _Parts(list(read_placed_trajectories(file)))
    with contextlib.suppress(OSError):  # The folder can only be read, or the disk is full.
        _write(file, state, parts)
    return parts


def _write(file: Path, state: FileState, parts: _Parts) -> None:
    # The standard library writes every value that it has read, including NaN and long integers.
    lines = [json.dumps(part, separators=(",", ":")).encode() + b"\n" for part in (parts.outline, parts.digests)]
    header = {
        "format": FORMAT,
        "sparring": _version(),
        "episodes": state,
        "sizes": [len(line) for line in lines],
        "checksums": [zlib.crc32(line) for line in lines],
    }
    path = _path(file)
    create_folder(path.parent, exist_ok=True)
    # Commands may write the same file at the same time. Readers see a complete file or none.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.part")
    try:
        with open_private(temporary, "wb") as stream:
            stream.write(json.dumps(header).encode() + b"\n")
            stream.writelines(lines)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(file: Path, part: int) -> Any:
    """Return the content of a line after the header, or None if the file cannot be used."""
    try:
        with _path(file).open("rb") as stream:
            header = parse_json(stream.readline())
            expected = (FORMAT, _version(), list(state_of(file)))
            if (header["format"], header["sparring"], header["episodes"]) != expected:
                return None
            sizes, checksum = header["sizes"], header["checksums"][part]
            if os.fstat(stream.fileno()).st_size != stream.tell() + sum(sizes):
                return None
            stream.seek(sum(sizes[:part]), os.SEEK_CUR)
            content = stream.read(sizes[part])
    except (OSError, LookupError, TypeError, ValueError):
        return None
    return parse_json(content) if zlib.crc32(content) == checksum else None


def _path(file: Path) -> Path:
    return file.parent.parent / FOLDER / file.name


@cache
def _version() -> str:
    return importlib.metadata.version("sparring")


def _without_tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of an episode without its tokens. Their number is kept."""
    lists = {name: row[name] for name in ("turns", "other_turns") if name in row}
    none = {"prompt_ids": (), "sampled_logprobs": ()}
    return {
        **row,
        **{
            name: [{**turn, **none, "token_ids": (0,) * len(turn["token_ids"])} for turn in turns]
            for name, turns in lists.items()
        },
    }


def _read_back(row: Mapping[str, Any]) -> Trajectory:
    """Return the episode as it is read from its line."""
    return parse_trajectory(parse_json(encode(row)), (), "digests")


def _outline_row(offset: int, num_bytes: int, one: Trajectory) -> list[Any]:
    last = [[message.get("role"), tags_of(message)] for message in one.messages[-1:]]
    reward = None
    if one.reward is not None:
        credited = rewarded(one)
        reward = [one.reward.total, one.reward.components, credited.turn_rewards, credited.turn_tokens]
    return [
        offset,
        num_bytes,
        one.id,
        one.task.id,
        one.outcome,
        reward,
        one.score,
        one.score_parts,
        last,
        version_of(one),
    ]


def _outlined(row: list[Any]) -> Outlined:
    offset, num_bytes, trajectory_id, task_id, outcome, reward, score, score_parts, last, version = row
    credited = None
    if reward is not None:
        total, components, turn_rewards, turn_tokens = reward
        credited = Rewarded(total=total, turn_rewards=tuple(turn_rewards), turn_tokens=tuple(turn_tokens))
        reward = Reward(total=total, components=components)
    trajectory = Trajectory(
        id=trajectory_id,
        task=Task(id=task_id, messages=()),
        attempt=0,
        turns=(),
        messages=tuple({"role": role, "content": "".join(f"<{tag}>" for tag in tags)} for role, tags in last),
        outcome=Outcome(outcome),
        reward=reward,
        score=score,
        score_parts=score_parts,
    )
    return Outlined(offset, num_bytes, trajectory, credited, version)


def _digest_row(digest: Digest) -> dict[str, Any]:
    row = {one.name: getattr(digest, one.name) for one in fields(Digest)}
    return {**row, "calls": [(call.name, call.arguments, call.result) for call in digest.calls]}


def _digest(row: Mapping[str, Any]) -> Digest:
    calls = [RecordedCall(name=name, arguments=arguments, result=result) for name, arguments, result in row["calls"]]
    return Digest(**{**row, "texts": tuple(row["texts"]), "calls": tuple(calls), "outcome": Outcome(row["outcome"])})
