"""The session: one episode's private door to the policy, and the only writer of turns."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypedDict, Unpack, final

from sparring.chat.messages import canonical_json
from sparring.errors import (
    ContextOverflow,
    EpisodeError,
    InfrastructureError,
    PolicyTimeout,
    SparringError,
    TurnLimit,
)
from sparring.protocols import Chat, Engine, SpliceRefused, TokenCallback
from sparring.sessions.branching import BranchReason, branch_reason
from sparring.sessions.budget import TokenBudget
from sparring.sessions.matching import (
    CanonicalHistory,
    canonical_message,
    continued,
    message_digests,
    num_kept,
    request_digest,
)
from sparring.sessions.policies import first_failure, named, turns_of
from sparring.sessions.receipts import Receipts, TurnLog
from sparring.sessions.refusals import Refusals
from sparring.sessions.seeds import turn_seed
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
    """How a turn is sampled, where not as the session samples."""

    sampling: Sampling | None
    stop_texts: Sequence[str]
    """They end the answer too; the message does not show them, nor what follows."""
    answer_format: AnswerFormat | None
    """The answer has it, unless it is cut."""
    on_token: TokenCallback | None
    client: str | None
    """Which program asks."""


@dataclass(frozen=True, slots=True)
class _Played:
    """A turn with the request it answered, as later requests are compared to it."""

    turn: Turn
    request: CanonicalHistory
    history: CanonicalHistory
    """The request and the answer."""
    tools: str


@dataclass(frozen=True, slots=True)
class _Start:
    """The prompt of a turn and where it comes from."""

    prompt_ids: tuple[int, ...]
    parent: int | None
    branch_reason: str | None


@final
class Session:
    """Plays turns for one episode and keeps their exact tokens.

    A request that continues an earlier turn is spliced: that turn's ids are kept and only the new messages are
    rendered. Any other request starts a branch, with the reason recorded. The same request again is a second answer
    beside the first. Every turn is in the ledger before it is answered, and counts once its answer is received.

    An episode with several policies has a session for each. They share the id, by which an engine knows the episode: one
    that plays in rounds waits for an episode until any of its policies is asked. Conversations are apart, turn ids are not.

        async with Session(id="r0", engine=engine, chat=chat, sampling=Sampling()) as session:
            message = await session.chat([{"role": "user", "content": "Hello"}])
    """

    def __init__(
        self,
        *,
        id: str,
        engine: Engine,
        chat: Chat,
        sampling: Sampling,
        ledger: TurnLog | None = None,
        seed: int = 0,
        order: tuple[int, ...] = (),
        max_context_tokens: int | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: str | None = None,
        learns: bool = True,
        turn_ids: Iterator[int] | None = None,
        others: Mapping[str, AnySession] | None = None,
    ) -> None:
        """`seed` is the episode's (see `seeds.episode_seed`), `order` its place (task position, attempt); `max_tokens`
        bounds what all turns sample together; `deadline` is a time of `clock` in seconds; without a ledger nothing is
        recorded, as in serving.

        `policy` is the name of who plays here, None the main one; `learns` says whether it is in training. `others` are
        the sessions of the episode's named policies, which end with this one; all draw from the same `turn_ids`."""
        self._id = id
        self._policy = policy
        self._learns = learns
        self._turn_ids = itertools.count() if turn_ids is None else turn_ids
        self._others = dict(others or {})
        self._label = id if policy is None else f"{id} ({policy})"
        self._engine = engine
        self._chat = chat
        self._sampling = sampling
        self._receipts = Receipts(id, ledger)
        self._seed = seed
        self._order = order
        self._max_context_tokens = min(max_context_tokens or engine.max_context_tokens, engine.max_context_tokens)
        self._max_turns = max_turns
        self._num_running = 0
        self._budget = TokenBudget(max_tokens, whose=f"Session {self._label}")
        self._deadline = deadline
        self._clock = clock
        self._opened = clock()
        self._played: list[_Played] = []
        self._messages: tuple[Message, ...] = ()
        self._history: CanonicalHistory = ()
        """The same messages, canonical."""
        self._digests: tuple[bytes, ...] = ()
        """Of the same messages, as they came."""
        self._requests = itertools.count()
        self._is_open = False
        self._is_closed = False
        self._failure: EpisodeError | None = None
        self.refusals = Refusals()
        """What the gateway refused of this session's requests."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns so far, by id; without those whose answer did not arrive, unless another turn continues them."""
        return self._receipts.counted([played.turn for played in self._played])

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """The turns so far of all policies of the episode, by id."""
        return turns_of((self, *self._others.values()))

    @property
    def others(self) -> Mapping[str, AnySession]:
        """The sessions of the episode's other policies, by name."""
        return self._others

    def of(self, name: str) -> AnySession:
        """The session of another policy of the episode. Raises UsageError for a name that the recipe does not have."""
        return named(self._others, name)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the last turn, its answer included."""
        return self._messages

    @property
    def sampling(self) -> Sampling:
        return self._sampling

    def read(self, token_ids: Sequence[int], tools: Sequence[ToolSchema], stop_texts: Sequence[str] = ()) -> Message:
        """The assistant message that these ids say, up to the first stop text."""
        message = self._chat.parse(token_ids, tools)
        places = [place for place in map(message["content"].find, stop_texts) if place >= 0]
        return {**message, "content": message["content"][: min(places)]} if places else message

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """The text of ids, tags and special tokens included."""
        return self._chat.decode(token_ids)

    @property
    def seconds_left(self) -> float | None:
        """As `protocols.SessionLike.seconds_left`."""
        return None if self._deadline is None else self._deadline - self._clock()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def failure(self) -> SparringError | None:
        """The first failure of a turn, or else that the last request was refused: an agent may have swallowed either. An
        outage, also of another policy of the episode, comes before whatever it led to."""
        return first_failure(
            [self._failure, self.refusals.failure, *(other.failure for other in self._others.values())]
        )

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Play one turn: the assistant's message. Raises as `play` does."""
        return (await self.play(messages, tools)).message

    async def play(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[TurnOptions]
    ) -> Turn:
        """Play one turn for a caller in this process: it is sampled, recorded, and received when this returns. Raises as
        `sample` and `recorded` do."""
        turn = await self.sample(messages, tools, **options)
        await self.recorded([turn.id])
        self.set_received([turn.id])
        return turn

    async def sample(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[TurnOptions]
    ) -> Turn:
        """Sample one turn. It is part of the session and queued for the ledger when this returns, and counts as the
        policy's play once it is received, or another turn continues it.

        Raises ContextOverflow when the prompt leaves no room for an answer, TurnLimit after `max_turns` turns, TokenLimit
        after `max_tokens` sampled tokens, PolicyTimeout past the deadline, InfrastructureError when the engine fails, its
        answer does not add up, or a policy that does not learn is late, which is not the doing of the one that does,
        ConstraintError when the chat's format or the engine cannot be held to the answer format.
        """
        try:
            try:
                return await self._sample(messages, tools, **options)
            except PolicyTimeout as late:
                if self._learns:
                    raise
                raise InfrastructureError(
                    f"Session {self._label}: a policy that does not learn was late: {late}"
                ) from late
        except EpisodeError as failure:
            self._failure = self._failure or failure
            raise

    async def recorded(self, turn_ids: Sequence[int]) -> None:
        """Wait until turns that were sampled are on disk; their answers may be sent then. Raises ServiceError when they
        cannot be written."""
        await self._receipts.recorded(turn_ids)

    def set_received(self, turn_ids: Sequence[int]) -> None:
        """The answers of these turns arrived."""
        self._receipts.set_received(turn_ids)

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
        self._check_open()
        sampling = sampling or self._sampling
        if self._max_turns is not None and len(self._played) + self._num_running >= self._max_turns:
            raise TurnLimit(
                f"Session {self._label} has played its {self._max_turns} turns; end the episode, or raise agent.max_turns."
            )
        constraint = None if answer_format is None else self._chat.constraint(answer_format, tools)
        self.open()
        request_index, began = next(self._requests), self._clock()
        self._num_running += 1
        num_reserved = num_sampled = 0
        try:
            num_reserved = await self._budget.reserve(sampling.max_tokens)
            known, tools_wanted = self._num_known(messages), canonical_json(list(tools))
            wanted = (*self._history[:known], *map(canonical_message, messages[known:]))
            digests = message_digests(messages, self._digests[:known])
            start = self._start(messages, tools, wanted, tools_wanted)
            oldest_allowed = self._played[-1].turn.versions[-1][0] if self._played else 0
            request = self._request(start, sampling, num_reserved, tuple(stop_texts), constraint, request_index)
            try:
                completion = await self._engine.sample(request, on_token)
                num_sampled = len(completion.token_ids)
            except SparringError:
                raise
            except Exception as error:
                raise InfrastructureError(f"Session {self._label}: the engine failed: {error!r}.") from error
        finally:
            self._num_running -= 1
            self._budget.settle(num_reserved, num_sampled)
        self._check_open()
        self._check(completion, oldest_allowed)
        if start.parent is None and start.branch_reason is None:
            # Another first request may have been answered meanwhile.
            start = replace(start, branch_reason=self._branch_reason(wanted, tools_wanted))
        seconds = self._clock() - began
        turn = self._turn(start, request, completion, tools, began=began, seconds=seconds, client=client)
        # No suspension from here on: session and ledger both have the turn, or neither.
        self._receipts.add(turn, request_digest=request_digest(digests, tools_wanted))
        self._messages = (*messages, turn.message)
        self._history, self._digests = (*wanted, canonical_message(turn.message)), digests
        self._played.append(_Played(turn, wanted, self._history, tools_wanted))
        self.refusals.accept()
        return turn

    def _check_open(self) -> None:
        if self._is_closed:
            raise InfrastructureError(f"Session {self._label} is closed: its episode has ended, so no turn may follow.")

    def open(self) -> None:
        """Tell the engine that turns will come; the first turn does it otherwise."""
        if not self._is_open and not self._is_closed:
            self._engine.open_session(self._id)
            self._is_open = True

    def close(self) -> None:
        """Tell the engine that no turn follows, of the other policies neither. Later turns are refused; closing twice is
        fine."""
        for other in self._others.values():
            other.close()
        if self._is_open and not self._is_closed:
            self._engine.close_session(self._id)
        self._is_closed = True
        self._receipts.close([played.turn for played in self._played])

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.close()

    def _num_known(self, messages: Sequence[Message]) -> int:
        """How many messages the last conversation began with, too: what is known of them is not worked out again."""
        known = 0
        for message, last in zip(messages, self._messages, strict=False):
            if message is not last and message != last:
                break
            known += 1
        return known

    def _start(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], wanted: CanonicalHistory, tools_wanted: str
    ) -> _Start:
        """Splice onto the longest earlier turn that the messages continue, or begin a branch and say why."""
        alike = continued(wanted, tools_wanted, self._played)
        if not alike:
            return _Start(self._chat.render(messages, tools), None, self._branch_reason(wanted, tools_wanted))
        parent = alike[-1] if len(alike) == 1 else self._shown(alike, messages)
        turn = parent.turn
        already_played = turn.prompt_ids + turn.token_ids
        stopped = turn.token_ids[-1] in self._chat.stop_ids
        try:
            new = self._chat.extend(already_played, messages[len(parent.history) :], tools, stopped=stopped)
        except SpliceRefused as refusal:
            return _Start(self._chat.render(messages, tools), None, BranchReason.SPLICE_REFUSED.of(str(refusal)))
        return _Start(already_played + tuple(new), turn.id, None)

    def _shown(self, alike: Sequence[_Played], messages: Sequence[Message]) -> _Played:
        """Which of equal answers the client saw: the one of which most came back, then one that arrived, then the last."""

        def fits(one: _Played) -> tuple[object, ...]:
            return num_kept(one, messages, self._played), self._receipts.is_received(one.turn.id), one.turn.id

        return max(alike, key=fits)

    def _branch_reason(self, wanted: CanonicalHistory, tools: str) -> str | None:
        return branch_reason(wanted, tools, [(one.request, one.history, one.tools) for one in self._played])

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
                f"{self._max_context_tokens}, which leaves no room for an answer; shorten the episode or the tool results."
            )
        max_tokens = min(max_tokens, room)
        return SampleRequest(
            session_id=self._id,
            prompt_ids=start.prompt_ids,
            sampling=sampling if sampling.max_tokens == max_tokens else replace(sampling, max_tokens=max_tokens),
            stop_ids=self._chat.stop_ids,
            stop_texts=stop_texts,
            constraint=constraint,
            seed=turn_seed(self._seed, request_index),
            order=(*self._order, request_index),
            deadline=self._deadline,
        )

    def _check(self, completion: Completion, oldest_allowed: int) -> None:
        """Raises InfrastructureError when a completion cannot be what was sampled."""
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
            problem = f"a constraint removed the probability {completion.removed_mass}"
        elif sum(count for _, count in completion.versions) != num_tokens:
            problem = f"its versions {completion.versions} do not add up to {num_tokens} tokens"
        elif versions != sorted(versions) or versions[0] < oldest_allowed or versions[-1] > self._engine.policy_version:
            problem = (
                f"its versions {versions} do not lie between {oldest_allowed} of the turn before "
                f"and {self._engine.policy_version} of the engine"
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
        turn_id = next(self._turn_ids)
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
            removed_mass=completion.removed_mass,
            stop_text=self._stop_text(completion, request.stop_texts),
            policy=self._policy,
            learns=self._learns,
            client=client,
        )

    def _stop_text(self, completion: Completion, stop_texts: Sequence[str]) -> str | None:
        """The stop text that an answer reached first; None when a stop id or the limit ended it."""
        if completion.stop_reason is not StopReason.STOP or completion.token_ids[-1] in self._chat.stop_ids:
            return None
        text = self._chat.decode(completion.token_ids)
        ends = {text.index(stop) + len(stop): stop for stop in stop_texts if stop in text}
        return ends[min(ends)] if ends else None


def _with_unique_call_ids(message: Message, turn_id: int) -> Message:
    """Tool calls named after turn and position, so that a client may tell them apart in the whole episode."""
    if not message.get("tool_calls"):
        return message
    calls = [{**call, "id": f"call_{turn_id}_{index}"} for index, call in enumerate(message["tool_calls"])]
    return {**message, "tool_calls": calls}
