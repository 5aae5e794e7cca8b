"""The session of a policy that answers in messages and whose tokens are unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack, final

from sparring.chat.messages import canonical_json
from sparring.errors import ConstraintError, InfrastructureError, PolicyTimeout, SparringError
from sparring.protocols import MessageEngine, TokenCallback
from sparring.runtime.clock import SYSTEM_CLOCK, Clock
from sparring.sessions.budget import TurnBudget
from sparring.sessions.identity import UNLIMITED, EpisodeIdentity, EpisodeLimits
from sparring.sessions.matching import (
    CanonicalHistory,
    canonical_history,
    canonical_message,
    message_digests,
    request_digest,
)
from sparring.sessions.receipts import TurnLog
from sparring.sessions.refusals import Refusals
from sparring.sessions.seeds import turn_seed
from sparring.sessions.session import TurnOptions
from sparring.sessions.turn_history import AnsweredRequest, TurnHistory
from sparring.types import AnswerFormat, Message, MessageAnswer, MessageRequest, Sampling, ToolSchema, Turn

if TYPE_CHECKING:
    from sparring.sessions import AnySession


class MessageTurnOptions(TurnOptions, total=False):
    """The options of one turn that differ from the session's. `on_token` is called for each piece of a running answer,
    with a number that `read` accepts in place of a token id."""

    seed: int | None
    """The seed of the turn. None derives the seed from the episode's seed."""


@dataclass(frozen=True, slots=True)
class _AnsweredConversation(AnsweredRequest):
    conversation: tuple[Message, ...]
    """The messages of the request and the answer, unchanged."""


