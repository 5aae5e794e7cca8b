"""The budget of turns and tokens of one episode. It is also enforced when turns are sampled concurrently."""

from __future__ import annotations

import asyncio
from typing import final

from sparring.errors import TokenLimit, TurnLimit
from sparring.sessions.identity import EpisodeLimits


@final
class TurnBudget:
    """Reserves the tokens that a turn may need before the turn is requested, and counts the sampled tokens when it
    ends.

    A turn waits as long as concurrent turns could use the tokens that it may need. The budget is therefore never
    exceeded, and an answer is cut only because of tokens that were actually sampled.
    """

    def __init__(self, limits: EpisodeLimits, *, whose: str) -> None:
        """`whose` is the subject of error messages, such as "Session r0"."""
        self._max_turns = limits.max_turns
        self._max_tokens = limits.max_tokens
        self._whose = whose
        self._num_running = 0
        self._num_spent = 0
        self._num_reserved = 0
        self._is_over = asyncio.Event()
        """Set when a turn ends. Each waiting turn then checks the budget again."""

    def check_turns(self, num_turns: int) -> None:
        """Raise TurnLimit if the `num_turns` finished turns and the running turns reach the limit."""
        if self._max_turns is not None and num_turns + self._num_running >= self._max_turns:
            raise TurnLimit(
                f"{self._whose} has used its {self._max_turns} turns; end the episode, or raise agent.max_turns."
            )

    def start(self) -> None:
        """Count a turn as running until `settle` is called."""
        self._num_running += 1

    async def reserve(self, num_tokens: int) -> int:
        """Return how many tokens a running turn that may need `num_tokens` is allowed to sample. These tokens stay
        reserved until `settle` is called. Raises TokenLimit if all tokens of the episode have been sampled."""
        if self._max_tokens is not None:
            while self._num_reserved and self._left(self._max_tokens) < num_tokens:
                self._is_over.clear()
                await self._is_over.wait()
            num_tokens = min(num_tokens, self._left(self._max_tokens))
        self._num_reserved += num_tokens
        return num_tokens

    def settle(self, num_reserved: int, num_sampled: int) -> None:
        """End a running turn: release its reserved tokens, and count the sampled tokens."""
        self._num_running -= 1
        self._num_reserved -= num_reserved
        self._num_spent += num_sampled
        self._is_over.set()

    def _left(self, max_tokens: int) -> int:
        """Return how many tokens are neither sampled nor reserved. Raises TokenLimit if all tokens have been
        sampled."""
        left = max_tokens - self._num_spent
        if left < 1:
            raise TokenLimit(
                f"{self._whose} has sampled its {max_tokens} tokens; end the episode, or raise rollout.rollout_max_tokens."
            )
        return left - self._num_reserved
