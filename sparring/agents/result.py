"""What an agent hands back when its episode is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparring.errors import (
    AgentFailed,
    AgentTimeout,
    ClientError,
    ContextOverflow,
    EpisodeError,
    InfrastructureError,
    OutputRefused,
    PolicyTimeout,
    TokenLimit,
    TurnLimit,
)
from sparring.sessions import AnySession
from sparring.types import Json, Message, Outcome, Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """How an episode went, apart from the turns, which its session recorded."""

    outcome: Outcome
    messages: tuple[Message, ...] = ()
    """The conversation as the agent saw it; empty when only the session knows it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    transitions: tuple[Mapping[str, Json], ...] = ()
    final_state: Json = None
    error: str | None = None
    reward: Reward | None = None
    """Set by agents that judge themselves; the others' rewards come from a reward function."""


LIMITS: Mapping[type[EpisodeError], Outcome] = {
    ContextOverflow: Outcome.MAX_TOKENS,
    TurnLimit: Outcome.MAX_TURNS,
    TokenLimit: Outcome.MAX_TOKENS,
    PolicyTimeout: Outcome.POLICY_TIMEOUT,
    OutputRefused: Outcome.POLICY_ERROR,
}
"""How an episode ends whose policy met one of its limits, or said what its client was refused for."""
_BUDGETS = (TurnLimit, TokenLimit, PolicyTimeout)
"""No turn follows these."""


def overtime(timeout_seconds: float) -> float:
    """Seconds that an agent or a call of its environment may take to return once the time of the episode is over: as long
    again, between 1 s and 60 s.

    What an agent that returns by then reports, counts. Where one hangs longer, the policy was late if it has played a turn: what
    hangs follows from what it said, and a policy could otherwise make its failures count as outages.
    """
    return min(60.0, max(1.0, timeout_seconds))


def limit_met(failure: Exception | None) -> AgentResult | None:
    """The result of an episode whose agent failed after a turn met a limit of the policy; None for any other failure. Raises
    a ClientError itself: what the agent made of the refusal says nothing of the policy."""
    if isinstance(failure, ClientError):
        raise failure
    outcome = LIMITS.get(type(failure)) if isinstance(failure, EpisodeError) else None
    return None if outcome is None else AgentResult(outcome=outcome, error=str(failure))


def ended_elsewhere(failure: InfrastructureError, session: AnySession) -> AgentResult:
    """The result of an episode that an agent did not play to its end. Where a turn met a limit, that is the outcome; where the
    agent's own code failed after the policy had played, `policy_error`, or `policy_timeout` where it hung. Raises the failure
    where it is an outage, and a ClientError."""
    if (limit := limit_met(session.failure)) is not None:
        return limit
    if session.failure is None and isinstance(failure, AgentFailed) and has_played(session):
        is_late = isinstance(failure, AgentTimeout)
        return AgentResult(outcome=Outcome.POLICY_TIMEOUT if is_late else Outcome.POLICY_ERROR, error=str(failure))
    raise failure


def has_played(session: AnySession) -> bool:
    """Whether the policy has played a turn of the episode."""
    return any(turn.learns for turn in session.episode_turns)


def within_budget(played: AgentResult, failure: Exception | None) -> AgentResult:
    """What an agent handed back, its end put down to the budget where one was used up: the agent may have made the best of
    it, and its reward stays."""
    limit = limit_met(failure) if isinstance(failure, _BUDGETS) else None
    if limit is None or played.outcome is not Outcome.FINISHED:
        return played
    return replace(played, outcome=limit.outcome, error=limit.error)


def ended_by(error: Exception | None, session: object, problem: str) -> AgentResult:
    """The result of an agent that failed. Where a turn hit a limit, that is the outcome: over HTTP an agent sees it as an
    error of its client. Raises the session's InfrastructureError or ClientError where there is one."""
    for failure in (error, getattr(session, "failure", None)):
        if isinstance(failure, InfrastructureError):
            raise failure
        if (result := limit_met(failure)) is not None:
            return result
    return AgentResult(outcome=Outcome.POLICY_ERROR, error=problem)
