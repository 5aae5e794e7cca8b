"""The session of a policy that answers in messages: the same door, without tokens."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack, final

from sparring.chat.messages import canonical_json
from sparring.errors import ConstraintError, InfrastructureError, PolicyTimeout, SparringError, TurnLimit
from sparring.protocols import MessageEngine, TokenCallback
from sparring.sessions.branching import branch_reason
from sparring.sessions.budget import TokenBudget
from sparring.sessions.matching import (
    CanonicalHistory,
    canonical_history,
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
from sparring.sessions.session import TurnOptions
from sparring.types import AnswerFormat, Message, MessageAnswer, MessageRequest, Sampling, ToolSchema, Turn

if TYPE_CHECKING:
    from sparring.sessions import AnySession


class MessageTurnOptions(TurnOptions, total=False):
    """How a turn is asked for, where not as the session asks. `on_token` is called for each piece of an answer under way,
    with a number that `read` understands."""

    seed: int | None


@dataclass(frozen=True, slots=True)
class _Played:
    """A turn with its request and the conversation that it made, as later requests are compared to them."""

    turn: Turn
    request: CanonicalHistory
    history: CanonicalHistory
    tools: str
    conversation: tuple[Message, ...]


@final
class MessageSession:
    """Plays turns for one episode with a `MessageEngine`.

    It does what `sessions.Session` does as far as messages go: a request that continues an earlier turn has it for a
    parent, any other starts a branch with a reason, every turn is recorded before it is answered. Its turns have no ids
    and no log-probabilities, so nothing of it can be trained.

        async with MessageSession(id="r0", engine=engine, sampling=Sampling()) as session:
            message = await session.chat([{"role": "user", "content": "Hello"}])
    """

    def __init__(
        self,
        *,
        id: str,
        engine: MessageEngine,
        sampling: Sampling,
        ledger: TurnLog | None = None,
        seed: int | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: str | None = None,
        learns: bool = True,
        turn_ids: Iterator[int] | None = None,
        others: Mapping[str, AnySession] | None = None,
    ) -> None:
        """`seed` is the episode's, None asks for none; towards `max_tokens` an answer whose engine does not count its tokens
        has one for each byte, the most there can be; the rest as in `sessions.Session`."""
        self._id = id
        self._policy = policy
        self._learns = learns
        self._turn_ids = itertools.count() if turn_ids is None else turn_ids
        self._others = dict(others or {})
        self._engine = engine
        self._sampling = sampling
        self._receipts = Receipts(id, ledger)
        self._seed = seed
        self._max_turns = max_turns
        self._budget = TokenBudget(max_tokens, whose=f"Session {id}")
        self._deadline = deadline
        self._clock = clock
        self._opened = clock()
        self._played: list[_Played] = []
        self._deltas: list[tuple[str, str]] = []
        """What was told of answers under way: where it belongs, and the text. `on_token` gets the place in this list."""
        self._num_asked = 0
        self._num_running = 0
        self._is_closed = False
        self._failure: SparringError | None = None
        self.refusals = Refusals()

    @property
    def id(self) -> str:
        return self._id

    @property
    def turns(self) -> tuple[Turn, ...]:
        """As `sessions.Session.turns`."""
        return self._receipts.counted(self.sampled_turns)

    @property
    def sampled_turns(self) -> tuple[Turn, ...]:
        """All turns so far, also those whose answer is on its way or did not arrive."""
        return tuple(played.turn for played in self._played)

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """The turns so far of all policies of the episode, by id."""
        return turns_of((self, *self._others.values()))

    @property
    def others(self) -> Mapping[str, AnySession]:
        """The sessions of the episode's other policies, by name."""
        return self._others

    def of(self, name: str) -> AnySession:
        """As `sessions.Session.of`."""
        return named(self._others, name)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the last turn, its answer included."""
        return self._played[-1].conversation if self._played else ()

    def conversation(self, turn_id: int) -> tuple[tuple[Message, ...], tuple[ToolSchema, ...]]:
        """The messages that led to a turn and its answer, and the tools that were offered."""
        played = next(played for played in self._played if played.turn.id == turn_id)
        return played.conversation, tuple(json.loads(played.tools))

    @property
    def sampling(self) -> Sampling:
        return self._sampling

    @property
    def seconds_left(self) -> float | None:
        """As `sessions.Session.seconds_left`."""
        return None if self._deadline is None else self._deadline - self._clock()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def failure(self) -> SparringError | None:
        """As `sessions.Session.failure`."""
        return first_failure(
            [self._failure, self.refusals.failure, *(other.failure for other in self._others.values())]
        )

    def read(self, token_ids: Sequence[int], tools: Sequence[ToolSchema], stop_texts: Sequence[str] = ()) -> Message:
        """The message so far, of an answer under way, from what its `on_token` was called with."""
        texts = {"content": "", "reasoning_content": ""}
        for place in token_ids:
            key, text = self._deltas[place]
            texts[key] += text
        reasoning = {"reasoning_content": texts["reasoning_content"]} if texts["reasoning_content"] else {}
        return {"role": "assistant", "content": texts["content"], **reasoning}

    def decode(self, token_ids: Sequence[int]) -> str | None:
        """The content that these pieces of an answer under way add; None when reasoning is among them."""
        deltas = [self._deltas[place] for place in token_ids]
        return "".join(text for _, text in deltas) if all(key == "content" for key, _ in deltas) else None

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Play one turn: the assistant's message. Raises as `play` does."""
        return (await self.play(messages, tools)).message

    async def play(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[MessageTurnOptions]
    ) -> Turn:
        """As `sessions.Session.play`."""
        turn = await self.sample(messages, tools, **options)
        await self.recorded([turn.id])
        self.set_received([turn.id])
        return turn

    async def sample(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), **options: Unpack[MessageTurnOptions]
    ) -> Turn:
        """As `sessions.Session.sample`. Raises TurnLimit after `max_turns` turns, InfrastructureError when the session is
        closed, and what `MessageEngine.answer` raises."""
        try:
            return await self._sample(messages, tools, **options)
        except ConstraintError:
            raise  # the request asked for what cannot be; the next may ask for less
        except SparringError as failure:
            if isinstance(failure, PolicyTimeout) and not self._learns:
                # Not the doing of the policy that learns.
                failure = InfrastructureError(f"Session {self._id} ({self._policy}): {failure}")
            self._failure = self._failure or failure
            raise failure

    async def recorded(self, turn_ids: Sequence[int]) -> None:
        """As `sessions.Session.recorded`."""
        await self._receipts.recorded(turn_ids)

    def set_received(self, turn_ids: Sequence[int]) -> None:
        """As `sessions.Session.set_received`."""
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
        seed: int | None = None,
    ) -> Turn:
        self._check_open()
        sampling = sampling or self._sampling
        if self._max_turns is not None and len(self._played) + self._num_running >= self._max_turns:
            raise TurnLimit(
                f"Session {self._id} has played its {self._max_turns} turns; end the episode, or raise agent.max_turns."
            )
        began = self._clock()
        wanted, tools_wanted = canonical_history(messages), canonical_json(list(tools))
        if seed is None and self._seed is not None:
            # Engines differ in how many bits they take; all take 31.
            seed = turn_seed(self._seed, self._num_asked) >> 32
        self._num_asked += 1

        def told(delta: Mapping[str, str]) -> None:
            assert on_token is not None
            for key, text in delta.items():
                self._deltas.append((key, text))
                on_token(len(self._deltas) - 1)

        self._num_running += 1
        num_reserved = num_sampled = 0
        try:
            num_reserved = await self._budget.reserve(sampling.max_tokens)
            parent, reason = self._parent(wanted, tools_wanted, messages)
            request = MessageRequest(
                session_id=self._id,
                messages=tuple(messages),
                tools=tuple(tools),
                sampling=replace(sampling, max_tokens=num_reserved),
                answer_format=answer_format or AnswerFormat(),
                seed=seed,
                stop_texts=tuple(stop_texts),
                deadline=self._deadline,
            )
            answer = await self._engine.answer(request, None if on_token is None else told)
            num_sampled = _num_sampled(answer, at_most=num_reserved)
        except SparringError:
            raise
        except Exception as error:
            raise InfrastructureError(f"Session {self._id}: the engine failed: {error!r}.") from error
        finally:
            self._num_running -= 1
            self._budget.settle(num_reserved, num_sampled)
        self._check_open()
        if parent is None and reason is None:
            # Another first request may have been answered meanwhile.
            reason = self._branch_reason(wanted, tools_wanted)
        seconds = self._clock() - began
        turn = self._turn(parent, reason, request, answer, began=began, seconds=seconds, client=client)
        history = (*wanted, canonical_message(turn.message))
        # No suspension from here on: session and ledger both have the turn, or neither.
        self._receipts.add(turn, request_digest=request_digest(message_digests(messages), tools_wanted))
        self._played.append(_Played(turn, wanted, history, tools_wanted, (*messages, turn.message)))
        self.refusals.accept()
        return turn

    def _check_open(self) -> None:
        if self._is_closed:
            raise InfrastructureError(f"Session {self._id} is closed: its episode has ended, so no turn may follow.")

    def continues(self, wanted: CanonicalHistory, tools: str) -> bool:
        """Whether a request, both canonical, goes on from a turn of this session, or is one of its requests again."""
        if continued(wanted, tools, self._played):
            return True
        return any(wanted == played.request and tools == played.tools for played in self._played)

    def close(self) -> None:
        """Later turns are refused, of the other policies too; closing twice is fine."""
        for other in self._others.values():
            other.close()
        self._is_closed = True
        self._receipts.close(self.sampled_turns)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.close()

    def _parent(
        self, wanted: CanonicalHistory, tools_wanted: str, messages: Sequence[Message]
    ) -> tuple[int | None, str | None]:
        """The turn that a request continues, or why it continues none. Of several the longest; of equal answers the one
        of which most came back, then one that arrived, then one that nothing continues yet, then the latest."""
        has_child = {played.turn.parent for played in self._played}

        def fits(one: _Played) -> tuple[object, ...]:
            kept, turn_id = num_kept(one, messages, self._played), one.turn.id
            return kept, self._receipts.is_received(turn_id), turn_id not in has_child, turn_id

        if alike := continued(wanted, tools_wanted, self._played):
            return max(alike, key=fits).turn.id, None
        return None, self._branch_reason(wanted, tools_wanted)

    def _branch_reason(self, wanted: CanonicalHistory, tools: str) -> str | None:
        return branch_reason(wanted, tools, [(one.request, one.history, one.tools) for one in self._played])

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
        turn_id, usage = next(self._turn_ids), answer.usage
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
            policy=self._policy,
            learns=self._learns,
            client=client,
        )


def _num_sampled(answer: MessageAnswer, *, at_most: int) -> int:
    """As the engine counts them; of one that does not, as many as there can be: a token is one byte at least."""
    if answer.usage is not None:
        return answer.usage.num_sampled_tokens
    functions = [call["function"] for call in answer.message.get("tool_calls") or ()]
    said = [answer.message.get(key) or "" for key in ("reasoning_content", "content")]
    said += [function[key] for function in functions for key in ("name", "arguments")]
    return min(at_most, sum(len(text.encode(errors="surrogatepass")) for text in said))


def _with_call_ids(message: Message, turn_id: int) -> Message:
    """Tool calls under the ids that the engine gave, which it may want to see again; named by place where it gave none."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "id": call.get("id") or f"call_{turn_id}_{index}"} for index, call in enumerate(message["tool_calls"])
    ]
    return {**message, "tool_calls": calls}
