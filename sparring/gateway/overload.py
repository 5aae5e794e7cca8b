"""How many requests may be answered at once; who asks for more is told to come again."""

from __future__ import annotations

from typing import Self, final

from sparring.gateway.request import ApiError

MAX_IN_FLIGHT = 1024
"""Requests of all episodes together: far above what a run plays at once, so that it only bounds memory."""
MAX_IN_FLIGHT_PER_EPISODE = 64
"""As many answers as one request may ask for."""
_RETRY_AFTER_SECONDS = 1


@final
class InFlight:
    """Requests that are being read, played or sent."""

    def __init__(self, most: int, *, of: str, within: InFlight | None = None) -> None:
        """`of` says in the refusal whose requests they are; they also count as those that they are `within`."""
        self._most = most
        self._of = of
        self._within = within
        self._num = 0

    def admitted(self) -> Self:
        """A context while a request is answered. Raises ApiError 429 when there are as many as there may be."""
        if self._num >= self._most:
            raise ApiError(
                429, f"{self._of} has {self._num} requests under way, and {self._most} are answered at once; ask again in "
                f"{_RETRY_AFTER_SECONDS} s, or ask for less at a time.",
                code="rate_limit_exceeded", retry_after=_RETRY_AFTER_SECONDS,
            )  # fmt: skip
        if self._within is not None:
            self._within.admitted()
        return self

    def __enter__(self) -> Self:
        self._num += 1
        if self._within is not None:
            self._within.__enter__()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._num -= 1
        if self._within is not None:
            self._within.__exit__()
