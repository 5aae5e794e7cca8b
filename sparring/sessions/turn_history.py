"""The turns of one session: the answered requests, the received turns and the first failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, final

from sparring.errors import InfrastructureError, SparringError
from sparring.sessions.branching import branch_reason
from sparring.sessions.identity import EpisodeIdentity
from sparring.sessions.matching import CanonicalHistory, continued, num_kept
from sparring.sessions.policies import first_failure, named
from sparring.sessions.receipts import Receipts, TurnLog
from sparring.sessions.refusals import Refusals
from sparring.types import Message, Turn

if TYPE_CHECKING:
    from sparring.sessions import AnySession


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A turn with the request that it answered, in the form in which they are compared with later requests."""

    turn: Turn
    request: CanonicalHistory
    history: CanonicalHistory
    """The request and the answer."""
    tools: str
    """The tools of the request, as canonical JSON."""


Answered = TypeVar("Answered", bound=AnsweredRequest)


@final
class TurnHistory(Generic[Answered]):
    """The state that `Session` and `MessageSession` share: the turns so far, their failures, and the episode's other
    sessions."""

    def __init__(
        self, identity: EpisodeIdentity, ledger: TurnLog | None, others: Mapping[str, AnySession] | None
    ) -> None:
        self.answered: list[Answered] = []
        self.others: Mapping[str, AnySession] = dict(others or {})
        self.refusals = Refusals()
        self.is_closed = False
        self._first_request: float | None = None
        self._label = identity.label
        self._receipts = Receipts(identity.id, ledger)
        self._failure: SparringError | None = None

    @property
    def sampled(self) -> tuple[Turn, ...]:
        """All turns so far, including those whose answer is still being sent or was not received."""
        return tuple(one.turn for one in self.answered)

    @property
    def counted(self) -> tuple[Turn, ...]:
        """The turns so far. A turn is left out if its answer was not received and no other turn continues it."""
        return self._receipts.counted(self.sampled)

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """The turns so far of all policies of the episode, by id."""
        turns = [*self.counted, *(turn for other in self.others.values() for turn in other.turns)]
        return tuple(sorted(turns, key=lambda turn: turn.id))

    @property
    def failure(self) -> SparringError | None:
        """The first failure of a turn or, if there was none, the refusal of the last request. An infrastructure
        failure, even of another policy, comes first."""
        return first_failure([self._failure, self.refusals.failure, *(other.failure for other in self.others.values())])

    @property
    def first_request(self) -> float | None:
        """The time on the monotonic clock, in seconds, of the episode's first request to any of its policies, or None
        if there was none."""
        times = [self._first_request, *(other.first_request for other in self.others.values())]
        return min((time for time in times if time is not None), default=None)

    def of(self, name: str) -> AnySession:
        """Return the session of another policy. Raises UsageError for a name that the recipe does not define."""
        return named(self.others, name)

    def check_open(self) -> None:
        """Raise InfrastructureError if the session is closed."""
        if self.is_closed:
            raise InfrastructureError(f"Session {self._label} is closed: its episode has ended, so no turn may follow.")

    def begin(self, now: float) -> None:
        """Remember the time of the first request."""
        if self._first_request is None:
            self._first_request = now

    def fail(self, failure: SparringError) -> None:
        """Remember the first failure of a turn."""
        self._failure = self._failure or failure

    def add(self, answered: Answered, *, request_digest: str) -> None:
        """Add a sampled turn and queue it for the ledger. If the ledger raises an error, the turn is added to
        neither."""
        self._receipts.add(answered.turn, request_digest=request_digest)
        self.answered.append(answered)
        self.refusals.accept()

    async def recorded(self, turn_ids: Sequence[int]) -> None:
        """Wait until these turns are on disk. Raises ServiceError if they cannot be written."""
        await self._receipts.recorded(turn_ids)

    def set_received(self, turn_ids: Sequence[int]) -> None:
        """Mark the answers of these turns as received."""
        self._receipts.set_received(turn_ids)

    def continued_by(self, wanted: CanonicalHistory, tools: str) -> list[Answered]:
        """Return the turns that a request continues. There are several if their answers are equal
        (`matching.continued`)."""
        return continued(wanted, tools, self.answered)

    def likeness(self, one: Answered, messages: Sequence[Message]) -> tuple[object, bool]:
        """Return a sort key that distinguishes equal answers: how much of the answer came back unchanged, then whether
        it was received."""
        return num_kept(one, messages, self.answered), self._receipts.is_received(one.turn.id)

    def branch_reason(self, wanted: CanonicalHistory, tools: str) -> str | None:
        """Return why a request continues no turn, or None for the first request."""
        return branch_reason(wanted, tools, [(one.request, one.history, one.tools) for one in self.answered])

    def close_others(self) -> None:
        """Close the sessions of the episode's other policies."""
        for other in self.others.values():
            other.close()

    def close(self) -> None:
        """Refuse later turns, and record which turns do not count. Closing twice is allowed."""
        self.is_closed = True
        self._receipts.close(self.sampled)
