"""One episode's private door to the policy: match, splice, branch, record."""

from typing import TypeAlias

from sparring.sessions.message_session import MessageSession
from sparring.sessions.seeds import episode_seed, policy_seed, turn_seed
from sparring.sessions.session import Session

AnySession: TypeAlias = Session | MessageSession
"""What agents and the gateway play through: whether the policy's tokens are known is the session's affair."""

__all__ = ["AnySession", "MessageSession", "Session", "episode_seed", "policy_seed", "turn_seed"]
