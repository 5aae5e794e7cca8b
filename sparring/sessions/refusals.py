"""The requests of an episode that the gateway refused, and the failure of the episode that results from them."""

from __future__ import annotations

from collections import Counter
from typing import final

from sparring.errors import ClientError, OutputRefused

MOST_REASONS = 24
"""The maximum number of reasons that are counted by name. Further reasons count as `other`, since clients choose the
names in them."""


@final
class Refusals:
    """The refused requests of one session. The gateway adds them. If the agent runs in this process, its session has
    none."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()
        """The number of refused requests, by reason."""
        self.not_read: Counter[str] = Counter()
        """The number of accepted requests with a field that the gateway ignored, by field."""
        self.failure: ClientError | OutputRefused | None = None
        """The error of the last request if it was refused, or None if it was accepted."""

    def refuse(self, reason: str, failure: ClientError | OutputRefused | None) -> None:
        """Count a refused request. `failure` is None if the request was not for a turn. Once the policy's output was
        refused (OutputRefused), later refusals do not replace that failure: the policy remains the cause."""
        count(self.by_reason, reason)
        if failure is not None and not isinstance(self.failure, OutputRefused):
            self.failure = failure

    def accept(self) -> None:
        """Clear the failure after a request has been answered."""
        self.failure = None

    def add(self, other: Refusals) -> None:
        """Add the counts of another session."""
        for mine, others in ((self.by_reason, other.by_reason), (self.not_read, other.not_read)):
            for name, number in others.items():
                count(mine, name, number)

    def leave_unread(self, fields: tuple[str, ...]) -> None:
        """Count the fields that the gateway ignored in an accepted request."""
        for field in fields:
            count(self.not_read, field)


def count(counts: Counter[str], name: str, number: int = 1) -> None:
    """Add to a counter that contains at most MOST_REASONS names, and `other` for the rest."""
    counts[name if name in counts or len(counts) < MOST_REASONS else "other"] += number