@final
class MessageSession:
    """Runs the turns of one episode with a `MessageEngine`.

    It treats messages in the same way as `sessions.Session`. The parent of a turn is the earlier turn that its request
    continues. Any other request starts a branch with a reason, and every turn is recorded before its answer is sent.
    The turns have no token ids and no log-probabilities, so they cannot be trained on.

        async with MessageSession(EpisodeIdentity("r0"), engine=engine, sampling=Sampling()) as session:
            message = await session.chat([{"role": "user", "content": "Hello"}])
    """

    def __init__(
        self,
        identity: EpisodeIdentity,
        *,
        engine: MessageEngine,
        sampling: Sampling,
        ledger: TurnLog | None = None,
        limits: EpisodeLimits = UNLIMITED,
        clock: Clock = SYSTEM_CLOCK,
        others: Mapping[str, AnySession] | None = None,
    ) -> None:
        """Create a session. The arguments are the same as for `sessions.Session`. If the engine does not report token
        counts, each byte of an answer counts as one token towards `limits.max_tokens`, which is an upper bound. The
        engine limits its own context."""
        self._identity = identity
        self._label = identity.label
        self._engine = engine
        self._sampling = sampling
        self._deadline = limits.deadline
        self._budget = TurnBudget(limits, whose=f"Session {self._label}")
        self._clock = clock.monotonic
        self._opened = self._clock()
        self._history: TurnHistory[_AnsweredConversation] = TurnHistory(identity, ledger, others)
        self._deltas: list[tuple[str, str]] = []
        """The pieces of running answers: the field to which each piece belongs, and its text. `on_token` gets the index
        in this list."""
        self._num_requests = 0

    @property
    def id(self) -> str:
        return self._identity.id

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The same as `sessions.Session.turns`."""
        return self._history.counted

    @property
    def sampled_turns(self) -> tuple[Turn, ...]:
        """The same as `sessions.Session.sampled_turns`."""
        return self._history.sampled

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """The same as `sessions.Session.episode_turns`."""
        return self._history.episode_turns

    @property
    def first_request(self) -> float | None:
        """The same as `sessions.Session.first_request`."""
        return self._history.first_request

    @property
    def others(self) -> Mapping[str, AnySession]:
        """The same as `sessions.Session.others`."""
        return self._history.others

    def of(self, name: str) -> AnySession:
        """Return the session of another policy, in the same way as `sessions.Session.of`."""
        return self._history.of(name)

    @property
    def refusals(self) -> Refusals:
        """The same as `sessions.Session.refusals`."""
        return self._history.refusals

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the last turn, including its answer."""
        answered = self._history.answered
        return answered[-1].conversation if answered else ()

    def conversation(self, turn_id: int) -> tuple[tuple[Message, ...], tuple[ToolSchema, ...]]:
        """Return the messages of a turn, including its answer, and the tools of its request."""
        answered = next(one for one in self._history.answered if one.turn.id == turn_id)
        return answered.conversation, tuple(json.loads(answered.tools))

    @property
    def sampling(self) -> Sampling:
        return self._sampling

    @property
    def seconds_left(self) -> float | None:
        """The same as `sessions.Session.seconds_left`."""
        return None if self._deadline is None else self._deadline - self._clock()

    @property
    def is_closed(self) -> bool:
        return self._history.is_closed

    @property
    def failure(self) -> SparringError | None:
        """The same as `sessions.Session.failure`."""
        return self._history.failure

    def read(self, token_ids: Sequence[int], tools: Sequence[ToolSchema], stop_texts: Sequence[str] = ()) -> Message:
        """Return what has arrived so far of an unfinished answer, as a message. `token_ids` are the numbers with which
        `on_token` was called."""
        texts = {"content": "", "reasoning_content": ""}
        for place in token_ids:
            key, text = self._deltas[place]
            texts[key] += text
        reasoning = {"reasoning_content": texts["reasoning_content"]} if texts["reasoning_content"] else {}
        return {"role": "assistant", "content": texts["content"], **reasoning}

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """Return the content that these pieces of a running answer add, or None if one of them is reasoning."""
        deltas = [self._deltas[place] for place in token_ids]
        return "".join(text for _, text in deltas) if all(key == "content" for key, _ in deltas) else None

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Sample one turn and return the assistant's message. Raises the same errors as `play`."""
        return (await self.play(messages, tools)).message

    async def play(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[MessageTurnOptions]
    ) -> Turn:
        """Sample and record one turn, in the same way as `sessions.Session.play`."""
        turn = await self.sample(messages, tools, **options)
        await self.recorded([turn.id])
        self.set_received([turn.id])
        return turn

    async def sample(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[MessageTurnOptions]
    ) -> Turn:
        """Sample one turn, in the same way as `sessions.Session.sample`. Raises TurnLimit after `max_turns` turns,
        InfrastructureError if the session is closed, and any error that `MessageEngine.answer` raises."""
        try:
            return await self._sample(messages, tools, **options)
        except ConstraintError:
            raise  # the answer format cannot be enforced; the next request may have another one
        except SparringError as failure:
            if isinstance(failure, PolicyTimeout) and not self._identity.learns:
                # The policy in training did not cause the delay.
                failure = InfrastructureError(f"Session {self._label}: {failure}")
            self._history.fail(failure)
            raise failure

    async def recorded(self, turn_ids: Sequence[int]) -> None:
        """Wait until these turns are on disk, in the same way as `sessions.Session.recorded`."""
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
        seed: int | None = None,
    ) -> Turn:
        self._history.check_open()
        sampling = sampling or self._sampling
        self._budget.check_turns(len(self._history.answered))
        began = self._clock()
        self._history.begin(began)
        wanted, tools_wanted = canonical_history(messages), canonical_json(list(tools))
        if seed is None and self._identity.seed is not None:
            # Engines accept seeds of different lengths; all accept 31 bits.
            seed = turn_seed(self._identity.seed, self._num_requests) >> 32
        self._num_requests += 1

        def add_delta(delta: Mapping[str, str]) -> None:
            assert on_token is not None
            for key, text in delta.items():
                self._deltas.append((key, text))
                on_token(len(self._deltas) - 1)

        self._budget.start()
        num_reserved = num_sampled = 0
        try:
            num_reserved = await self._budget.reserve(sampling.max_tokens)
            parent, reason = self._parent(wanted, tools_wanted, messages)
            request = MessageRequest(
                session_id=self.id,
                messages=tuple(messages),
                tools=tuple(tools),
                sampling=replace(sampling, max_tokens=num_reserved),
                answer_format=answer_format or AnswerFormat(),
                seed=seed,
                stop_texts=tuple(stop_texts),
                deadline=self._deadline,
            )
            answer = await self._engine.answer(request, None if on_token is None else add_delta)
            num_sampled = _num_sampled(answer, at_most=num_reserved)
        except SparringError:
            raise
        except Exception as error:
            raise InfrastructureError(f"Session {self._label}: the engine failed: {error!r}.") from error
        finally:
            self._budget.settle(num_reserved, num_sampled)
        self._history.check_open()
        if parent is None and reason is None:
            # Another first request may have been answered in the meantime.
            reason = self._history.branch_reason(wanted, tools_wanted)
        seconds = self._clock() - began
        turn = self._turn(parent, reason, request, answer, began=began, seconds=seconds, client=client)
        answered = _AnsweredConversation(
            turn, wanted, (*wanted, canonical_message(turn.message)), tools_wanted, (*messages, turn.message)
        )
        # There is no await from here on: either both the session and the ledger have the turn, or neither does.
        self._history.add(answered, request_digest=request_digest(message_digests(messages), tools_wanted))
        return turn

    def continues(self, wanted: CanonicalHistory, tools: str) -> bool:
        """Return whether a request (messages and tools in canonical form) continues a turn of this session or repeats
        an earlier request."""
        if self._history.continued_by(wanted, tools):
            return True
        return any(wanted == one.request and tools == one.tools for one in self._history.answered)

    def close(self) -> None:
        """Refuse later turns, including those of the other policies. Closing twice is allowed."""
        self._history.close_others()
        self._history.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.close()

    def _parent(
        self, wanted: CanonicalHistory, tools_wanted: str, messages: Sequence[Message]
    ) -> tuple[int | None, str | None]:
        """Return the turn that a request continues, or the reason why it continues none. The longest conversation wins.
        Among equal answers, the first criterion is how much of the answer came back unchanged. Then received answers
        come first, then answers that no turn continues yet, and finally the latest answers."""
        has_child = {one.turn.parent for one in self._history.answered}

        def likeness(one: _AnsweredConversation) -> tuple[object, ...]:
            turn_id = one.turn.id
            return (*self._history.likeness(one, messages), turn_id not in has_child, turn_id)

        if alike := self._history.continued_by(wanted, tools_wanted):
            return max(alike, key=likeness).turn.id, None
        return None, self._history.branch_reason(wanted, tools_wanted)

    def _turn(
        self,
        parent: int | None,
        reason: str | None,
        request: MessageRequest,
        answer: MessageAnswer,
        *,
        began: float,
        seconds: float,
        client: str | None,
    ) -> Turn:
        turn_id, usage = next(self._identity.turn_ids), answer.usage
        return Turn(
            id=turn_id,
            parent=parent,
            branch_reason=reason,
            prompt_ids=(),
            token_ids=(),
            sampled_logprobs=(),
            versions=((0, 0),),
            fingerprint=self._engine.fingerprint,
            stop_reason=answer.stop_reason,
            sampling=request.sampling,
            message=_with_call_ids(answer.message, turn_id),
            num_computed_tokens=0 if usage is None else usage.num_prompt_tokens + usage.num_sampled_tokens,
            began=began - self._opened,
            seconds=seconds,
            usage=usage,
            policy=self._identity.policy,
            learns=self._identity.learns,
            client=client,
        )


def _num_sampled(answer: MessageAnswer, *, at_most: int) -> int:
    """Return the number of sampled tokens that the engine reported. Without a report, return one token per byte, which
    is an upper bound."""
    if answer.usage is not None:
        return answer.usage.num_sampled_tokens
    functions = [call["function"] for call in answer.message.get("tool_calls") or ()]
    texts = [answer.message.get(key) or "" for key in ("reasoning_content", "content")]
    texts += [function[key] for function in functions for key in ("name", "arguments")]
    return min(at_most, sum(len(text.encode(errors="surrogatepass")) for text in texts))


def _with_call_ids(message: Message, turn_id: int) -> Message:
    """Return the message with an id for each tool call. The id is the engine's own id, because later requests to the
    engine may have to contain it. Without one, the id is derived from the turn and the position."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "id": call.get("id") or f"call_{turn_id}_{index}"} for index, call in enumerate(message["tool_calls"])
    ]
    return {**message, "tool_calls": calls}
