"""What the gateway refused of an episode's requests, and what that makes of the episode."""

from __future__ import annotations

from collections import Counter
from typing import final

from sparring.errors import ClientError, OutputRefused

MOST_REASONS = 24
"""Reasons that are counted by name; later ones count as `other`, since names in them come from outside."""


@final
class Refusals:
    """Those of one session. The gateway writes them; an agent that plays in process has none."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()
        """Requests that were refused."""
        self.not_read: Counter[str] = Counter()
        """Requests that were accepted with a field that is not read, by the field."""
        self.failure: ClientError | OutputRefused | None = None
        """How the last request was refused; None when it was accepted."""

    def refuse(self, reason: str, failure: ClientError | OutputRefused | None) -> None:
        """A request was refused; None: one that asked for no turn. What a client makes of a refusal of the policy's output is
        still the policy's doing."""
        count(self.by_reason, reason)
        if failure is not None and not isinstance(self.failure, OutputRefused):
            self.failure = failure

    def accept(self) -> None:
        """A request was answered: it is the last one now."""
        self.failure = None

    def add(self, other: Refusals) -> None:
        """Count those of another session too."""
        for mine, others in ((self.by_reason, other.by_reason), (self.not_read, other.not_read)):
            for name, number in others.items():
                count(mine, name, number)

    def leave_unread(self, fields: tuple[str, ...]) -> None:
        """A request was accepted, and these of its fields are not read."""
        for field in fields:
            count(self.not_read, field)


def count(counts: Counter[str], name: str, number: int = 1) -> None:
    """Add to a counter that holds a bounded number of names."""
    counts[name if name in counts or len(counts) < MOST_REASONS else "other"] += number
