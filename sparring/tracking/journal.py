"""A run folder read as a journal: what somebody who was told a part of it has not been told yet, in order.

Each piece has a name and a mark. Who delivered a piece keeps `told[name] = mark`, and is not given it again; what was
added since, or was replaced, is a new piece. Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sparring.errors import DataError
from sparring.tracking.stored import read_trajectories
from sparring.types import Json, Trajectory

Told: TypeAlias = MutableMapping[str, list[int]]
"""By name how far: bytes of a file that grows, (version, lines) of trajectories, the version of a document."""

LINES_AT_ONCE = 8
"""Of metrics: what a step writes is about a hundred numbers, and a request may hold a thousand."""
EPISODES_AT_ONCE = 32
DOCUMENTS = ("run.toml", "manifest.json", "findings.jsonl", "evaluations/*.json", "report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Numbers of steps."""

    name: str
    mark: list[int]
    lines: tuple[tuple[int, float, Mapping[str, float]], ...]
    """Step, time in seconds since 1970, numbers by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    name: str
    mark: list[int]
    findings: tuple[Mapping[str, Json], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Some of the episodes of a file in `trajectories/`."""

    name: str
    mark: list[int]
    split: str
    step: int
    stored: float
    """When the file was written, in seconds since 1970."""
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file as it is."""

    name: str
    mark: list[int]
    file: str
    """Its path in the run folder."""
    path: Path


Piece: TypeAlias = Metrics | Findings | Episodes | Document


def untold(run: Path, told: Mapping[str, list[int]]) -> Iterator[Piece]:
    """Pieces that are not in `told`: numbers first, then findings, episodes and documents, each oldest first.

    `told` may be added to between two pieces. Raises DataError for files that are damaged.
    """
    yield from _metrics(run, told)
    yield from _findings(run, told)
    yield from _episodes(run, told)
    for pattern in DOCUMENTS:
        for path in sorted(run.glob(pattern)):
            file, version = str(path.relative_to(run)), [path.stat().st_mtime_ns]
            # What grows has pieces of its own by its name.
            name = f"{file} whole"
            if told.get(name) != version:
                yield Document(name=name, mark=version, file=file, path=path)


def _metrics(run: Path, told: Mapping[str, list[int]]) -> Iterator[Metrics]:
    lines: list[tuple[int, float, Mapping[str, float]]] = []
    end = 0
    for row, end in _grown(run / "metrics.jsonl", told):
        lines.append((row["step"], row["time"], row["metrics"]))
        if len(lines) == LINES_AT_ONCE:
            yield Metrics(name="metrics.jsonl", mark=[end], lines=tuple(lines))
            lines = []
    if lines:
        yield Metrics(name="metrics.jsonl", mark=[end], lines=tuple(lines))


def _findings(run: Path, told: Mapping[str, list[int]]) -> Iterator[Findings]:
    grown = list(_grown(run / "findings.jsonl", told))
    if grown:
        yield Findings(name="findings.jsonl", mark=[grown[-1][1]], findings=tuple(row for row, _ in grown))


def _grown(path: Path, told: Mapping[str, list[int]]) -> Iterator[tuple[Json, int]]:
    """New whole lines of a file that grows, each with the byte after it."""
    if not path.is_file():
        return
    (end,) = told.get(path.name, [0])
    with path.open("rb") as file:
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                return  # it is being written
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, byte {end}: {error}; every line must be a JSON object.") from error
            end += len(line)
            yield row, end


def _episodes(run: Path, told: Mapping[str, list[int]]) -> Iterator[Episodes]:
    files = [(path.stat().st_mtime_ns, path) for path in (run / "trajectories").glob("*-*.jsonl")]
    for version, path in sorted(files):
        name = f"trajectories/{path.name}"
        split, _, step = path.stem.rpartition("-")
        known, done = told.get(name, [0, 0])
        # One that was replaced is that of a step that a resumed run took again: its episodes are others.
        done = done if known == version else 0
        if known == version and done < 0:
            continue
        trajectories = read_trajectories(path)
        for place in range(done, len(trajectories), EPISODES_AT_ONCE):
            end = place + EPISODES_AT_ONCE
            # A negative place says that the file was told to its end.
            mark = [version, end if end < len(trajectories) else -1]
            yield Episodes(
                name=name, mark=mark, split=split, step=int(step) if step.isdigit() else 0, stored=version / 1e9,
                trajectories=tuple(trajectories[place:end]),
            )  # fmt: skip
