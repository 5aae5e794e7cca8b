"""The queue of episodes for workers. Workers poll the queue over HTTP and hold episodes under leases that they must
renew.

The queue serves agents that can only open outgoing connections. An offer is taken at most once. If the worker gives the
offer back or does not renew its lease, the offer is lost. Its owner then decides whether to make another offer
(`sparring.agents.pull`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, final

import pydantic

from sparring.gateway.dialects.validation import Strict
from sparring.gateway.request import ApiError
from sparring.types import Json
from sparring.web.gate import Gate
from sparring.web.keys import Keys, single_key

LEASE_SECONDS = 60.0
"""The duration of a lease in seconds: long enough for a turn of a slow policy, and short enough that a dead worker
costs little."""


class Poll(Strict):
    """The body of a request for an episode."""

    wait_seconds: Annotated[pydantic.FiniteFloat, pydantic.Field(ge=0, le=30)] = 20.0
    """The maximum time to wait for an episode. Its upper limit is shorter than the usual timeouts of proxies and
    clients."""
    endpoint: Annotated[str, pydantic.Field(pattern=r"^https?://[^/\s]+", max_length=1000)] | None = None
    """The address at which the worker reaches the gateway, if it differs from the request's own address."""


class Release(Strict):
    """The body of a request that gives an episode back."""

    error: Annotated[str, pydantic.Field(max_length=10_000)] = ""


@final
class Offer:
    """An episode that is offered to one worker."""

    def __init__(self, invitation: Callable[[str], Json]) -> None:
        self.invitation = invitation
        self.is_taken = False
        self.lease_id: str | None = None
        """The id of the current lease, or None if no worker has the episode."""
        self.is_expired = False
        """Whether the offer's worker stopped renewing the lease instead of giving the episode back."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The reason why the worker no longer has the episode. The future is done as soon as the worker has lost it."""


@dataclass(slots=True)
class _Lease:
    offer: Offer
    expires: float
    watch: asyncio.Task[None] | None = None


@final
class WorkQueue:
    """The offers in order, and the leases of taken offers. `gate` admits workers."""

    def __init__(
        self,
        workers: str | Gate,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: secrets.token_urlsafe(16),
    ) -> None:
        """Create a queue for workers with one key, of which only a hash is stored, or for those that a gate admits."""
        self.gate = workers if isinstance(workers, Gate) else Gate("queue", Keys([single_key(workers, "work")]))
        self.lease_seconds = lease_seconds
        self._clock = clock
        self._sleep = sleep
        self._new_id = new_id
        self._waiting: OrderedDict[Offer, None] = OrderedDict()
        self._polls: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        """The polls that wait for an offer. An offer wakes only the oldest one."""
        self._leases: dict[str, _Lease] = {}
        self.is_polled = False
        """Whether any worker has ever requested an episode."""

    def offer(self, invitation: Callable[[str], Json]) -> Offer:
        """Add an episode to the end of the queue. `invitation` returns the message for the worker, given the gateway's
        address."""
        offer = Offer(invitation)
        self._waiting[offer] = None
        self._wake_poll()
        return offer

    def withdraw(self, offer: object) -> None:
        """Withdraw an offer. No worker can take it anymore, and its lease ends."""
        assert isinstance(offer, Offer), "only what `offer` returned is withdrawn"
        self._waiting.pop(offer, None)
        if offer.lease_id is not None:
            self._end(offer.lease_id)

    async def lease(self, wait_seconds: float, endpoint: str) -> Mapping[str, Json] | None:
        """Lease the oldest offer and return the message for the worker, or return None if no offer arrives in time."""
        self.is_polled = True
        patience = asyncio.ensure_future(self._sleep(wait_seconds))
        try:
            while not self._waiting and not patience.done():
                await self._news(patience)
        finally:
            patience.cancel()
        return self._taken(self._waiting.popitem(last=False)[0], endpoint) if self._waiting else None

    def renew(self, lease_id: str) -> None:
        """Extend a lease to `lease_seconds` from now. Raises ApiError 404 for an expired lease."""
        self._held(lease_id).expires = self._clock() + self.lease_seconds

    def release(self, lease_id: str, error: str = "") -> None:
        """Give an episode back. Raises ApiError 404 for an expired lease."""
        self._lose(lease_id, f"gave it back: {error}" if error else "gave it back")

    async def _news(self, patience: asyncio.Future[None]) -> None:
        """Wait until an offer wakes this poll, or until `patience` is done."""
        poll: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._polls[poll] = None
        try:
            await asyncio.wait({patience, poll}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if poll.done() and self._waiting:
                self._wake_poll()  # another poll takes the offer that woke this one
            raise
        finally:
            self._polls.pop(poll, None)

    def _wake_poll(self) -> None:
        if self._polls:
            self._polls.popitem(last=False)[0].set_result(None)

    def _taken(self, offer: Offer, endpoint: str) -> Mapping[str, Json]:
        offer.is_taken = True
        offer.lease_id = lease_id = self._new_id()
        lease = _Lease(offer, self._clock() + self.lease_seconds)
        lease.watch = asyncio.ensure_future(self._watch(lease_id, lease))
        self._leases[lease_id] = lease
        return {
            "lease_id": lease_id,
            "lease_seconds": self.lease_seconds,
            "invocation": offer.invitation(endpoint),
        }

    async def _watch(self, lease_id: str, lease: _Lease) -> None:
        while (left := lease.expires - self._clock()) > 0:
            await self._sleep(left)
        lease.offer.is_expired = True
        self._lose(lease_id, f"did not renew its lease within {self.lease_seconds:g} s")

    def _lose(self, lease_id: str, reason: str) -> None:
        lost = self._held(lease_id).offer.lost
        self._end(lease_id)
        lost.set_result(reason)

    def _end(self, lease_id: str) -> None:
        lease = self._leases.pop(lease_id)
        lease.offer.lease_id = None
        watch = lease.watch
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()

    def _held(self, lease_id: str) -> _Lease:
        if lease_id not in self._leases:
            raise ApiError(
                404,
                "This lease has expired: its episode has ended, or the lease was not renewed in time. Stop that episode, "
                "and lease another.",
                code="lease_over",
            )
        return self._leases[lease_id]
