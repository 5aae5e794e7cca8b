"""The result that an agent returns when its episode is over."""

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
from sparring.protocols import SessionLike
from sparring.sessions import AnySession
from sparring.types import AgentReport, Json, Message, Outcome, Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The result of an episode, except its turns, which the session has recorded."""

    outcome: Outcome
    messages: tuple[Message, ...] = ()
    """The conversation as the agent saw it. It is empty if only the session knows it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    transitions: tuple[Mapping[str, Json], ...] = ()
    final_state: Json = None
    artifacts: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    reward: Reward | None = None
    """The reward from an agent that grades its own episodes. If it is None, the recipe's reward function grades
    them."""

    @classmethod
    def of_report(cls, report: AgentReport, reward: Reward | None) -> AgentResult:
        """Return the result of an agent that finished its episode and handed over a checked report."""
        return cls(outcome=Outcome.FINISHED, reward=reward).handing_over(report)

    def handing_over(self, report: AgentReport) -> AgentResult:
        """Return the result with the state, the calls and the artifacts of a checked report."""
        return replace(
            self,
            final_state=report.final_state,
            transitions=tuple(report.transitions),
            artifacts=report.artifacts,
        )


LIMITS: Mapping[type[EpisodeError], Outcome] = {
    ContextOverflow: Outcome.MAX_TOKENS,
    TurnLimit: Outcome.MAX_TURNS,
    TokenLimit: Outcome.MAX_TOKENS,
    PolicyTimeout: Outcome.POLICY_TIMEOUT,
    OutputRefused: Outcome.POLICY_ERROR,
}
"""The outcomes of episodes whose policy reached a limit, or whose output the gateway refused."""
_BUDGETS = (TurnLimit, TokenLimit, PolicyTimeout)
"""The limits after which no more turns are possible."""


def overtime(timeout_seconds: float) -> float:
    """Return how many seconds an agent, or a call of its environment, may take to return after the episode's time
    limit. The result equals the time limit, but is at least 1 s and at most 60 s.

    If the agent returns within this time, its result counts. If the agent hangs longer and the policy has had a turn,
    the outcome is `policy_timeout`. The hang may be caused by the policy's output, and a policy must not be able to
    turn its failures into infrastructure failures.
    """
    return min(60.0, max(1.0, timeout_seconds))


def limit_met(failure: BaseException | None) -> AgentResult | None:
    """Return the result of an episode that failed because a turn reached a limit of the policy, or None for any other
    failure. Raises a ClientError unchanged, because how an agent reacts to a refused request is not evidence about the
    policy."""
    if isinstance(failure, ClientError):
        raise failure
    outcome = LIMITS.get(type(failure)) if isinstance(failure, EpisodeError) else None
    return None if outcome is None else AgentResult(outcome=outcome, error=str(failure))


def ended_elsewhere(failure: InfrastructureError, session: AnySession) -> AgentResult:
    """Return the result of an episode that an external agent did not finish. If a turn reached a limit, that limit is
    the outcome. If the agent's own code failed after a turn of the policy, the outcome is `policy_error`, or
    `policy_timeout` if the code hung. Raises the failure if it is an infrastructure failure, and any ClientError."""
    if (limit := limit_met(session.failure)) is not None:
        return limit
    if session.failure is None and isinstance(failure, AgentFailed) and has_played(session):
        is_late = isinstance(failure, AgentTimeout)
        return AgentResult(outcome=Outcome.POLICY_TIMEOUT if is_late else Outcome.POLICY_ERROR, error=str(failure))
    raise failure


def broken_again(failure: InfrastructureError, session: AnySession) -> AgentResult:
    """Return the result of an episode that broke its environment or its agent in an earlier attempt, and has now done so
    again: the outcome is `policy_error`, or the limit that a turn reached. Raises the failure if the policy has had no turn
    or if a turn failed, because then the policy is not the cause."""
    if (limit := limit_met(session.failure)) is not None:
        return limit
    if session.failure is not None or not has_played(session):
        raise failure
    return AgentResult(
        outcome=Outcome.POLICY_ERROR,
        error=f"{failure} The same happened in an earlier attempt, each time after a turn, so the policy counts as the cause.",
    )


def has_played(session: SessionLike) -> bool:
    """Return whether the policy has had a turn in the episode."""
    return any(turn.learns for turn in session.episode_turns)


def check_first_request(played: AgentResult, session: AnySession, *, began: float, timeout_seconds: float) -> None:
    """Raise AgentTimeout if the episode ran out of time, the policy has had no turn, and the agent used more than half
    of the time before its first request. A policy that has not acted did not cause the delay: the agent started too
    slowly. `began` is on the session's monotonic clock."""
    if played.outcome is not Outcome.POLICY_TIMEOUT or has_played(session):
        return
    first = session.first_request
    if first is None or first - began > timeout_seconds / 2:
        when = (
            "requested no turn within" if first is None else f"requested its first turn after {first - began:.3g} s of"
        )
        raise AgentTimeout(
            f"the agent {when} rollout_timeout = {timeout_seconds:g} s, so the policy had too little time to "
            "answer; raise rollout.rollout_timeout, or start the agent faster (its imports, its environment's reset)"
        )


def within_budget(played: AgentResult, failure: Exception | None) -> AgentResult:
    """Return the agent's result. If a budget is used up, the outcome of the episode is that limit instead. The agent
    may have finished without further turns, so its reward is kept."""
    limit = limit_met(failure) if isinstance(failure, _BUDGETS) else None
    if limit is None or played.outcome is not Outcome.FINISHED:
        return played
    return replace(played, outcome=limit.outcome, error=limit.error)


def ended_by(error: BaseException | None, session: SessionLike, problem: str) -> AgentResult:
    """Return the result of an agent that failed. If a turn reached a limit, that limit is the outcome, since the agent
    sees the limit only as an error of its HTTP client.

    Raises the session's InfrastructureError or ClientError if there is one, and AgentFailed if the policy has had no turn,
    because then it is not the cause.
    """
    for failure in (error, getattr(session, "failure", None)):
        if isinstance(failure, InfrastructureError):
            raise failure
        if (result := limit_met(failure)) is not None:
            return result
    if not has_played(session):
        raise AgentFailed(f"{problem}. This was before the policy's first turn, so the policy is not the cause.")
    return AgentResult(outcome=Outcome.POLICY_ERROR, error=problem)
