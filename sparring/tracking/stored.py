"""Stored trajectories read back, to be judged anew or shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sparring.errors import DataError
from sparring.types import Json, Outcome, Reward, Sampling, StopReason, Task, Trajectory, Turn, Usage


def read_trajectories(path: Path) -> list[Trajectory]:
    """The episodes of a `trajectories/*.jsonl`, with the environment's own log where it lies beside; all of those of a
    recording when `path` is its folder.

    Raises DataError naming file and line of what is no trajectory.
    """
    return [
        trajectory_of(row, transitions.get(row["id"], ()), where)
        for file in trajectory_files(path)
        for transitions in [_transitions(file.parent.parent / "environment" / file.name)]
        for where, row in rows(file)
    ]


def trajectory_files(path: Path) -> list[Path]:
    """The file itself, or a recording's, in the order they were begun. Raises DataError when there is none."""
    if path.is_file():
        return [path]
    found = (path / "trajectories").glob("recorded-*.jsonl")
    files = sorted(found, key=lambda file: (len(file.name), file.name))
    if not files:
        what = "holds no trajectories/recorded-*.jsonl" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}; name a .jsonl file, or a folder that `sparring record` made.")
    return files


def rows(file: Path, *, is_growing: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place and object. Raises DataError for a line that is none.

    The last line of a file that is still written, or whose process was killed, may lack its end and is passed over.
    """
    lines = file.read_text("utf-8").split("\n")
    for number, line in enumerate(lines[:-1] if is_growing else lines, start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{where}: {error}; every line must be a JSON object. Mend the line, or remove it."
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: {line[:80]} is no JSON object, and every line must be one.")
        yield where, row


RESUMED = "training/resumed"
"""Metric of a step that a run was resumed from: what came after it the first time never happened."""


def read_metrics(path: Path) -> tuple[dict[int, dict[str, float]], tuple[int, ...]]:
    """The metrics of a run by step, in order, of a step that was played again the last; and the steps it was resumed from.

    Raises DataError naming the line that holds no step and metrics.
    """
    found: dict[int, dict[str, float]] = {}
    resumed: list[int] = []
    for where, row in rows(path, is_growing=True):
        try:
            step, metrics = int(row["step"]), dict(row["metrics"])
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: {error!r}; every line holds a step and its metrics.") from error
        if RESUMED in metrics:
            resumed.append(step)
            found = {at: numbers for at, numbers in found.items() if at <= step}
        found.setdefault(step, {}).update(metrics)
    return dict(sorted(found.items())), tuple(dict.fromkeys(resumed))


def training_seconds(path: Path) -> float:
    """The wall time of RL's steps in a run's metrics, validation apart. Raises DataError for a missing or damaged file."""
    if not path.is_file():
        raise DataError(f"{path} is missing, so it is not known how long RL took; restore it, or train the run anew.")
    by_step, _ = read_metrics(path)
    return sum(metrics.get("timing_s/step", 0.0) for metrics in by_step.values())


def _transitions(file: Path) -> dict[str, list[Mapping[str, Json]]]:
    found: dict[str, list[Mapping[str, Json]]] = {}
    for _, row in rows(file) if file.is_file() else ():
        found.setdefault(row["trajectory_id"], []).append(row["transition"])
    return found


def trajectory_of(row: Mapping[str, Any], transitions: Iterable[Mapping[str, Json]], where: str) -> Trajectory:
    """One stored episode with the environment's own log of it. Raises DataError, which says where it is."""
    try:
        task, reward = row["task"], row["reward"]
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
            error=row["error"],
            began=row.get("began"),
            seconds=row["seconds"],
        )
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {error!r}; this is no trajectory as `sparring` writes them.") from error


def _turn(row: Mapping[str, Any], *, learns: bool = True) -> Turn:
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
    per_turn = row["per_turn"]
    return Reward(
        total=_number(row["total"]),
        per_turn=None if per_turn is None else {int(turn): value for turn, value in per_turn.items()},
        components=row["components"],
        metrics=row["metrics"],
        record=row.get("record", {}),
    )


def _number(value: float | None) -> float:
    """JSON has no word for NaN."""
    return math.nan if value is None else value
