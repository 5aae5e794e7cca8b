"""Tell several trackers the same; one that fails costs a warning, never the run or the other trackers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

from sparring.logs import get_logger
from sparring.protocols import Tracker
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)


@final
class FanOut:
    """Passes every call on to each tracker in order. A failing one is warned about once and told of later calls too."""

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
            except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the run goes on
                if index not in self._warned:
                    self._warned.add(index)
                    logger.warning(
                        "tracking: %s failed (%r); the run goes on, with a gap there", type(tracker).__name__, error
                    )
