"""Pass each call to several trackers. A tracker that fails causes a warning, but stops neither the run nor the other
trackers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

from sparring.protocols import Tracker
from sparring.runtime.logs import get_logger
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)


@final
class FanOut:
    """Calls each tracker in order. A failing tracker is reported once and still receives later calls."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)
        self._warned: set[int] = set()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.log_metrics(step, metrics))

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None:
        self._each(lambda tracker: tracker.log_groups(step, groups, split=split))

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        self._each(lambda tracker: tracker.log_finding(finding))

    def log_artifact(self, name: str, content: Json) -> None:
        self._each(lambda tracker: tracker.log_artifact(name, content))

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        self._each(lambda tracker: tracker.log_status(status, reason=reason))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for index, tracker in enumerate(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # noqa: BLE001 - a tracker's error must not stop the run
                if index not in self._warned:
                    self._warned.add(index)
                    logger.warning(
                        "tracking: %s failed (%r); the run continues without that data",
                        type(tracker).__name__,
                        error,
                    )
