"""The session, which is one episode's private access to the policy and the only writer of turns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self, TypedDict, Unpack, final

from sparring.chat.messages import canonical_json
from sparring.errors import (
    ContextOverflow,
    EpisodeError,
    InfrastructureError,
    PolicyTimeout,
    SparringError,
)
from sparring.protocols import Chat, Engine, SpliceRefused, TokenCallback
from sparring.runtime.clock import SYSTEM_CLOCK, Clock
from sparring.runtime.threads import process_long_text
from sparring.sessions.branching import BranchReason
from sparring.sessions.budget import TurnBudget
from sparring.sessions.identity import UNLIMITED, EpisodeIdentity, EpisodeLimits
from sparring.sessions.matching import (
    CanonicalHistory,
    canonical_message,
    message_digests,
    request_digest,
)
from sparring.sessions.oversize import LONG_CHARACTERS, count_characters, is_oversize
from sparring.sessions.receipts import TurnLog
from sparring.sessions.refusals import Refusals
from sparring.sessions.seeds import turn_seed
from sparring.sessions.turn_history import AnsweredRequest, TurnHistory
from sparring.types import (
    AnswerFormat,
    Completion,
    Constraint,
    Message,
    SampleRequest,
    Sampling,
    StopReason,
    ToolSchema,
    Turn,
)

if TYPE_CHECKING:
    from sparring.sessions import AnySession


class TurnOptions(TypedDict, total=False):
    """The options of one turn that differ from the session's."""

    sampling: Sampling | None
    stop_texts: Sequence[str]
    """Texts that end the answer. The message contains neither the stop text nor what follows it."""
    answer_format: AnswerFormat | None
    """The form of the answer, unless the answer is cut at its token limit."""
    on_token: TokenCallback | None
    client: str | None
    """The User-Agent of the program that requests the turn."""


@dataclass(frozen=True, slots=True)
class _Start:
    """The prompt of a turn, with the parent turn or the branch reason."""

    prompt_ids: tuple[int, ...]
    parent: int | None
    branch_reason: str | None


