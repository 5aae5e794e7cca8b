"""Counts of attempts at episodes for each way of ending, and their waiting times, since the last call of `take`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import final

from sparring.ledger import DiscardReason

COUNTED = (
    DiscardReason.INFRA_ERROR,
    DiscardReason.ENV_TIMEOUT,
    DiscardReason.CLIENT_ERROR,
    DiscardReason.REWARD_ERROR,
    DiscardReason.GROUP_INCOMPLETE,
)
"""The reasons for which a collector discards an attempt, except a stop of the run."""
WAITS = ("queue", "reward", "backoff")
"""The causes of waiting: for a free slot, for the reward and the scorer, and before a retry."""


@final
class AttemptCounts:
    """Counts attempts at training episodes. Only one thread may use it."""

    def __init__(self) -> None:
        self._forget()

    def attempted(self, *, again: bool) -> None:
        """Count an attempt; `again` marks a retry."""
        self._num_attempts += 1
        self._num_retries += again

    def discarded(self, reason: DiscardReason) -> None:
        """Count an attempt that was discarded."""
        self._discards[reason] += 1

    def waited(self, cause: str, seconds: float) -> None:
        """Add waiting time."""
        self._seconds[cause] += seconds

    def take(self) -> dict[str, float]:
        """Return the counts and the mean waiting times, keyed by metric name, and reset them to 0."""
        failed = self._discards[DiscardReason.INFRA_ERROR] + self._discards[DiscardReason.ENV_TIMEOUT]
        metrics = {
            "rollout/attempts": float(self._num_attempts),
            "rollout/retries": float(self._num_retries),
            "rollout/failed_attempts": float(failed),
            **{f"rollout/discarded/{reason}": float(self._discards[reason]) for reason in COUNTED},
            **{f"timing_s/episode/{cause}": self._seconds[cause] / max(1, self._num_attempts) for cause in WAITS},
        }
        self._forget()
        return metrics

    def _forget(self) -> None:
        self._num_attempts = self._num_retries = 0
        self._discards: Counter[DiscardReason] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
