"""Sessions. A session is one episode's private access to the policy. Each request continues an earlier turn or starts a
branch."""

from typing import TypeAlias

from sparring.sessions.identity import EpisodeIdentity, EpisodeLimits
from sparring.sessions.message_session import MessageSession
from sparring.sessions.seeds import episode_seed, policy_seed, turn_seed
from sparring.sessions.session import Session

AnySession: TypeAlias = Session | MessageSession
"""A session as agents and the gateway use it, with or without the policy's token ids."""

__all__ = [
    "AnySession",
    "EpisodeIdentity",
    "EpisodeLimits",
    "MessageSession",
    "Session",
    "episode_seed",
    "policy_seed",
    "turn_seed",
]
