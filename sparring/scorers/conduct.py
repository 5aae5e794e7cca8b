"""What strict scorers share: sub-scores of how an episode went, and whether they grade by what an answer does."""

from __future__ import annotations

from sparring.protocols import Scorer
from sparring.types import Outcome, Trajectory

_EXHAUSTED = frozenset({Outcome.MAX_TURNS, Outcome.MAX_TOKENS, Outcome.POLICY_TIMEOUT})


def conduct(trajectory: Trajectory) -> dict[str, float]:
    """`completion`: it came to its end by itself. `budget_exhausted`: turns, tokens or time ran out, so 0 is good. `tool_use`:
    the share of tool calls that the environment took without error; absent without calls."""
    calls = trajectory.transitions
    parts = {
        "completion": float(trajectory.outcome is Outcome.FINISHED),
        "budget_exhausted": float(trajectory.outcome in _EXHAUSTED),
    }
    return parts | ({"tool_use": sum(call.get("error") is None for call in calls) / len(calls)} if calls else {})


def by_behavior(scorer: Scorer) -> Scorer:
    """Mark a scorer that grades an answer by what it does (the rows of a query, what a program returns), so that other texts may
    be as right. `sparring check` then calls no other text wrong because it differs from the known answer."""
    scorer.grades_behavior = True  # type: ignore[attr-defined]
    return scorer


def grades_behavior(scorer: object) -> bool:
    """Whether a scorer is marked so."""
    return bool(getattr(scorer, "grades_behavior", False))
