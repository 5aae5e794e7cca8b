"""What became of attempts at episodes, and what they waited for, since somebody last asked."""

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
"""Reasons for which a collector gives an attempt up, a stopped run's apart."""
WAITS = ("queue", "judge", "backoff")
"""For a place beside others, for reward and scorer, before an attempt is made again."""


@final
class Tally:
    """Counts attempts of training episodes. One thread adds and reads."""

    def __init__(self) -> None:
        self._forget()

    def attempted(self, *, again: bool) -> None:
        self._num_attempts += 1
        self._num_retries += again

    def discarded(self, reason: DiscardReason) -> None:
        self._discards[reason] += 1

    def waited(self, cause: str, seconds: float) -> None:
        self._seconds[cause] += seconds

    def take(self) -> dict[str, float]:
        """Counts and mean waiting times by metric name; from here on they start at 0 again."""
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
