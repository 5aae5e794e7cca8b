"""The limit of requests that are answered at once. Further requests get status 429."""

from __future__ import annotations

from typing import Self, final

from sparring.gateway.request import ApiError

MAX_IN_FLIGHT = 1024
"""The most requests of all episodes together: far more than a run has at once, so that it only bounds memory."""
MAX_IN_FLIGHT_PER_EPISODE = 64
"""The most answers that one request may ask for."""
_RETRY_AFTER_SECONDS = 1


@final
class InFlight:
    """Counts the requests that are being read, sampled or sent."""

    def __init__(self, most: int, *, of: str, within: InFlight | None = None) -> None:
        """Create a counter. `of` names the owner of the requests in error messages; requests also count for `within`."""
        self._most = most
        self._of = of
        self._within = within
        self._num = 0

    def admitted(self) -> Self:
        """Return a context for the time of one request. Raises ApiError 429 when the limit is reached."""
        if self._num >= self._most:
            raise ApiError(
                429,
                f"{self._of} has {self._num} requests in progress, and {self._most} are answered at once; send it again in "
                f"{_RETRY_AFTER_SECONDS} s, or send fewer at a time.",
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
