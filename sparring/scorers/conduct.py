"""How an episode went, apart from what was answered: sub-scores that every strict scorer gives, and no rule of judgement."""

from __future__ import annotations

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
