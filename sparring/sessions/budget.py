"""How many tokens an episode may sample, also when its turns are played side by side."""

from __future__ import annotations

import asyncio
from typing import final

from sparring.errors import TokenLimit


@final
class TokenBudget:
    """What a turn may need is reserved before it is asked for, and settled when it is over.

    A turn waits while those beside it may use up what it could need: so the budget holds, and an answer is cut only for
    tokens that were sampled.

        num_tokens, num_sampled = await budget.reserve(sampling.max_tokens), 0
        try:
            num_sampled = len(await sampled(num_tokens))
        finally:
            budget.settle(num_tokens, num_sampled)
    """

    def __init__(self, max_tokens: int | None, *, whose: str) -> None:
        """None is without bound. `whose` begins the message of a refusal."""
        self._max_tokens = max_tokens
        self._whose = whose
        self._num_sampled = 0
        self._num_reserved = 0
        self._is_over = asyncio.Event()
        """Some turn is; each that waits looks again."""

    async def reserve(self, num_tokens: int) -> int:
        """How many tokens a turn may sample that could need `num_tokens`. Raises TokenLimit when all were sampled."""
        if self._max_tokens is not None:
            while self._num_reserved and self._left(self._max_tokens) < num_tokens:
                self._is_over.clear()
                await self._is_over.wait()
            num_tokens = min(num_tokens, self._left(self._max_tokens))
        self._num_reserved += num_tokens
        return num_tokens

    def settle(self, num_reserved: int, num_sampled: int) -> None:
        """The turn that reserved so many is over, and has sampled so many."""
        self._num_reserved -= num_reserved
        self._num_sampled += num_sampled
        self._is_over.set()

    def _left(self, max_tokens: int) -> int:
        """Apart from what is reserved."""
        left = max_tokens - self._num_sampled
        if left < 1:
            raise TokenLimit(
                f"{self._whose} has sampled its {max_tokens} tokens; end the episode, or raise rollout.rollout_max_tokens."
            )
        return left - self._num_reserved
