"""The gateway's state for one episode, in addition to the episode's session: deliveries, conversations and the agent's
report."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, final

from sparring.errors import ConstraintError
from sparring.gateway.delivery import Delivery
from sparring.gateway.overload import MAX_IN_FLIGHT_PER_EPISODE, InFlight
from sparring.gateway.report import EpisodeReport
from sparring.gateway.request import ApiError, Asked, Kept
from sparring.runtime.shares import CoreShare
from sparring.sessions import AnySession, MessageSession
from sparring.types import Message, Sampling, Turn

Conversations: TypeAlias = MutableMapping[str, Kept]
"""Conversations by the ids of their answers."""


@final
class OpenEpisode:
    """A session that is reachable through the gateway."""

    def __init__(
        self,
        session: AnySession,
        report: EpisodeReport | None = None,
        conversations: Conversations | None = None,
        within: InFlight | None = None,
        model: str | None = None,
        share: CoreShare | None = None,
    ) -> None:
        """Open a session. `report` and `share` are shared by the sessions of an episode; the report's rewards per turn apply to
        the turns used for learning. Without `conversations`, the episode has its own conversations, which no other episode can
        continue. Answers name `model`, or the model of their request."""
        self.session = session
        self.model = model
        self.report = report or EpisodeReport(lambda: [turn for turn in session.episode_turns if turn.learns])
        self.in_flight = InFlight(
            MAX_IN_FLIGHT_PER_EPISODE, of="The episode", within=within, share=share or CoreShare()
        )
        self.refused: Counter[bytes] = Counter()
        """The number of requests that got status 429 and were not repeated yet, by the digest of their body."""
        self._last: dict[bytes, Delivery] = {}
        """The last delivery for each request body, by its digest."""
        self._conversations: Conversations = {} if conversations is None else conversations
        self._numbers = itertools.count()

    def deliver(self, asked: Asked, body: bytes, *, prefix: str, is_retry: bool, client: str) -> Delivery:
        """Return the delivery for a request: an earlier one whose answer was lost, otherwise a new one.

        A request that is marked as a retry gets the last answer to the same body, even if that answer appears to have
        been received. If that answer is still being sampled, the request waits for it. Equal requests without the mark
        are deliberate, and each is sampled again. Raises ApiError 404 for an unknown earlier answer or item, 400 if
        log-probabilities are unknown, and 409 if the episode accepts no more turns.
        """
        self.report.check_open()
        if asked.wants_logprobs and isinstance(self.session, MessageSession):
            raise ApiError(
                400,
                "logprobs=true is not supported: the policy returns messages without tokens. Remove logprobs.",
                code="unsupported_parameter",
                param="logprobs",
            )
        digest = body_digest(body).digest()
        if is_retry and self.refused[digest] > 0:
            # The refused request was never sampled, so an answer to an equal request does not belong to it.
            self.refused[digest] -= 1
            is_retry = False
        last = self._last.get(digest)
        if last is not None and (last.is_lost or (is_retry and last.is_alive)):
            self.session.refusals.accept()
            return last
        so_far = self._conversation(asked)
        if asked.is_thread and asked.previous is not None:
            thread = self._conversations[asked.previous]
            asked = replace(
                asked, tools=asked.tools or thread.tools, instructions=asked.instructions or thread.instructions
            )
        answer_id = f"{prefix}{self.session.id}-{next(self._numbers)}"

        async def sample(on_token: Callable[[int, int], None]) -> Sequence[Turn]:
            turns = await self.report.while_open(_sampled(self.session, asked, so_far, on_token, client))
            if asked.is_kept:
                messages = (*so_far, turns[0].message)
                self._conversations[answer_id] = Kept(
                    messages=messages, instructions=asked.instructions, tools=asked.tools
                )
            return turns

        # The delivery does not refer to this episode, so that the memory of a closed one is free without a collection.
        on_arrived = partial(_set_received, self.session, self.report)
        self._last[digest] = Delivery(self.session, sample, id=answer_id, on_arrived=on_arrived)
        return self._last[digest]

    def _conversation(self, asked: Asked) -> tuple[Message, ...]:
        """Return the conversation so far, without instructions."""
        new = asked.messages
        if asked.item_ids and asked.with_items is not None:
            new = asked.with_items(self._conversations)
        if asked.previous is None:
            return tuple(new)
        if asked.previous not in self._conversations:
            raise ApiError(
                404,
                f"The answer {asked.previous[:80]!r} is not stored here: it belongs to another episode or server, was requested "
                "without storage, or has expired. "
                "Send the whole conversation instead.",
                code="previous_response_not_found",
                param=asked.previous_field,
                given=asked.previous,
            )
        return (*self._conversations[asked.previous].messages, *new)


def _set_received(session: AnySession, report: EpisodeReport, turns: Sequence[Turn]) -> None:
    # A report refers to the turns that were received before the report.
    if report.is_open:
        session.set_received([turn.id for turn in turns])


def body_digest(begin: bytes) -> hashlib.blake2b:
    """Return a hash that starts with the path. When the body is added, the hash identifies equal requests."""
    return hashlib.blake2b(begin, digest_size=16)


async def _sampled(
    session: AnySession, asked: Asked, so_far: Sequence[Message], on_token: Callable[[int, int], None], client: str
) -> list[Turn]:
    """Sample the turns of a request, one for each requested answer."""
    instructions: list[Message] = []
    if asked.instructions is not None:
        instructions.append({"role": "system", "content": asked.instructions})

    # Only sessions without their own seed take a seed from a request (`Endpoints.enter`).
    seed = {"seed": asked.seed} if isinstance(session, MessageSession) else {}

    async def sample(index: int) -> Turn:
        try:
            return await session.sample(
                [*instructions, *so_far],
                asked.tools,
                sampling=_sampling(asked, session.sampling),
                stop_texts=asked.stop,
                answer_format=asked.answer_format,
                on_token=(lambda token: on_token(index, token)) if asked.stream else None,
                client=client,
                **seed,
            )
        except ConstraintError as refusal:
            raise asked.refused(refusal) from refusal

    if asked.num_answers == 1:
        return [await sample(0)]
    sampling = [asyncio.ensure_future(sample(index)) for index in range(asked.num_answers)]
    try:
        return list(await asyncio.gather(*sampling))
    finally:
        for one in sampling:
            one.cancel()
        await asyncio.gather(*sampling, return_exceptions=True)


def _sampling(asked: Asked, own: Sampling) -> Sampling:
    """Return the client's sampling settings, with `max_tokens` limited to what the session allows."""
    if asked.temperature is None and asked.top_p is None and asked.max_tokens is None:
        return own
    return replace(
        own,
        temperature=own.temperature if asked.temperature is None else asked.temperature,
        top_p=own.top_p if asked.top_p is None else asked.top_p,
        max_tokens=min(own.max_tokens, asked.max_tokens or own.max_tokens),
    )
