"""Delivery of answers. Each answer is sampled once, is on disk before its first byte is sent, and survives a lost
connection.

A client whose connection broke repeats its request. If the gateway sampled again, the first turn would become a branch
without a continuation. An answer that was recorded but not received is therefore sent again (docs/gateway.md,
"Retries").
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Self, TypeAlias, final

from sparring.sessions import AnySession
from sparring.types import Turn

Sample: TypeAlias = Callable[[Callable[[int, int], None]], Awaitable[Sequence[Turn]]]
"""A function that samples the answers to a request. For each token, it calls its argument with (answer, token), from
any thread."""


@final
class Delivery:
    """The answers to one request. Sampling is cancelled when the last waiting client disconnects. Answers that are
    complete by then are still recorded, and kept for a client that repeats the request."""

    def __init__(
        self, session: AnySession, sample: Sample, *, id: str, on_arrived: Callable[[Sequence[Turn]], None]
    ) -> None:
        """Create a delivery. `on_arrived` is called each time a client has received all answers."""
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
        """Whether the answers are sampled, but no client has received them and none is waiting for them."""
        return self._is_sampled and self.is_alive and not self._has_arrived and self._num_waiting == 0

    @property
    def is_alive(self) -> bool:
        """Whether the answers are being sampled or were sampled successfully."""
        if not self._playing.done():
            return not self._is_given_up
        return not self._playing.cancelled() and self._playing.exception() is None

    async def __aenter__(self) -> Self:
        """Count a waiting client until the context ends."""
        self._num_waiting += 1
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._num_waiting -= 1
        if self._num_waiting == 0 and not self._playing.done():
            if not self._is_sampled:
                self._is_given_up = True
                self._playing.cancel()
            await asyncio.wait([self._playing])

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the prompt and of the answers, or of those that were sampled before a failure."""
        if not self._playing.done() or not self.is_alive:
            return len(self._tokens)
        turns = self._playing.result()
        return turns[0].num_prompt_tokens + sum(turn.num_sampled_tokens for turn in turns)

    def arrived(self) -> None:
        """Record that a waiting client has received all answers."""
        self._has_arrived = True
        self._on_arrived(self._playing.result())

    async def turns(
        self, given_up: asyncio.Future[None] | None = None, *, seconds: float | None = None
    ) -> Sequence[Turn] | None:
        """Wait until the turns are recorded, and return them. Return None if `given_up` is done first, or after
        `seconds` seconds. Raises any error that the session raises."""
        waited = [self._playing] if given_up is None else [self._playing, given_up]
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        is_given_up = given_up is not None and given_up.done()
        return None if is_given_up or not self._playing.done() else self._playing.result()

    async def sampled(self, given_up: asyncio.Future[None]) -> AsyncGenerator[list[tuple[int, int]], None]:
        """Yield lists of (answer, token) pairs as the tokens arrive, starting with the first token, until sampling ends
        or `given_up` is done."""
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
        # Engines may report tokens from their own thread.
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
        # The error is retrieved even if no client waits for it. Its frames have the messages of the request, which it would keep
        # as long as this delivery. The traceback of a CancelledError has this frame, so no variable may keep the error.
        try:
            if (error := playing.exception()) is not None:
                traceback.clear_frames(error.__traceback__)
        except asyncio.CancelledError as cancelled:
            traceback.clear_frames(cancelled.__traceback__)
        self._is_over = True
        self._news.set()
