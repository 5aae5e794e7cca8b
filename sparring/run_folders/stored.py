"""Read stored trajectories and metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from sparring.errors import DataError, cut
from sparring.run_folders.formats import require_format
from sparring.runtime.json_values import parse_json
from sparring.types import Json, Outcome, Reward, Sampling, StopReason, Task, Trajectory, Turn, Usage

TRAJECTORY_FORMAT = 1


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read the episodes of a `trajectories/*.jsonl` file, with the environment's log from the neighboring folder. If
    `path` is the folder of a recording, read all its episodes.

    Raises DataError, which identifies the file and the invalid line, if a line is not a trajectory.
    """
    return [
        parse_trajectory(row, transitions.get(row["id"], ()), where)
        for file in list_trajectory_files(path)
        for transitions in [_transitions(file.parent.parent / "environment" / file.name)]
        for where, row in read_rows(file)
    ]


def list_trajectory_files(path: Path) -> list[Path]:
    """Return the file itself, or the files of a recording in order. Raises DataError if there are none."""
    if path.is_file():
        return [path]
    found = (path / "trajectories").glob("recorded-*.jsonl")
    files = sorted(found, key=lambda file: (len(file.name), file.name))
    if not files:
        what = "contains no trajectories/recorded-*.jsonl" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}; specify a .jsonl file, or a folder that `sparring record` wrote.")
    return files


