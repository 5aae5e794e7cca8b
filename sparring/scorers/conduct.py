"""Code that the strict scorers share: sub-scores for an episode's conduct, and a mark for scorers that grade
behavior."""

from __future__ import annotations

from sparring.protocols import Scorer
from sparring.types import Outcome, Trajectory

_EXHAUSTED = frozenset({Outcome.MAX_TURNS, Outcome.MAX_TOKENS, Outcome.POLICY_TIMEOUT})


def conduct(trajectory: Trajectory) -> dict[str, float]:
    """Return sub-scores for the conduct of an episode. `completion`: the episode ended by itself. `budget_exhausted`:
    the turns, tokens or time ran out, so 0 is good. `tool_use`: the share of tool calls without an error; it is absent
    if there are no calls."""
    calls = trajectory.transitions
    parts = {
        "completion": float(trajectory.outcome is Outcome.FINISHED),
        "budget_exhausted": float(trajectory.outcome in _EXHAUSTED),
    }
    return parts | ({"tool_use": sum(call.get("error") is None for call in calls) / len(calls)} if calls else {})


def by_behavior(scorer: Scorer) -> Scorer:
    """Mark a scorer that grades what an answer does (the rows of a query, the results of a program). Under such a
    scorer, different wordings may be correct. `sparring check` then does not treat an answer as incorrect merely
    because it differs from the known one."""
    scorer.grades_behavior = True  # type: ignore[attr-defined]
    return scorer


def grades_behavior(scorer: object) -> bool:
    """Return whether a scorer has this mark."""
    return bool(getattr(scorer, "grades_behavior", False))
