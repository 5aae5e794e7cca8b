"""Read a run folder as a journal: the pieces that a receiver has not received yet, in order.

Each piece has a name and a mark. A receiver's record stores `delivered[name] = mark`, so that the piece is not sent
again. Data that has been added or replaced since then is a new piece. This module never writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sparring.errors import DataError
from sparring.run_folders.stored import read_trajectories
from sparring.runtime.json_values import parse_json
from sparring.types import Json, Trajectory

Delivered: TypeAlias = MutableMapping[str, list[int]]
"""Progress by name: the bytes of a growing file, (version, lines) of trajectories, or the version of a document."""

LINES_AT_ONCE = 8
"""Lines of metrics per piece. A step writes about a hundred numbers, and a request may hold a thousand."""
EPISODES_AT_ONCE = 32
DOCUMENTS = ("run.toml", "manifest.json", "findings.jsonl", "evaluations/*.json", "report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of some steps."""

    name: str
    mark: list[int]
    lines: tuple[tuple[int, float, Mapping[str, float]], ...]
    """The step, the time in seconds since 1970, and the numbers by name."""


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
    """Modification time of the file, in seconds since 1970."""
    start: int
    """The number of episodes of the file before these."""
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file that is sent as a whole."""

    name: str
    mark: list[int]
    file: str
    """The path of the file in the run folder."""
    path: Path


Piece: TypeAlias = Metrics | Findings | Episodes | Document


def undelivered(run: Path, delivered: Mapping[str, list[int]]) -> Iterator[Piece]:
    """Yield the pieces that are not in `delivered`: metrics, then findings, episodes and documents, each oldest first.

    `delivered` may gain entries between two pieces. Raises DataError for damaged files.
    """
    yield from _metrics(run, delivered)
    yield from _findings(run, delivered)
    yield from _episodes(run, delivered)
    for pattern in DOCUMENTS:
        for path in sorted(run.glob(pattern)):
            file, version = str(path.relative_to(run)), [path.stat().st_mtime_ns]
            # Files that grow are delivered in parts under their own names.
            name = f"{file} whole"
            if delivered.get(name) != version:
                yield Document(name=name, mark=version, file=file, path=path)


def _metrics(run: Path, delivered: Mapping[str, list[int]]) -> Iterator[Metrics]:
    lines: list[tuple[int, float, Mapping[str, float]]] = []
    end = 0
    for row, end in _grown(run / "metrics.jsonl", delivered):
        lines.append((row["step"], row["time"], row["metrics"]))
        if len(lines) == LINES_AT_ONCE:
            yield Metrics(name="metrics.jsonl", mark=[end], lines=tuple(lines))
            lines = []
    if lines:
        yield Metrics(name="metrics.jsonl", mark=[end], lines=tuple(lines))


def _findings(run: Path, delivered: Mapping[str, list[int]]) -> Iterator[Findings]:
    grown = list(_grown(run / "findings.jsonl", delivered))
    if grown:
        yield Findings(name="findings.jsonl", mark=[grown[-1][1]], findings=tuple(row for row, _ in grown))


def _grown(path: Path, delivered: Mapping[str, list[int]]) -> Iterator[tuple[Json, int]]:
    """Yield the new complete lines of a growing file, each with the position after it."""
    if not path.is_file():
        return
    (end,) = delivered.get(path.name, [0])
    with path.open("rb") as file:
        file.seek(end)
        for line in file:
            if not line.endswith(b"\n"):
                return  # The line is still being written.
            try:
                row = parse_json(line)
            except ValueError as error:
                raise DataError(f"{path}, byte {end}: {error}. Every line must be a JSON object.") from error
            end += len(line)
            yield row, end


def _episodes(run: Path, delivered: Mapping[str, list[int]]) -> Iterator[Episodes]:
    files = [(path.stat().st_mtime_ns, path) for path in (run / "trajectories").glob("*-*.jsonl")]
    for version, path in sorted(files):
        name = f"trajectories/{path.name}"
        split, _, step = path.stem.rpartition("-")
        known, done = delivered.get(name, [0, 0])
        # If the file was replaced, a resumed run repeated its step, and the episodes are new.
        done = done if known == version else 0
        if known == version and done < 0:
            continue
        trajectories = read_trajectories(path)
        for place in range(done, len(trajectories), EPISODES_AT_ONCE):
            end = place + EPISODES_AT_ONCE
            # A negative number means that the whole file was delivered.
            mark = [version, end if end < len(trajectories) else -1]
            yield Episodes(
                name=name,
                mark=mark,
                split=split,
                step=int(step) if step.isdigit() else 0,
                stored=version / 1e9,
                start=place,
                trajectories=tuple(trajectories[place:end]),
            )
