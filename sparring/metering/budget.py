"""The money that a run has spent, and whether one more step would exceed its limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import final


@final
class Budget:
    """Adds up the cost of steps and compares it with `limits.max_cost`."""

    def __init__(
        self, max_cost: float | None, *, spent: float = 0.0, endpoint_cost: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Create a budget.

        `spent` is the cost of the earlier steps of a resumed run. `endpoint_cost` returns the cost of all requests to
        endpoints so far.
        """
        self._max_cost = max_cost
        self._spent, self._last = spent, 0.0
        self._endpoint_cost = endpoint_cost
        self._total = self._count()

    def add(self, cost: float) -> None:
        """Add the cost of a finished step."""
        self._spent += cost
        total = self._count()
        self._last, self._total = total - self._total, total

    @property
    def is_used_up(self) -> bool:
        """Whether another step as expensive as the last one would exceed the limit."""
        return self._max_cost is not None and self._total + self._last > self._max_cost

    def _count(self) -> float:
        # The file of requests is read only if there is a limit.
        return self._spent if self._max_cost is None else self._spent + self._endpoint_cost()
