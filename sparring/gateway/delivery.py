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

Sample: TypeAlias = Callable[[Callable[[int, int], None]], Awaitable[Sequence[Turn]]]
"""Samples a request's answers; calls back with (answer, token) for each token, from any thread."""


@final
class Delivery:
    """One request's answers. Sampling is given up when the last client that waits for them hangs up; what was sampled by
    then is recorded whatever happens, and kept for a client that asks again."""

    def __init__(
        self, session: AnySession, sample: Sample, *, id: str, on_arrived: Callable[[Sequence[Turn]], None]
    ) -> None:
        """`on_arrived` is called each time that a client has got all of the answers."""
        self.id = id
        self._session = session
        self._on_arrived = on_arrived
        self._loop = asyncio.get_running_loop()
        self._tokens: list[tuple[int, int]] = []
        self._is_over = False
        self._news = asyncio.Event()
        self._num_waiting = 0
        self._is_sampled = self._is_given_up = self._has_arrived = False
        self._playing = asyncio.ensure_future(self._play(sample))
        self._playing.add_done_callback(self._end)

    @property
    def is_lost(self) -> bool:
        """Whether it was sampled, and no client has it or waits for it."""
        return self._is_sampled and self.is_alive and not self._has_arrived and self._num_waiting == 0

    @property
    def is_alive(self) -> bool:
        """Whether it is played, or is being played."""
        if not self._playing.done():
            return not self._is_given_up
        return not self._playing.cancelled() and self._playing.exception() is None

    async def __aenter__(self) -> Self:
        """While a client waits."""
        self._num_waiting += 1
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._num_waiting -= 1
        if self._num_waiting == 0 and not self._playing.done():
            if not self._is_sampled:
                self._is_given_up = True
                self._playing.cancel()
            await asyncio.wait([self._playing])

    def arrived(self) -> None:
        """A client that waited has got all of the answers."""
        self._has_arrived = True
        self._on_arrived(self._playing.result())

    async def turns(
        self, given_up: asyncio.Future[None] | None = None, *, seconds: float | None = None
    ) -> Sequence[Turn] | None:
        """The turns when they are recorded; None when `given_up` comes first, or so many seconds pass. Raises what the
        session raises."""
        waited = [self._playing] if given_up is None else [self._playing, given_up]
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        is_given_up = given_up is not None and given_up.done()
        return None if is_given_up or not self._playing.done() else self._playing.result()

    async def sampled(self, given_up: asyncio.Future[None]) -> AsyncGenerator[list[tuple[int, int]], None]:
        """(answer, token) from the first on, in bunches as they come, until the play is over or `given_up` is done."""
        given_up.add_done_callback(lambda _: self._news.set())
        seen = 0
        while not given_up.done():
            if seen < len(self._tokens):
                bunch, seen = self._tokens[seen:], len(self._tokens)
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
        self._tokens.append(sampled)
        self._news.set()

    async def _play(self, sample: Sample) -> Sequence[Turn]:
        turns = await sample(self._on_token)
        self._is_sampled = True
        await self._session.recorded([turn.id for turn in turns])
        return turns

    def _end(self, playing: asyncio.Task[Sequence[Turn]]) -> None:
        if not playing.cancelled():
            playing.exception()  # seen, also where no client waits for it
        self._is_over = True
        self._news.set()