def read_rows(file: Path, *, is_growing: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and the object of each line. Raises DataError if a line is not a JSON object.

    With `is_growing`, the last line is skipped, because it may be incomplete while the file is written or after a
    crash.
    """
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1] if is_growing else lines, start=1):
        if line.strip():
            where = f"{file}, line {number}"
            yield where, _parse_object(line, where)


def read_placed_trajectories(file: Path) -> Iterator[tuple[int, int, Trajectory]]:
    """Yield the offset and the length of each line in bytes, and its episode without the environment's log.

    `read_trajectories_at` reads single episodes again. Raises the same errors as `read_trajectories`.
    """
    offset = 0
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if line.strip():
            where = f"{file}, line {number}"
            yield offset, len(line), parse_trajectory(_parse_object(line, where), (), where)
        offset += len(line) + 1


def read_trajectories_at(file: Path, offsets: Iterable[int]) -> Iterator[Trajectory]:
    """Yield the episodes of the lines that start at these offsets in bytes, with the environment's log. Raises the same
    errors as `read_trajectories`."""
    transitions = _transitions(file.parent.parent / "environment" / file.name)
    with file.open("rb") as stream:
        for offset in offsets:
            stream.seek(offset)
            where = f"{file}, byte {offset}"
            row = _parse_object(stream.readline(), where)
            yield parse_trajectory(row, transitions.get(str(row.get("id")), ()), where)


def _parse_object(line: str | bytes, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: {error}; every line must be a JSON object. Fix the line, or remove it.") from error
    if not isinstance(row, dict):
        shown = line if isinstance(line, str) else line.decode("utf-8", "replace")
        raise DataError(f"{where}: {shown[:80]} is not a JSON object; every line must be a JSON object.")
    return row


RESUMED = "training/resumed"
"""The metric with the step from which a run was resumed. It invalidates everything that was previously logged after
that step."""


_RENAMED = {"world": "environment", "judge": "reward"}
"""The last parts of the names of an episode's durations, in runs of earlier versions and now."""


def read_metrics(path: Path) -> tuple[dict[int, dict[str, float]], tuple[int, ...]]:
    """Return a run's metrics keyed by step, in order, and the steps from which the run was resumed. For a repeated
    step, the last entry counts.

    Raises DataError, which identifies the invalid line, if a line has no step or no metrics.
    """
    found: dict[int, dict[str, float]] = {}
    resumed: list[int] = []
    for where, row in read_rows(path, is_growing=True):
        try:
            step = int(row["step"])
            metrics = {_name_of_today(str(name)): value for name, value in dict(row["metrics"]).items()}
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: {error!r}; every line must contain a step and its metrics.") from error
        if RESUMED in metrics:
            resumed.append(step)
            found = {at: numbers for at, numbers in found.items() if at <= step}
        found.setdefault(step, {}).update(metrics)
    return dict(sorted(found.items())), tuple(dict.fromkeys(resumed))


def _name_of_today(metric: str) -> str:
    area, _, name = metric.rpartition("/")
    return f"{area}/{_RENAMED[name]}" if name in _RENAMED and area.endswith("/episode") else metric


def training_seconds(path: Path) -> float:
    """Return the wall-clock time of the RL steps in seconds, without validation. Raises DataError if a file is missing
    or damaged."""
    if not path.is_file():
        raise DataError(f"{path} is missing, so it is not known how long RL took; restore it, or train the run again.")
    by_step, _ = read_metrics(path)
    return sum(metrics.get("timing_s/step", 0.0) for metrics in by_step.values())


def _transitions(file: Path) -> dict[str, list[Mapping[str, Json]]]:
    found: dict[str, list[Mapping[str, Json]]] = {}
    for where, row in read_rows(file) if file.is_file() else ():
        try:
            found.setdefault(row["trajectory_id"], []).append(row["transition"])
        except (LookupError, TypeError) as error:
            raise DataError(f"{where}: {error!r}; every line must be a transition that `sparring` wrote.") from error
    return found


@dataclass(frozen=True, slots=True)
class _Kind:
    """The types of a value from JSON, and of the values that it contains; None if they may be anything."""

    types: frozenset[type]
    inner: frozenset[type] | None = None

    def includes(self, value: Any) -> bool:
        if type(value) not in self.types:
            return False
        return self.inner is None or self.inner.issuperset(map(type, value.values() if type(value) is dict else value))


def _kind(*types: type, of: Iterable[type] | None = None) -> _Kind:
    # Python counts a truth value as a number.
    return _Kind(frozenset({*types, bool} if int in types else types), None if of is None else frozenset(of))


_TEXT, _WHOLE, _OBJECT, _LIST = _kind(str), _kind(int), _kind(dict), _kind(list)
_TEXT_OR_NONE, _WHOLE_OR_NONE = _kind(str, NoneType), _kind(int, NoneType)
_NUMBER = _kind(int, float, NoneType)
"""None stands for NaN, which JSON does not have."""
_NUMBERS, _TEXTS, _OBJECTS = _kind(dict, of=(int, float, NoneType)), _kind(dict, of=(str,)), _kind(list, of=(dict,))
_IDS, _LOGPROBS = _kind(list, of=(int,)), _kind(list, of=(int, float, NoneType))
_TRAJECTORY_KINDS: Mapping[str, _Kind] = {
    "id": _TEXT, "task": _OBJECT, "attempt": _WHOLE, "messages": _OBJECTS, "turns": _LIST, "other_turns": _LIST,
    "error": _TEXT_OR_NONE, "began": _NUMBER, "seconds": _NUMBER, "score": _NUMBER, "score_parts": _NUMBERS,
    "metrics": _NUMBERS, "artifacts": _TEXTS,
}  # fmt: skip
_TASK_KINDS: Mapping[str, _Kind] = {"id": _TEXT, "messages": _OBJECTS, "fields": _OBJECT, "seed": _WHOLE_OR_NONE}
_TURN_KINDS: Mapping[str, _Kind] = {
    "id": _WHOLE, "parent": _WHOLE_OR_NONE, "branch_reason": _TEXT_OR_NONE, "fingerprint": _TEXT, "prompt_ids": _IDS,
    "token_ids": _IDS, "sampled_logprobs": _LOGPROBS, "temperature": _NUMBER, "top_p": _NUMBER,
    "max_tokens": _WHOLE_OR_NONE, "message": _OBJECT, "num_computed_tokens": _WHOLE, "began": _NUMBER,
    "seconds": _NUMBER, "removed_mass": _NUMBER, "policy": _TEXT_OR_NONE,
}  # fmt: skip
_REWARD_KINDS: Mapping[str, _Kind] = {
    "total": _NUMBER, "components": _NUMBERS, "metrics": _NUMBERS, "record": _OBJECT,
}  # fmt: skip


def _check(row: Mapping[str, Any], kinds: Mapping[str, _Kind]) -> None:
    """Raise TypeError, which names the field, if a field of a stored object has another type. Missing fields are left
    to the reader."""
    for name, kind in kinds.items():
        if name in row and not kind.includes(row[name]):
            raise TypeError(f"{name} is {cut(repr(row[name]), 60)}")


def parse_trajectory(row: Mapping[str, Any], transitions: Iterable[Mapping[str, Json]], where: str) -> Trajectory:
    """Build a trajectory from its stored row and its environment log. Raises DataError, which contains `where`."""
    require_format(where, row.get("format", TRAJECTORY_FORMAT), TRAJECTORY_FORMAT, otherwise="restore the file")
    try:
        _check(row, _TRAJECTORY_KINDS)
        task, reward = row["task"], row["reward"]
        _check(task, _TASK_KINDS)
        return Trajectory(
            id=row["id"],
            task=Task(id=task["id"], messages=tuple(task["messages"]), fields=task["fields"], seed=task["seed"]),
            attempt=row["attempt"],
            turns=tuple(map(_turn, row["turns"])),
            other_turns=tuple(_turn(turn, learns=False) for turn in row.get("other_turns", ())),
            messages=tuple(row["messages"]),
            outcome=Outcome(row["outcome"]),
            reward=None if reward is None else _reward(reward),
            score=row["score"],
            score_parts=row.get("score_parts", {}),
            metrics=row["metrics"],
            transitions=tuple(transitions),
            final_state=row.get("final_state"),
            artifacts=row.get("artifacts", {}),
            error=row["error"],
            began=row.get("began"),
            seconds=row["seconds"],
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {error!r}; this is not a trajectory that `sparring` wrote.") from error


def _turn(row: Mapping[str, Any], *, learns: bool = True) -> Turn:
    _check(row, _TURN_KINDS)
    usage = row.get("usage")
    return Turn(
        id=row["id"],
        parent=row["parent"],
        branch_reason=row["branch_reason"],
        prompt_ids=tuple(row["prompt_ids"]),
        token_ids=tuple(row["token_ids"]),
        sampled_logprobs=tuple(row["sampled_logprobs"]),
        versions=tuple((version, count) for version, count in row["versions"]),
        fingerprint=row["fingerprint"],
        stop_reason=StopReason(row["stop_reason"]),
        sampling=Sampling(
            temperature=_number(row["temperature"]), top_p=_number(row["top_p"]), max_tokens=row["max_tokens"]
        ),
        message=row["message"],
        num_computed_tokens=row["num_computed_tokens"],
        began=row.get("began"),
        seconds=row["seconds"],
        usage=None if usage is None else Usage(**usage),
        removed_mass=row.get("removed_mass", 0.0),
        policy=row.get("policy"),
        learns=learns,
    )


def _reward(row: Mapping[str, Any]) -> Reward:
    _check(row, _REWARD_KINDS)
    per_turn = row["per_turn"]
    return Reward(
        total=_number(row["total"]),
        per_turn=None if per_turn is None else {int(turn): value for turn, value in per_turn.items()},
        components=row["components"],
        metrics=row["metrics"],
        record=row.get("record", {}),
    )


def _number(value: float | None) -> float:
    """Return NaN for null, because JSON has no NaN."""
    return math.nan if value is None else value
