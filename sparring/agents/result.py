"""What an agent hands back when its episode is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparring.types import Json, Message, Outcome, Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """How an episode went, apart from the turns, which its session recorded."""

    outcome: Outcome
    messages: tuple[Message, ...] = ()
    """The conversation as the agent saw it; empty when only the session knows it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    transitions: tuple[Mapping[str, Json], ...] = ()
    error: str | None = None
    reward: Reward | None = None
    """Set by agents that judge themselves; the others' rewards come from a reward function."""
