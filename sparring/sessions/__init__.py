"""One episode's private door to the policy: match, splice, branch, record."""

from sparring.sessions.seeds import episode_seed, policy_seed, turn_seed
from sparring.sessions.session import Session

__all__ = ["Session", "episode_seed", "policy_seed", "turn_seed"]
