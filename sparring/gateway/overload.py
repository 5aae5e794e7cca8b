"""Limits on what the requests of one episode or server take: their number at the same time, beyond which they get status 429,
and the time for reading them, for which they wait."""

from __future__ import annotations

from typing import Self, final

from sparring.gateway.request import ApiError
from sparring.runtime.shares import CoreShare

MAX_IN_FLIGHT = 1024
"""The maximum number of concurrent requests of all episodes together. It is far more than a run needs, so it only
limits memory."""
MAX_IN_FLIGHT_PER_EPISODE = 64
"""The maximum number of concurrent requests of one episode. `n`, the number of answers in one request, has the same
maximum."""
_RETRY_AFTER_SECONDS = 1


@final
class InFlight:
    """Counts the requests that are currently being read, sampled or sent."""

    def __init__(self, most: int, *, of: str, within: InFlight | None = None, share: CoreShare | None = None) -> None:
        """Create a counter. In error messages, `of` identifies the owner of the requests. Requests also count toward
        the limit of `within`. `share` limits the time for reading and tokenizing them; None is no limit."""
        self.share = share
        self._most = most
        self._of = of
        self._within = within
        self._num = 0

    def admitted(self) -> Self:
        """Return a context for the duration of one request. Raises ApiError 429 if the limit is reached."""
        if self._num >= self._most:
            raise ApiError(
                429,
                f"{self._of} has {self._num} requests in progress, and the limit is {self._most}. Repeat the request in "
                f"{_RETRY_AFTER_SECONDS} s, or send fewer concurrent requests.",
                code="rate_limit_exceeded",
                retry_after=_RETRY_AFTER_SECONDS,
            )
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
