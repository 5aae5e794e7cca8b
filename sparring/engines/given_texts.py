"""The log-probabilities of given texts. Requests that wait at the same time share a pass, which computes what their texts
have in common once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from sparring.models.threads import releases_threads

MAX_TOKENS = 8192
"""The largest number of tokens of a pass with several texts. A longer text has its own pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Ids whose log-probabilities are computed, given the ids before them."""

    token_ids: tuple[int, ...]
    temperature: float
    first: int
    """The index of the first id with a log-probability; at least 1."""


Compute: TypeAlias = Callable[[Any, Sequence[Text]], list[list[float]]]
"""Returns the log-probabilities (in nats) of each text's ids from its index `first` on, under the given weights."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    weights: Any
    text: Text
    result: Future[list[float]] = field(default_factory=Future)


@final
class GivenTexts:
    """Computes the log-probabilities of given texts in threads, one pass at a time: several passes at once would need more
    memory and compete for the processor."""

    def __init__(self, compute: Compute, *, max_tokens: int = MAX_TOKENS) -> None:
        self._compute, self._max_tokens = compute, max_tokens
        self._computing = threading.Lock()
        self._waiting: list[_Request] = []
        """Threads only append and remove, which needs no lock."""

    async def logprobs(self, weights: Any, text: Text) -> list[float]:
        """Return the log-probabilities of the text's ids from its index `first` on. Raises the error of its pass."""
        if len(text.token_ids) <= text.first:
            return []
        request = _Request(weights=weights, text=text)
        self._waiting.append(request)
        await asyncio.sleep(0)  # requests that are made together are computed together
        return await asyncio.to_thread(releases_threads(self._answer), request)

    def _answer(self, request: _Request) -> list[float]:
        with self._computing:
            if not request.result.done():
                self._compute_pass(self._take(request))
        return request.result.result()

    def _take(self, request: _Request) -> list[_Request]:
        """Remove a request from the waiting ones, with those that may be computed with it, and return them."""
        together, num_tokens = [request], len(request.text.token_ids)
        for other in list(self._waiting):
            size = len(other.text.token_ids)
            if other is not request and other.weights is request.weights and num_tokens + size <= self._max_tokens:
                together.append(other)
                num_tokens += size
        for one in together:
            self._waiting.remove(one)
        return together

    def _compute_pass(self, together: Sequence[_Request]) -> None:
        try:
            found = self._compute(together[0].weights, [one.text for one in together])
        except Exception as error:  # noqa: BLE001 - each request raises it
            for one in together:
                one.result.set_exception(error)
            return
        for one, logprobs in zip(together, found, strict=True):
            one.result.set_result(logprobs)
