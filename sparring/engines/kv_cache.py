"""Keys and values of past tokens: one row a session, prefixes copied from other rows instead of being computed again.

Shapes: rows of the cache, K key/value heads, L tokens a row, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparring.models.llama import LlamaShape


@dataclass(slots=True)
class Row:
    """One row: the tokens whose keys and values it holds, and under which weights they were computed."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    version: int = -1
    session_id: str | None = None
    is_busy: bool = False
    """A turn reads or writes it: it may not be evicted."""
    last_used: int = 0


class KVCache:
    """A fixed number of rows; idle rows are evicted, those of closed sessions first, then the longest unused."""

    def __init__(
        self, shape: LlamaShape, *, num_rows: int, row_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        size = (num_rows, shape.num_kv_heads, row_tokens, shape.head_dim)
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]
        self.row_tokens = row_tokens
        self._rows = [Row(index) for index in range(num_rows)]
        self._by_session: dict[str, Row] = {}
        self._closed: set[str] = set()
        self._clock = 0

    def claim(self, session_id: str, prompt_ids: Sequence[int], version: int) -> Row | None:
        """A busy row for a turn, holding as much of the prompt as any row with this version does, but never all of
        it: the last token has to be computed for its logits. None when every row is busy."""
        own = self._by_session.get(session_id)
        if own is not None and own.is_busy:
            own = None  # two turns of one session at a time: the second gets a row of its own
        kept = _common(own.token_ids, prompt_ids) if own is not None and own.version == version else 0
        limit = len(prompt_ids) - 1
        donor, shared = self.longest_prefix(prompt_ids, version) if kept < limit else (None, 0)
        row = own or self._evict(besides=donor)
        if row is None:
            return None
        if row.session_id is not None and self._by_session.get(row.session_id) is row:
            del self._by_session[row.session_id]
        if donor is not None and donor is not row and shared > kept:
            self._copy(donor, row, kept if own is row and row.version == version else 0, shared)
            row.token_ids = list(prompt_ids[:shared])
        elif own is not row:
            row.token_ids = []
        else:
            del row.token_ids[kept:]
        del row.token_ids[limit:]
        row.version, row.session_id, row.is_busy = version, session_id, True
        self._by_session[session_id] = row
        self._touch(row)
        return row

    def longest_prefix(self, prompt_ids: Sequence[int], version: int) -> tuple[Row | None, int]:
        """The row with this version that shares the most tokens with the prompt, and how many."""
        best, most = None, 0
        for row in self._rows:
            if row.version == version and len(row.token_ids) > most:
                shared = _common(row.token_ids, prompt_ids)
                if shared > most:
                    best, most = row, shared
        return best, most

    def release(self, row: Row) -> None:
        """The turn is over; the row stays cached."""
        row.is_busy = False
        self._touch(row)

    def close_session(self, session_id: str) -> None:
        """Its row may go first."""
        if session_id in self._by_session:
            self._closed.add(session_id)

    def drop_idle(self) -> None:
        """Forget every row that no turn uses, so that what comes next does not depend on what was cached."""
        for row in self._rows:
            if not row.is_busy:
                row.token_ids, row.version, row.session_id, row.last_used = [], -1, None, 0
        self._by_session = {row.session_id: row for row in self._rows if row.session_id is not None}
        self._closed.clear()

    def _evict(self, *, besides: Row | None) -> Row | None:
        idle = [row for row in self._rows if not row.is_busy]
        if not idle:
            return None
        others = [row for row in idle if row is not besides] or idle
        row = min(others, key=lambda row: (self._keep_value(row), row.last_used, row.index))
        self._closed.discard(row.session_id or "")
        return row

    def _keep_value(self, row: Row) -> int:
        if not row.token_ids:
            return 0
        return 1 if row.session_id is None or row.session_id in self._closed else 2

    def _copy(self, source: Row, target: Row, begin: int, end: int) -> None:
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[target.index, :, begin:end] = tensor[source.index, :, begin:end]

    def _touch(self, row: Row) -> None:
        self._clock += 1
        row.last_used = self._clock

    def write(self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [N, K, D] of tokens at (row, position)."""
        self.keys[layer][rows, :, positions] = keys
        self.values[layer][rows, :, positions] = values


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    limit = min(len(left), len(right))
    left, right = list(left[:limit]), list(right[:limit])
    if left == right:
        return limit
    low, high = 0, limit
    while low < high:  # the first `low` are equal, the first `high + 1` are not
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
