"""What the gateway knows of one episode besides its session: answers on their way, conversations, what is reported."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import TypeAlias, final

from sparring.errors import ConstraintError
from sparring.gateway.delivery import Delivery
from sparring.gateway.overload import MAX_IN_FLIGHT_PER_EPISODE, InFlight
from sparring.gateway.report import EpisodeReport
from sparring.gateway.request import ApiError, Asked, Kept
from sparring.sessions import AnySession, MessageSession
from sparring.types import Message, Sampling, Turn

Conversations: TypeAlias = MutableMapping[str, Kept]
"""By the ids of their answers."""


@final
class OpenEpisode:
    """A session with its door open."""

    def __init__(
        self,
        session: AnySession,
        report: EpisodeReport | None = None,
        conversations: Conversations | None = None,
        within: InFlight | None = None,
    ) -> None:
        """`report` is shared by the sessions of an episode; rewards per turn are for the turns that learn. Without
        `conversations` it has its own, so that no other episode goes on from them."""
        self.session = session
        self.report = report or EpisodeReport(lambda: [turn for turn in session.episode_turns if turn.learns])
        self.in_flight = InFlight(MAX_IN_FLIGHT_PER_EPISODE, of="The episode", within=within)
        self.refused: Counter[bytes] = Counter()
        """By the digest of their body, requests that were told to come again, and did not yet."""
        self._last: dict[bytes, Delivery] = {}
        """The last answer to each request body."""
        self._conversations: Conversations = {} if conversations is None else conversations
        self._numbers = itertools.count()

    def deliver(self, asked: Asked, body: bytes, *, prefix: str, is_retry: bool, client: str) -> Delivery:
        """The answer to a request: again the one that got lost on its way, or else a new one.

        A request that says that it is a retry gets the last answer to the same body even if it seemed to have arrived,
        and joins one that is still played. Without that word, equal requests are deliberate: each is sampled anew.
        Raises ApiError 404 for an earlier answer or item that is not known, 400 for log-probabilities that are not, 409 once
        the episode takes no more turns.
        """
        self.report.check_open()
        if asked.wants_logprobs and isinstance(self.session, MessageSession):
            raise ApiError(
                400, "logprobs=true is not supported here: the policy tells messages and no tokens. Leave it out.",
                code="unsupported_parameter", param="logprobs",
            )  # fmt: skip
        digest = body_digest(body).digest()
        if is_retry and self.refused[digest] > 0:
            # It was never played: what an equal request was answered is not meant for it.
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

        self._last[digest] = Delivery(self.session, sample, id=answer_id, on_arrived=self._arrived)
        return self._last[digest]

    def _arrived(self, turns: Sequence[Turn]) -> None:
        # What is reported is of the turns that had arrived by then.
        if self.report.is_open:
            self.session.set_received([turn.id for turn in turns])

    def _conversation(self, asked: Asked) -> tuple[Message, ...]:
        """The messages so far, without instructions."""
        new = asked.messages
        if asked.item_ids and asked.with_items is not None:
            new = asked.with_items(self._conversations)
        if asked.previous is None:
            return tuple(new)
        if asked.previous not in self._conversations:
            raise ApiError(
                404, f"The answer {asked.previous[:80]!r} is not kept here: it is of another episode or server, was not to be "
                "stored, or has been forgotten since. "
                "Send the whole conversation instead.",
                code="previous_response_not_found", param=asked.previous_field, given=asked.previous,
            )  # fmt: skip
        return (*self._conversations[asked.previous].messages, *new)


def body_digest(begin: bytes) -> hashlib.blake2b:
    """By what equal requests are known: of the path, and then the body."""
    return hashlib.blake2b(begin, digest_size=16)


async def _sampled(
    session: AnySession, asked: Asked, so_far: Sequence[Message], on_token: Callable[[int, int], None], client: str
) -> list[Turn]:
    """The turns of a request, one for each answer that it asks for."""
    instructions: list[Message] = []
    if asked.instructions is not None:
        instructions.append({"role": "system", "content": asked.instructions})

    # Only a session without one of its own is asked with a seed (`Doors.enter`).
    seed = {"seed": asked.seed} if isinstance(session, MessageSession) else {}

    async def sample(index: int) -> Turn:
        try:
            return await session.sample(
                [*instructions, *so_far], asked.tools, sampling=_sampling(asked, session.sampling), stop_texts=asked.stop,
                answer_format=asked.answer_format, on_token=(lambda token: on_token(index, token)) if asked.stream else None,
                client=client, **seed,
            )  # fmt: skip
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
    """What the client asked for; of tokens never more than the session allows."""
    if asked.temperature is None and asked.top_p is None and asked.max_tokens is None:
        return own
    return replace(
        own,
        temperature=own.temperature if asked.temperature is None else asked.temperature,
        top_p=own.top_p if asked.top_p is None else asked.top_p,
        max_tokens=min(own.max_tokens, asked.max_tokens or own.max_tokens),
    )
