"""Counts what each key and each address has used. The counts are in memory, so they restart with the server."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import final

from sparring.web.keys import NamedKey

MINUTE = 60.0
DAY = 86_400.0
MOST_FAILURES = 10
"""The number of wrong keys of one address in a minute, after which it gets status 429."""
MOST_ADDRESSES = 4096
"""The number of addresses whose failures are counted. Those with the oldest ones are forgotten first."""


@final
class Used:
    """What one key has used: its requests of the last minute, its tokens of this day (in UTC), its requests in progress."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()
        self._day, self._num_tokens = 0, 0
        self.num_open = 0

    def find_excess(self, key: NamedKey, now: float) -> tuple[str, int] | None:
        """Return the limit that one more request would exceed, and in how many seconds it may be sent. Count the request
        and return None otherwise."""
        while self._times and self._times[0] <= now - MINUTE:
            self._times.popleft()
        self._turn_day(now)
        if key.connections is not None and self.num_open >= key.connections:
            return f"connections = {key.connections}", 1
        if key.tokens_per_day is not None and self._num_tokens >= key.tokens_per_day:
            return f"tokens_per_day = {key.tokens_per_day}", int(DAY - now % DAY) + 1
        if key.requests_per_minute is not None:
            if len(self._times) >= key.requests_per_minute:
                return f"requests_per_minute = {key.requests_per_minute}", int(self._times[0] + MINUTE - now) + 1
            self._times.append(now)
        self.num_open += 1
        return None

    def end(self, num_tokens: int, now: float) -> None:
        """Count the tokens of a request that has ended."""
        self._turn_day(now)
        self.num_open -= 1
        self._num_tokens += num_tokens

    def _turn_day(self, now: float) -> None:
        if (day := int(now // DAY)) != self._day:
            self._day, self._num_tokens = day, 0


@final
class Failures:
    """The requests with wrong keys, by address."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def add(self, address: str, now: float) -> int:
        """Count a failure. Return 0, or in how many seconds the address may fail again if it has failed too often."""
        times = self._times.setdefault(address, deque(maxlen=MOST_FAILURES))
        self._times.move_to_end(address)
        if len(self._times) > MOST_ADDRESSES:
            self._times.popitem(last=False)
        if len(times) == MOST_FAILURES and times[0] > now - MINUTE:
            return int(times[0] + MINUTE - now) + 1
        times.append(now)
        return 0
