"""The identity of a session (its episode and its policy) and the limits of an episode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sparring.sessions.seeds import policy_seed


@dataclass(frozen=True, slots=True)
class EpisodeIdentity:
    """The episode of a session, and the policy to which the session gives access.

    The sessions of one episode differ only in the policy and its seed. `for_policy` derives the others from the main
    one.
    """

    id: str
    seed: int | None = field(default=None, kw_only=True)
    """The seed of the episode (`seeds.episode_seed`). None counts as 0; a `MessageEngine` then receives no seed."""
    order: tuple[int, ...] = field(default=(), kw_only=True)
    """The episode's position in the run (task position, attempt). An engine orders its requests by this position."""
    policy: str | None = field(default=None, kw_only=True)
    """The name of the policy, or None for the main policy."""
    learns: bool = field(default=True, kw_only=True)
    """Whether the policy is being trained."""
    turn_ids: Iterator[int] = field(default_factory=itertools.count, kw_only=True, repr=False, compare=False)
    """The source of turn ids, which are unique in the episode."""

    @property
    def label(self) -> str:
        """The id, with the name of the policy if the policy has one."""
        return self.id if self.policy is None else f"{self.id} ({self.policy})"

    def for_policy(self, name: str, place: int, *, learns: bool) -> EpisodeIdentity:
        """Return the identity of another policy of the episode. It draws its turn ids from the same source but has its
        own seed."""
        seed = None if self.seed is None else policy_seed(self.seed, name)
        return replace(self, seed=seed, order=(*self.order, place), policy=name, learns=learns)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """The limits of one policy in an episode. None means that there is no limit."""

    max_turns: int | None = None
    max_tokens: int | None = None
    """The maximum number of tokens that all turns together may sample."""
    max_context_tokens: int | None = None
    """The maximum number of tokens of one turn, prompt and answer together. The context length of the engine is also a
    limit."""
    deadline: float | None = None
    """The time on the session's monotonic clock, in seconds, after which a turn raises PolicyTimeout."""


UNLIMITED = EpisodeLimits()
