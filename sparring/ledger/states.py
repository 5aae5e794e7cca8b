"""The life cycle of a rollout: its states, the legal transitions, and the closed set of reasons for discarding one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class RolloutState(StrEnum):
    """State of a rollout. DISCARDED and EVALUATED are final. TRAINED is final unless the checkpoint is lost."""

    PLANNED = "planned"
    LEASED = "leased"
    RUNNING = "running"
    FINISHED = "finished"
    SCORED = "scored"
    ADMITTED = "admitted"
    CLAIMED = "claimed"
    TRAINED = "trained"
    DISCARDED = "discarded"
    EVALUATED = "evaluated"


class DiscardReason(StrEnum):
    """Reason for not training on a rollout."""

    STALE = "stale"
    TRUNCATED_POLICY = "truncated_policy"
    INFRA_ERROR = "infra_error"
    ENV_TIMEOUT = "env_timeout"
    CLIENT_ERROR = "client_error"
    REWARD_ERROR = "reward_error"
    TOKEN_MISMATCH = "token_mismatch"
    NONFINITE = "nonfinite"
    GROUP_INCOMPLETE = "group_incomplete"
    SUPERSEDED_ATTEMPT = "superseded_attempt"
    OPERATOR_CANCEL = "operator_cancel"
    ZERO_SIGNAL = "zero_signal"
    REWOUND = "rewound"


FINAL_STATES = frozenset({RolloutState.TRAINED, RolloutState.DISCARDED, RolloutState.EVALUATED})
SPLITS = ("train", "validation", "held_out", "recorded")
CONTROL_LABEL = "control-"
"""How the label of a control's validation begins. The control may be trained in another process than the run."""

_FORWARD = {
    RolloutState.PLANNED: {RolloutState.LEASED},
    RolloutState.LEASED: {RolloutState.RUNNING},
    RolloutState.RUNNING: {RolloutState.FINISHED},
    RolloutState.FINISHED: {RolloutState.SCORED},
    RolloutState.SCORED: {RolloutState.ADMITTED, RolloutState.EVALUATED},
    RolloutState.ADMITTED: {RolloutState.CLAIMED},
    # If a step is lost, its claims are undone, and another step may claim the rollouts.
    RolloutState.CLAIMED: {RolloutState.TRAINED, RolloutState.ADMITTED},
    RolloutState.TRAINED: set[RolloutState](),
}
TRANSITIONS: Mapping[RolloutState, frozenset[RolloutState]] = MappingProxyType(
    {
        state: frozenset(_FORWARD[state] | {RolloutState.DISCARDED}) if state in _FORWARD else frozenset()
        for state in RolloutState
    }
)
"""Legal next states. Every state that is not final may become discarded. `trained` may become discarded if its
checkpoint is lost."""


def broken_rule(
    before: RolloutState, after: RolloutState, *, split: str, step: int | None, reason: DiscardReason | None
) -> str | None:
    """Return the reason why a rollout may not change from one state to another, or None if it may."""
    if after not in TRANSITIONS[before]:
        legal = ", ".join(sorted(TRANSITIONS[before])) or "none, because it is final"
        return f"{before} cannot become {after} (legal next states: {legal})"
    if before is RolloutState.TRAINED and reason is not DiscardReason.REWOUND:
        return f"trained cannot become discarded({reason}), only discarded(rewound): its checkpoint is lost"
    if after is RolloutState.ADMITTED and split != "train":
        return f"a rollout of split {split!r} cannot be admitted to training"
    if after is RolloutState.EVALUATED and split == "train":
        return "a rollout of split 'train' cannot end as evaluated"
    if (after in (RolloutState.CLAIMED, RolloutState.TRAINED)) != (step is not None):
        return f"{after} with step {step}: only the states claimed and trained have a step, and they must have one"
    if (after is RolloutState.DISCARDED) != (reason is not None):
        return f"{after} with reason {reason}: only the state discarded has a reason, and it must have one"
    return None
