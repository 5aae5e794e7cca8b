"""Every rollout and turn, durable and accounted for: the one truth of a run."""

from sparring.ledger.ledger import Ledger, RolloutRecord
from sparring.ledger.states import DiscardReason, RolloutState

__all__ = ["DiscardReason", "Ledger", "RolloutRecord", "RolloutState"]
