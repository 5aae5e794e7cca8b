"""What the gateway knows of one episode besides its session: answers on their way, conversations, what is reported."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

from sparring.gateway.delivery import Delivery
from sparring.gateway.report import EpisodeReport
from sparring.gateway.request import ApiError, Asked
from sparring.sessions import Session
from sparring.types import Message, Sampling, Turn

Conversations: TypeAlias = MutableMapping[str, tuple[Message, ...]]
"""What was said up to each answer that is kept, the answer included, by the answer's id."""


@final
class OpenEpisode:
    """A session with its door open."""

    def __init__(self, session: Session, conversations: Conversations | None = None) -> None:
        """Without `conversations` it has its own, so that no other episode goes on from them."""
        self.session = session
        self.report = EpisodeReport(lambda: session.turns)
        self._last: dict[bytes, Delivery] = {}
        """The last answer to each request body."""
        self._conversations: Conversations = {} if conversations is None else conversations
        self._numbers = itertools.count()

    def deliver(self, asked: Asked, body: bytes, *, prefix: str, is_retry: bool) -> Delivery:
        """The answer to a request: again the one that got lost on its way, or else a new one.

        A request that says that it is a retry gets the last answer to the same body even if it seemed to have arrived,
        and joins one that is still played. Without that word, equal requests are deliberate: each is sampled anew.
        Raises ApiError 400 for an earlier answer that is not known, 409 once the episode takes no more turns.
        """
        self.report.check_open()
        digest = hashlib.blake2b(body, digest_size=16).digest()
        last = self._last.get(digest)
        if last is not None and (last.is_lost or (is_retry and last.is_alive)):
            return last
        so_far = self._conversation(asked)
        answer_id = f"{prefix}{self.session.id}-{next(self._numbers)}"

        async def play(on_token: Callable[[int, int], None]) -> Sequence[Turn]:
            turns = await self.report.while_open(_played(self.session, asked, so_far, on_token))
            if asked.is_kept:
                self._conversations[answer_id] = (*so_far, turns[0].message)
            return turns

        self._last[digest] = Delivery(self.session, play, id=answer_id)
        return self._last[digest]

    def _conversation(self, asked: Asked) -> tuple[Message, ...]:
        """The messages so far, without instructions."""
        if asked.previous is None:
            return tuple(asked.messages)
        if asked.previous not in self._conversations:
            raise ApiError(
                400, f"The answer {asked.previous[:80]!r} is not kept here: it is of another episode or server, was not to be "
                "stored, or has been forgotten since. "
                "Send the whole conversation instead.",
                code="previous_response_not_found", param="previous_response_id",
            )  # fmt: skip
        return (*self._conversations[asked.previous], *asked.messages)


async def _played(
    session: Session, asked: Asked, so_far: Sequence[Message], on_token: Callable[[int, int], None]
) -> list[Turn]:
    """The turns of a request, one for each answer that it asks for."""
    instructions: list[Message] = []
    if asked.instructions is not None:
        instructions.append({"role": "system", "content": asked.instructions})

    def play(index: int) -> Coroutine[Any, Any, Turn]:
        return session.play(
            [*instructions, *so_far], asked.tools, sampling=_sampling(asked, session.sampling), stop_texts=asked.stop,
            on_token=(lambda token: on_token(index, token)) if asked.stream else None,
        )  # fmt: skip

    if asked.num_answers == 1:
        return [await play(0)]
    playing = [asyncio.ensure_future(play(index)) for index in range(asked.num_answers)]
    try:
        return list(await asyncio.gather(*playing))
    finally:
        for one in playing:
            one.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


def _sampling(asked: Asked, own: Sampling) -> Sampling:
    """What the client asked for; of tokens never more than the session allows."""
    return replace(
        own,
        temperature=own.temperature if asked.temperature is None else asked.temperature,
        top_p=own.top_p if asked.top_p is None else asked.top_p,
        max_tokens=min(own.max_tokens, asked.max_tokens or own.max_tokens),
    )