@final
class Session:
    """Runs the turns of one episode and keeps their exact tokens.

    A request that continues an earlier turn is spliced: the ids of that turn are kept, and only the new messages are
    rendered. Any other request starts a branch, and the reason is recorded. A repeated request gets a second answer in
    addition to the first. Every turn is in the ledger before its answer is sent, and counts once the answer has been
    received.

    An episode with several policies has one session for each. The sessions share one id, by which an engine identifies
    the episode. An engine that samples in rounds waits for an episode until one of the episode's policies gets a
    request. Each session has its own conversations, and turn ids are unique across all sessions of the episode.

        async with Session(EpisodeIdentity("r0"), engine=engine, chat=chat, sampling=Sampling()) as session:
            message = await session.chat([{"role": "user", "content": "Hello"}])
    """

    def __init__(
        self,
        identity: EpisodeIdentity,
        *,
        engine: Engine,
        chat: Chat,
        sampling: Sampling,
        ledger: TurnLog | None = None,
        limits: EpisodeLimits = UNLIMITED,
        clock: Clock = SYSTEM_CLOCK,
        others: Mapping[str, AnySession] | None = None,
    ) -> None:
        """Create a session. Without a ledger (for example, when a policy is served), nothing is recorded. `others` are
        the sessions of the episode's named policies. They are closed together with this session."""
        self._identity = identity
        self._label = identity.label
        self._seed = identity.seed or 0
        self._engine = engine
        self._chat = chat
        self._sampling = sampling
        self._max_context_tokens = min(
            limits.max_context_tokens or engine.max_context_tokens, engine.max_context_tokens
        )
        self._deadline = limits.deadline
        self._budget = TurnBudget(limits, whose=f"Session {self._label}")
        self._clock = clock.monotonic
        self._opened = self._clock()
        self._history: TurnHistory[AnsweredRequest] = TurnHistory(identity, ledger, others)
        self._messages: tuple[Message, ...] = ()
        self._canonical: CanonicalHistory = ()
        """The same messages in canonical form."""
        self._digests: tuple[bytes, ...] = ()
        """The digests of the same messages, unchanged."""
        self._requests = itertools.count()
        self._is_open = False

    @property
    def id(self) -> str:
        return self._identity.id

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns so far, by id. A turn is left out if its answer was not received and no other turn continues it."""
        return self._history.counted

    @property
    def sampled_turns(self) -> tuple[Turn, ...]:
        """All turns so far, including those whose answer is still being sent or was not received."""
        return self._history.sampled

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """The turns so far of all policies of the episode, by id."""
        return self._history.episode_turns

    @property
    def first_request(self) -> float | None:
        """The time on the monotonic clock, in seconds, of the episode's first request to any of its policies, or None if
        there was none."""
        return self._history.first_request

    @property
    def others(self) -> Mapping[str, AnySession]:
        """The sessions of the episode's other policies, by name."""
        return self._history.others

    def of(self, name: str) -> AnySession:
        """Return the session of another policy of the episode. Raises UsageError for a name that the recipe does not
        define."""
        return self._history.of(name)

    @property
    def refusals(self) -> Refusals:
        """The requests of this session that the gateway refused."""
        return self._history.refusals

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the last turn, including its answer."""
        return self._messages

    @property
    def sampling(self) -> Sampling:
        return self._sampling

    def read(self, token_ids: Sequence[int], tools: Sequence[ToolSchema], stop_texts: Sequence[str] = ()) -> Message:
        """Return the assistant message of these token ids, cut before the first stop text."""
        message = self._chat.parse(token_ids, tools)
        places = [place for place in map(message["content"].find, stop_texts) if place >= 0]
        return {**message, "content": message["content"][: min(places)]} if places else message

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """Return the text of token ids, including tags and special tokens."""
        return self._chat.decode(token_ids)

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the deadline, as in `protocols.SessionLike.seconds_left`."""
        return None if self._deadline is None else self._deadline - self._clock()

    @property
    def is_closed(self) -> bool:
        return self._history.is_closed

    @property
    def failure(self) -> SparringError | None:
        """The first failure of a turn or, if there was none, the refusal of the last request. The agent may have
        ignored either of them. An infrastructure failure, even of another policy of the episode, comes before the
        failures that it caused."""
        return self._history.failure

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Sample one turn and return the assistant's message. Raises the same errors as `play`."""
        return (await self.play(messages, tools)).message

    async def play(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[TurnOptions]
    ) -> Turn:
        """Sample one turn, record it and mark it as received, for a caller in this process. Raises the same errors as
        `sample` and `recorded`."""
        turn = await self.sample(messages, tools, **options)
        await self.recorded([turn.id])
        self.set_received([turn.id])
        return turn

    async def sample(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[TurnOptions]
    ) -> Turn:
        """Sample one turn. When this method returns, the turn is part of the session and queued for the ledger. The
        turn counts once its answer is received, or once another turn continues it.

        Raises ContextOverflow if the prompt leaves no space for an answer, TurnLimit after `max_turns` turns,
        TokenLimit after `max_tokens` sampled tokens, and PolicyTimeout after the deadline. Raises InfrastructureError
        if the engine fails or its answer is inconsistent. It is also raised if a policy that is not in training is
        late, since the policy in training did not cause this delay. Raises ConstraintError if the chat format or the
        engine cannot enforce the answer format.
        """
        try:
            try:
                return await self._sample(messages, tools, **options)
            except PolicyTimeout as late:
                if self._identity.learns:
                    raise
                raise InfrastructureError(
                    f"Session {self._label}: a policy that is not trained did not answer in time: {late}"
                ) from late
        except EpisodeError as failure:
            self._history.fail(failure)
            raise

    async def recorded(self, turn_ids: Sequence[int]) -> None:
        """Wait until sampled turns are on disk, so that their answers may be sent. Raises ServiceError if they cannot
        be written."""
        await self._history.recorded(turn_ids)

    def set_received(self, turn_ids: Sequence[int]) -> None:
        """Mark the answers of these turns as received."""
        self._history.set_received(turn_ids)

    async def _sample(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        *,
        sampling: Sampling | None = None,
        stop_texts: Sequence[str] = (),
        answer_format: AnswerFormat | None = None,
        on_token: TokenCallback | None = None,
        client: str | None = None,
    ) -> Turn:
        self._history.check_open()
        sampling = sampling or self._sampling
        self._budget.check_turns(len(self._history.answered))
        constraint = None if answer_format is None else self._chat.constraint(answer_format, tools)
        self.open()
        request_index, began = next(self._requests), self._clock()
        self._history.begin(began)
        self._budget.start()
        num_reserved = num_sampled = 0
        try:
            num_reserved = await self._budget.reserve(sampling.max_tokens)
            known, tools_wanted = self._num_known(messages), canonical_json(list(tools))
            wanted = (*self._canonical[:known], *map(canonical_message, messages[known:]))
            known_digests = self._digests[:known]
            start = await self._start(messages, tools, wanted, tools_wanted)
            digests = message_digests(messages, known_digests)
            answered = self._history.answered
            oldest_allowed = answered[-1].turn.versions[-1][0] if answered else 0
            request = self._request(start, sampling, num_reserved, tuple(stop_texts), constraint, request_index)
            try:
                completion = await self._engine.sample(request, on_token)
                num_sampled = len(completion.token_ids)
            except SparringError:
                raise
            except Exception as error:
                raise InfrastructureError(f"Session {self._label}: the engine failed: {error!r}.") from error
        finally:
            self._budget.settle(num_reserved, num_sampled)
        self._history.check_open()
        self._check(completion, oldest_allowed)
        if start.parent is None and start.branch_reason is None:
            # Another first request may have been answered in the meantime.
            start = replace(start, branch_reason=self._history.branch_reason(wanted, tools_wanted))
        seconds = self._clock() - began
        turn = self._turn(start, request, completion, tools, began=began, seconds=seconds, client=client)
        canonical = (*wanted, canonical_message(turn.message))
        # There is no await from here on: either both the session and the ledger have the turn, or neither does.
        self._history.add(
            AnsweredRequest(turn, wanted, canonical, tools_wanted), request_digest=request_digest(digests, tools_wanted)
        )
        self._messages, self._canonical, self._digests = (*messages, turn.message), canonical, digests
        return turn

    def open(self) -> None:
        """Announce the session to the engine. If this method is not called, the first turn does so."""
        if not self._is_open and not self._history.is_closed:
            self._engine.open_session(self.id)
            self._is_open = True

    def close(self) -> None:
        """Inform the engine that no turn follows, and refuse later turns, including those of the other policies.
        Closing twice is allowed."""
        self._history.close_others()
        if self._is_open and not self._history.is_closed:
            self._engine.close_session(self.id)
        self._history.close()

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.close()

    def _num_known(self, messages: Sequence[Message]) -> int:
        """Return how many messages equal the beginning of the last conversation. The canonical forms and digests of
        these messages are reused."""
        known = 0
        for message, last in zip(messages, self._messages, strict=False):
            if message is not last and message != last:
                break
            known += 1
        return known

    async def _start(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], wanted: CanonicalHistory, tools_wanted: str
    ) -> _Start:
        """Return the prompt: spliced onto the longest earlier turn that the messages continue, or rendered as a new branch."""
        alike = self._history.continued_by(wanted, tools_wanted)
        if not alike:
            reason = self._history.branch_reason(wanted, tools_wanted)
            return _Start(await self._render(messages, tools, tools_wanted), None, reason)
        parent = alike[-1] if len(alike) == 1 else self._answer_seen(alike, messages)
        turn = parent.turn
        already_played = turn.prompt_ids + turn.token_ids
        stopped = turn.token_ids[-1] in self._chat.stop_ids
        new = messages[len(parent.history) :]
        try:
            extend = partial(self._chat.extend, already_played, new, tools, stopped=stopped)
            following = await self._tokenize(extend, new, "")
        except SpliceRefused as refusal:
            reason = BranchReason.SPLICE_REFUSED.of(str(refusal))
            return _Start(await self._render(messages, tools, tools_wanted), None, reason)
        return _Start(already_played + tuple(following), turn.id, None)

    async def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], tools_wanted: str
    ) -> tuple[int, ...]:
        return tuple(await self._tokenize(partial(self._chat.render, messages, tools), messages, tools_wanted))

    async def _tokenize(
        self, tokenize: Callable[[], Sequence[int]], messages: Sequence[Message], tools: str
    ) -> Sequence[int]:
        """Return the ids of these messages, with `tokenize`. Long ones are tokenized in another thread, so that other
        sessions do not wait. Raises ContextOverflow if they cannot fit."""
        if count_characters(messages) + len(tools) < LONG_CHARACTERS:
            return tokenize()
        if await process_long_text(is_oversize, self._chat, messages, tools, self._max_context_tokens):
            raise ContextOverflow(
                f"Session {self._label}: the prompt has more tokens than the context of {self._max_context_tokens}; shorten "
                "the episode or the tool results."
            )
        return await process_long_text(tokenize)

    def _answer_seen(self, alike: Sequence[AnsweredRequest], messages: Sequence[Message]) -> AnsweredRequest:
        """Return the one of several equal answers that the client saw. The first criterion is how much of the answer
        came back unchanged. Then received answers are preferred, and then the latest answer."""
        return max(alike, key=lambda one: (*self._history.likeness(one, messages), one.turn.id))

    def _request(
        self,
        start: _Start,
        sampling: Sampling,
        max_tokens: int,
        stop_texts: tuple[str, ...],
        constraint: Constraint | None,
        request_index: int,
    ) -> SampleRequest:
        room = self._max_context_tokens - len(start.prompt_ids)
        if room < 1:
            raise ContextOverflow(
                f"Session {self._label}: the prompt has {len(start.prompt_ids)} tokens and the context "
                f"{self._max_context_tokens}, which leaves no space for an answer; shorten the episode or the tool results."
            )
        max_tokens = min(max_tokens, room)
        return SampleRequest(
            session_id=self.id,
            prompt_ids=start.prompt_ids,
            sampling=sampling if sampling.max_tokens == max_tokens else replace(sampling, max_tokens=max_tokens),
            stop_ids=self._chat.stop_ids,
            stop_texts=stop_texts,
            constraint=constraint,
            seed=turn_seed(self._seed, request_index),
            order=(*self._identity.order, request_index),
            deadline=self._deadline,
        )

    def _check(self, completion: Completion, oldest_allowed: int) -> None:
        """Raise InfrastructureError when a completion is inconsistent."""
        num_tokens = len(completion.token_ids)
        versions = [version for version, _ in completion.versions]
        problem = None
        if num_tokens == 0:
            problem = "it has no tokens"
        elif len(completion.sampled_logprobs) != num_tokens:
            problem = f"it has {num_tokens} tokens and {len(completion.sampled_logprobs)} log-probabilities"
        elif not all(math.isfinite(number) and number <= 1e-6 for number in completion.sampled_logprobs):
            problem = "a log-probability is not finite or above 0"
        elif not 0 <= completion.removed_mass <= 1:
            problem = f"a constraint removed a probability of {completion.removed_mass}, which is not between 0 and 1"
        elif sum(count for _, count in completion.versions) != num_tokens:
            problem = f"its versions {completion.versions} do not add up to {num_tokens} tokens"
        elif versions != sorted(versions) or versions[0] < oldest_allowed or versions[-1] > self._engine.policy_version:
            problem = (
                f"its versions {versions} are not between version {oldest_allowed} of the previous turn "
                f"and version {self._engine.policy_version} of the engine"
            )
        elif not completion.fingerprint:
            problem = "it names no weight fingerprint"
        if problem is not None:
            raise InfrastructureError(f"Session {self._label}: the engine's answer cannot be used: {problem}.")

    def _turn(
        self,
        start: _Start,
        request: SampleRequest,
        completion: Completion,
        tools: Sequence[ToolSchema],
        *,
        began: float,
        seconds: float,
        client: str | None,
    ) -> Turn:
        turn_id = next(self._identity.turn_ids)
        # An unknown removed mass counts as 1, so that the turn is not trained on.
        is_known = request.constraint is None or self._engine.capabilities.reports_removed_mass
        return Turn(
            id=turn_id,
            parent=start.parent,
            branch_reason=start.branch_reason,
            prompt_ids=start.prompt_ids,
            token_ids=completion.token_ids,
            sampled_logprobs=completion.sampled_logprobs,
            versions=completion.versions,
            fingerprint=completion.fingerprint,
            stop_reason=completion.stop_reason,
            sampling=request.sampling,
            message=_with_unique_call_ids(self.read(completion.token_ids, tools, request.stop_texts), turn_id),
            num_computed_tokens=completion.num_computed_tokens,
            began=began - self._opened,
            seconds=seconds,
            removed_mass=completion.removed_mass if is_known else 1.0,
            stop_text=self._stop_text(completion, request.stop_texts),
            policy=self._identity.policy,
            learns=self._identity.learns,
            client=client,
        )

    def _stop_text(self, completion: Completion, stop_texts: Sequence[str]) -> str | None:
        """Return the stop text that an answer reached first, or None if a stop id or the token limit ended the
        answer."""
        if completion.stop_reason is not StopReason.STOP or completion.token_ids[-1] in self._chat.stop_ids:
            return None
        text = self._chat.decode(completion.token_ids)
        ends = {text.index(stop) + len(stop): stop for stop in stop_texts if stop in text}
        return ends[min(ends)] if ends else None


def _with_unique_call_ids(message: Message, turn_id: int) -> Message:
    """Return the message with tool call ids that are derived from the turn and the position, and are unique in the
    episode."""
    if not message.get("tool_calls"):
        return message
    calls = [{**call, "id": f"call_{turn_id}_{index}"} for index, call in enumerate(message["tool_calls"])]
    return {**message, "tool_calls": calls}
