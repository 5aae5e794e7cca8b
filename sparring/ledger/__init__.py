"""The durable record of every rollout and turn of a run."""

from sparring.ledger.ledger import Ledger, RolloutRecord
from sparring.ledger.states import DiscardReason, RolloutState

__all__ = ["DiscardReason", "Ledger", "RolloutRecord", "RolloutState"]
