"""Selects the session for a request: the session of the episode that its key belongs to, or a new session."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol, final

from sparring.gateway.episode import OpenEpisode
from sparring.gateway.overload import MAX_IN_FLIGHT, InFlight
from sparring.gateway.refusals import note
from sparring.gateway.report import EpisodeReport
from sparring.gateway.request import ApiError, Asked, Kept
from sparring.gateway.versions import Versions
from sparring.protocols import Chat
from sparring.sessions import AnySession, EpisodeIdentity, Session
from sparring.types import Sampling

NUM_KEPT = 256
"""The number of latest answers that requests to a server without episodes can continue."""
NUM_EPISODES = 64
"""The number of episodes up to which those that have ended are kept."""


class Endpoints(Protocol):
    """The interface through which the app accesses sessions."""

    @property
    def model_names(self) -> Sequence[str]:
        """The names that `/v1/models` lists."""
        ...

    @property
    def takes_seed(self) -> bool:
        """Whether a request may set its seed."""
        ...

    @property
    def is_key_in_path(self) -> bool:
        """Whether X in `/s/X`, or MTRL's trajectory id, is the key. Otherwise, it is the name of an episode."""
        ...

    def check(self, api_key: str) -> None:
        """Check a key. Raises ApiError 401 for an unknown key."""
        ...

    def admitted(self, api_key: str) -> InFlight:
        """Return the requests in progress with this key, as a context for the duration of one request. Raises ApiError
        401 for an unknown key, and 429 for too many requests."""
        ...

    def refused(self, api_key: str, digest: bytes) -> None:
        """Record that a request with this body got status 429."""
        ...

    def note_refusal(self, api_key: str, error: ApiError) -> None:
        """Count a refused request with this key."""
        ...

    def enter(self, api_key: str, request: Asked) -> AbstractAsyncContextManager[OpenEpisode]:
        """Return a context with the episode of a request. Raises ApiError."""
        ...

    def report(self, api_key: str) -> EpisodeReport:
        """Return the report of an episode. Raises ApiError 401 for a key without an episode."""
        ...


@final
class EpisodeEndpoints:
    """The sessions of episodes, each with its own random key. Only the hash of a key is stored, and the key becomes
    invalid when the session is closed."""

    takes_seed = False
    is_key_in_path = True

    def __init__(self, model_name: str, *, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._model_name = model_name
        self._in_flight = InFlight(max_in_flight, of="The run")
        self._episodes: dict[str, OpenEpisode] = {}
        self._num_kept = NUM_EPISODES
        """The number of episodes at which those with a closed session are removed."""

    @property
    def model_names(self) -> Sequence[str]:
        return (self._model_name,)

    def register(self, session: AnySession, *, of: str | None = None) -> str:
        """Return a new key for a session. `of` is an earlier key of the session's episode, with which the new one shares the
        report and the time for long requests."""
        first = None if of is None else self._episode(of)
        if len(self._episodes) >= self._num_kept:
            self._episodes = {digest: one for digest, one in self._episodes.items() if not one.session.is_closed}
            # Twice as many, so that a registration takes constant time on average.
            self._num_kept = max(NUM_EPISODES, 2 * len(self._episodes))
        api_key = f"sk-{secrets.token_urlsafe(32)}"
        self._episodes[_digest(api_key)] = OpenEpisode(
            session,
            None if first is None else first.report,
            within=self._in_flight,
            share=None if first is None else first.in_flight.share,
        )
        return api_key

    def check(self, api_key: str) -> None:
        self._episode(api_key)

    def admitted(self, api_key: str) -> InFlight:
        return self._episode(api_key).in_flight.admitted()

    def refused(self, api_key: str, digest: bytes) -> None:
        self._episode(api_key).refused[digest] += 1

    def note_refusal(self, api_key: str, error: ApiError) -> None:
        if (episode := self._episodes.get(_digest(api_key))) is not None:
            note(episode.session, error, episode.report.turns())

    def enter(self, api_key: str, request: Asked) -> AbstractAsyncContextManager[OpenEpisode]:
        episode = self._episode(api_key)
        if request.seed is not None:
            raise ApiError(
                400,
                "seed cannot be set: the run derives the seeds of an episode's turns from run, task and attempt. Remove it.",
                code="unsupported_parameter",
                param="seed",
                given={"seed": request.seed},
            )
        return nullcontext(episode)

    def report(self, api_key: str) -> EpisodeReport:
        return self._episode(api_key).report

    def _episode(self, api_key: str) -> OpenEpisode:
        """Return the episode that a key belongs to. Raises ApiError 401."""
        episode = self._episodes.get(_digest(api_key))
        if episode is None or episode.session.is_closed:
            raise ApiError(
                401,
                "This API key does not belong to a running episode; use the key that the episode received.",
                code="invalid_api_key",
            )
        return episode


@final
class StatelessEndpoints:
    """The endpoint of a model with fixed versions. Every request opens a new session, which ends with the request and
    records nothing.

    The most recent conversations are kept, so that later requests can continue one of them by the id of its answer.
    """

    takes_seed = True
    is_key_in_path = True

    def __init__(self, *, versions: Versions, chat: Chat, sampling: Sampling) -> None:
        self._versions = versions
        self._chat = chat
        self._sampling = sampling
        self._in_flight = InFlight(MAX_IN_FLIGHT, of="The server")
        self._conversations = _Latest()

    @property
    def model_names(self) -> Sequence[str]:
        return self._versions.names

    def check(self, api_key: str) -> None:
        """Do nothing: the gate of the server checks keys."""

    def admitted(self, api_key: str) -> InFlight:
        return self._in_flight.admitted()

    def refused(self, api_key: str, digest: bytes) -> None:
        """Do nothing: no answers are kept, so a retry cannot get an earlier answer by mistake."""

    def note_refusal(self, api_key: str, error: ApiError) -> None:
        """Do nothing: there is no episode that a refusal could end."""

    @asynccontextmanager
    async def enter(self, api_key: str, request: Asked) -> AsyncIterator[OpenEpisode]:
        version = self._versions.choose(request.model, lambda: self._identify_conversation(request))
        seed = secrets.randbits(63) if request.seed is None else request.seed
        async with Session(
            EpisodeIdentity(f"request-{secrets.token_hex(16)}", seed=seed),
            engine=version.engine,
            chat=self._chat,
            sampling=self._sampling,
        ) as session:
            yield OpenEpisode(session, conversations=self._conversations, model=version.name)

    def _identify_conversation(self, request: Asked) -> str:
        """Return the client's name for the conversation, or else its first message from a user, which all later
        requests repeat."""
        if request.conversation is not None:
            return request.conversation
        kept = self._conversations.get(request.previous or "")
        messages = request.messages if kept is None else kept.messages
        first = next((one.get("content") for one in messages if one["role"] == "user"), None)
        return json.dumps(first)

    def report(self, api_key: str) -> EpisodeReport:
        raise ApiError(
            401,
            "A served model has no episodes to report on; only episodes of a training run can be completed and rewarded.",
            code="invalid_api_key",
        )


@final
class _Latest(dict[str, Kept]):
    """A dict that keeps only the most recent entries."""

    def __setitem__(self, answer_id: str, conversation: Kept) -> None:
        super().__setitem__(answer_id, conversation)
        if len(self) > NUM_KEPT:
            del self[next(iter(self))]


def _digest(api_key: str) -> str:
    return hashlib.blake2b(api_key.encode()).hexdigest()
