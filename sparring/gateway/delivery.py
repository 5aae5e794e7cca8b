"""Answers on their way: each is played once, is durable before its first byte leaves, and survives a lost connection.

A client whose connection broke asks again. Played anew, its first turn would stay behind as a branch that nobody
continued; so what was recorded and never arrived is given once more (docs/gateway.md, "Retries").
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Self, TypeAlias, final

from sparring.sessions import AnySession
from sparring.types import Turn

Play: TypeAlias = Callable[[Callable[[int, int], None]], Awaitable[Sequence[Turn]]]
"""Plays a request's answers; calls back with (answer, token) for each token, from any thread."""


@final
class Delivery:
    """One request's answers. They are given up when the last client that waits for them hangs up."""

    def __init__(self, session: AnySession, play: Play, *, id: str) -> None:
        self.id = id
        self.is_delivered = False
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._sampled: list[tuple[int, int]] = []
        self._is_over = False
        self._news = asyncio.Event()
        self._num_waiting = 0
        self._playing = asyncio.ensure_future(play(self._on_token))
        self._playing.add_done_callback(lambda _: self._end())

    @property
    def is_lost(self) -> bool:
        """Whether it was played to its end, and no client has it."""
        return self.is_played and not self.is_delivered and self._num_waiting == 0

    @property
    def is_played(self) -> bool:
        done = self._playing.done() and not self._playing.cancelled()
        return done and self._playing.exception() is None

    @property
    def is_alive(self) -> bool:
        """Whether it is played, or is being played."""
        return self.is_played or not self._playing.done()

    async def __aenter__(self) -> Self:
        """While a client waits; after the last one the play is cancelled, or its turns count as not received."""
        self._num_waiting += 1
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._num_waiting -= 1
        if self._num_waiting == 0:
            if not self._playing.done():
                self._playing.cancel()
                await asyncio.gather(self._playing, return_exceptions=True)
            if self.is_played:
                self._session.set_received([turn.id for turn in self._playing.result()], is_received=self.is_delivered)

    async def turns(
        self, given_up: asyncio.Future[None] | None = None, *, seconds: float | None = None
    ) -> Sequence[Turn] | None:
        """The turns when they are recorded; None when `given_up` comes first, or so many seconds pass. Raises what the
        session raises."""
        waited = [self._playing] if given_up is None else [self._playing, given_up]
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        is_given_up = given_up is not None and given_up.done()
        return None if is_given_up or not self._playing.done() else self._playing.result()

    async def sampled(self) -> AsyncGenerator[list[tuple[int, int]], None]:
        """(answer, token) from the first on, in bunches as they come, until the play is over."""
        seen = 0
        while True:
            if seen < len(self._sampled):
                bunch, seen = self._sampled[seen:], len(self._sampled)
                yield bunch
            elif self._is_over:
                return
            else:
                self._news.clear()
                await self._news.wait()

    def _on_token(self, answer: int, token: int) -> None:
        # Engines may report tokens from a thread of theirs.
        self._loop.call_soon_threadsafe(self._note, (answer, token))

    def _note(self, sampled: tuple[int, int]) -> None:
        self._sampled.append(sampled)
        self._news.set()

    def _end(self) -> None:
        self._is_over = True
        self._news.set()
