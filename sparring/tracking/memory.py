"""A tracker for tests that keeps everything in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from sparring.types import Json, TrajectoryGroup


@final
class MemoryTracker:
    """Keeps all logged values in lists, in order."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.groups: list[tuple[int, str, tuple[TrajectoryGroup, ...]]] = []
        """(step, split, groups)"""
        self.findings: list[dict[str, Json]] = []
        self.artifacts: dict[str, Json] = {}
        self.statuses: list[tuple[str, str | None]] = []
        """(status, reason)"""
        self.is_closed = False

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.append((step, dict(metrics)))

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None:
        self.groups.append((step, split, tuple(groups)))

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        self.findings.append(dict(finding))

    def log_artifact(self, name: str, content: Json) -> None:
        self.artifacts[name] = content

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        self.statuses.append((status, reason))

    def close(self) -> None:
        self.is_closed = True
