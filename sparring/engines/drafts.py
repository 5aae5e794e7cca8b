"""Drafts of the next tokens of a turn, taken from the tokens that other turns sampled after the same tokens.

The engine feeds a draft together with the last token, so one pass through the model may yield several tokens. A draft
never determines a token: the turn draws from the logits at each place, and the draft is used only as far as it agrees.
(In arXiv:2211.17192, the source of drafts is a smaller model; in arXiv:2304.04487, it is earlier text.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

NUM_EQUAL = 3
"""A continuation is used as a draft if this number of tokens before it is equal."""
LEAST_LOGPROB = -0.1
"""A draft ends before a token that was sampled with less than this log-probability, since it would often be wrong."""
MAX_PLACES = 200_000
"""The maximum number of stored places. When it is reached, all places are dropped."""


@final
class Drafts:
    """Stores the sampled tokens of turns, keyed by the tokens before them. A later turn replaces an earlier one."""

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self._max_places = max_places
        self._places: dict[tuple[int, ...], tuple[Sequence[int], Sequence[float], int]] = {}

    def remember(self, ids: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float]) -> None:
        """Store the last token of `ids`. `sampled` and `logprobs` are the tokens at the end of `ids` that a turn
        sampled, and their log-probabilities. Both may grow later, and are not copied."""
        if len(ids) > NUM_EQUAL:
            if len(self._places) >= self._max_places:
                self._places.clear()
            self._places[tuple(ids[-NUM_EQUAL - 1 : -1])] = (sampled, logprobs, len(sampled) - 1)

    def propose(self, ids: Sequence[int], limit: int) -> list[int]:
        """Return at most `limit` tokens that may follow `ids`."""
        found = self._places.get(tuple(ids[-NUM_EQUAL:]))
        if found is None or limit < 1:
            return []
        sampled, logprobs, begin = found
        draft: list[int] = []
        for token, logprob in zip(sampled[begin : begin + limit], logprobs[begin : begin + limit], strict=True):
            if logprob < LEAST_LOGPROB:
                break
            draft.append(token)
        return draft

    def forget(self) -> None:
        """Drop all places."""
        self._places.clear()
