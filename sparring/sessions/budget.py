"""How many tokens an episode may sample, also when its turns are played side by side."""

from __future__ import annotations

import asyncio
from typing import final

from sparring.errors import TokenLimit


@final
class TokenBudget:
    """What a turn may need is reserved before it is asked for; what it sampled is spent when it is over.

    A turn waits while those beside it may use up what it could need: so the budget holds, and an answer is cut only for
    tokens that were sampled.
    """

    def __init__(self, max_tokens: int | None, *, whose: str) -> None:
        """None is without bound. `whose` begins the message of a refusal."""
        self._max_tokens = max_tokens
        self._whose = whose
        self._num_spent = 0
        self._num_reserved = 0
        self._is_over = asyncio.Event()
        """Some turn is; each that waits looks again."""

    async def reserve(self, num_tokens: int) -> int:
        """How many a turn that could need `num_tokens` may sample; they are kept for it until `settle`. Raises TokenLimit
        when all were sampled."""
        if self._max_tokens is not None:
            while self._num_reserved and self._left(self._max_tokens) < num_tokens:
                self._is_over.clear()
                await self._is_over.wait()
            num_tokens = min(num_tokens, self._left(self._max_tokens))
        self._num_reserved += num_tokens
        return num_tokens

    def settle(self, num_reserved: int, num_sampled: int) -> None:
        """A turn is over: what was kept for it, and what it sampled."""
        self._num_reserved -= num_reserved
        self._num_spent += num_sampled
        self._is_over.set()

    def _left(self, max_tokens: int) -> int:
        """Apart from what is reserved."""
        left = max_tokens - self._num_spent
        if left < 1:
            raise TokenLimit(
                f"{self._whose} has sampled its {max_tokens} tokens; end the episode, or raise rollout.rollout_max_tokens."
            )
        return left - self._num_reserved
