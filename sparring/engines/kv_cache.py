"""The cache for the keys and values of past tokens, with one row per session. Prefixes are copied from other rows, not
recomputed.

The keys of each layer occupy one block of memory per head, which is divided into rows. The capacity of a row is the
maximum context length, halved zero or more times. Short histories therefore take little space. Rows of equal capacity
are adjacent, so attention reads neighboring rows in place.

Shapes: S tokens in the cache, K key/value heads, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
from torch import Tensor

from sparring.models.llama import LlamaShape
from sparring.models.token_tree import common_prefix
from sparring.models.zeroed_memory import ZeroedMemory

SMALLEST_ROW = 64
"""The smallest capacity of a row, in tokens. Shorter rows would split a batch into too many pieces for the memory that
they save."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Row:
    """A row of the cache, with the tokens whose keys and values it contains, and the weights that computed them."""

    offset: int
    capacity: int
    session_id: str
    fingerprint: str
    token_ids: list[int] = field(default_factory=list)
    num_turns: int = 1
    """The number of turns that use the row; their histories are equal."""
    is_closed: bool = False
    """Whether the row's session has ended. Such rows are evicted before rows that may be read again."""
    last_used: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether a turn reads or writes the row. Such a row must not be evicted."""
        return self.num_turns > 0


@final
class KVCache:
    """A cache of at most `num_tokens` tokens. When the cache is full, idle rows are evicted: first the rows of closed
    sessions, then the least recently used rows."""

    def __init__(
        self,
        shape: LlamaShape,
        *,
        num_tokens: int,
        max_row_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        keeps_rows: bool = True,
        has_trunk: bool = False,
    ) -> None:
        """Create a cache. If `keeps_rows` is False, a row is freed at the end of its turn. With `has_trunk`, it also has
        space for the outputs of the frozen layers."""
        self._space = Space(num_tokens, largest=min(max_row_tokens, num_tokens))
        size = (shape.num_kv_heads, self._space.num_tokens, shape.head_dim)
        trunk_size = (1, self._space.num_tokens, shape.hidden_size if has_trunk else 0)
        num_elements = 2 * shape.num_layers * math.prod(size) + math.prod(trunk_size)
        # The values must be zeros, because attention multiplies masked values by 0, and 0 times garbage may be NaN.
        self._memory = ZeroedMemory(num_elements * dtype.itemsize) if device.type == "cpu" else None
        zeros = partial(torch.zeros, dtype=dtype, device=device)
        if self._memory is not None:
            zeros = partial(self._memory.take, dtype=dtype)
        self.keys_K_S_D = [zeros(size) for _ in range(shape.num_layers)]
        self.values_K_S_D = [zeros(size) for _ in range(shape.num_layers)]
        self.trunk_1_S_H = zeros(trunk_size) if has_trunk else None
        self.row_tokens = min(max_row_tokens, num_tokens)
        """The longest history that fits into a row."""
        self._keeps_rows = keeps_rows
        self._rows: list[Row] = []
        self._clock = 0

    def claim(self, session_id: str, token_ids: Sequence[int], fingerprint: str, *, room: int) -> Row | None:
        """Return a busy row for a turn, with space for `token_ids` and `room` more tokens, or None if busy rows leave
        no space. The row contains the longest cached prefix of `token_ids`, but never the last token, which must be
        computed to get its logits."""
        known = token_ids[:-1] if self._keeps_rows else []
        size = min(len(token_ids) + room, self.row_tokens)
        donor, shared = self.longest_prefix(session_id, known, fingerprint)
        is_own = donor is not None and donor.session_id == session_id and not donor.is_busy
        # A row that would lose most of its tokens belongs to another conversation: an episode has several if it has
        # several policies.
        if donor is not None and is_own and 2 * shared >= len(donor.token_ids):
            row = self._take_over(donor, size)
        else:
            row = self._new_row(session_id, fingerprint, size, besides=donor)
            if row is None and donor is not None and not donor.is_busy:
                row = self._take_over(donor, size)
            elif row is not None and donor is not None:
                self._copy(donor.offset, row.offset, shared)
                row.token_ids = list(known[:shared])
        if row is None:
            return None
        del row.token_ids[shared:]
        row.session_id, row.num_turns, row.is_closed = session_id, 1, False
        self._touch(row)
        return row

    def longest_prefix(self, session_id: str, token_ids: Sequence[int], fingerprint: str) -> tuple[Row | None, int]:
        """Return the row with the longest common prefix among the rows of these weights, and the length of that prefix.
        If several rows are equally good, prefer the session's own idle row."""
        best, most, best_is_own = None, 0, False
        wanted = list(token_ids)
        for row in self._rows:
            if row.fingerprint != fingerprint or row.token_ids[:most] != wanted[:most]:
                continue
            is_own = row.session_id == session_id and not row.is_busy
            shared = common_prefix(row.token_ids, wanted)
            if shared > most or (shared == most > 0 and is_own and not best_is_own):
                best, most, best_is_own = row, shared, is_own
        return best, most

    def grow(self, row: Row, num_tokens: int) -> bool:
        """Give the row space for `num_tokens` tokens. If busy rows leave no space, change nothing and return False."""
        while row.capacity < num_tokens:
            moved = self._space.double(row.offset, row.capacity)
            if moved is not None:
                self._copy(row.offset, moved, len(row.token_ids))
                row.offset, row.capacity = moved, 2 * row.capacity
            elif not self._evict(besides=row):
                return False
        return True

    def release(self, row: Row) -> None:
        """End one turn of a row. The row keeps its tokens for later turns."""
        row.num_turns -= 1
        self._touch(row)
        if not row.is_busy and not self._keeps_rows:
            self._free(row)

    def write(self, layer: int, places_N: Tensor, keys_N_K_D: Tensor, values_N_K_D: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of new tokens, and return all keys and values of the layer, [K, S, D]."""
        keys, values = self.keys_K_S_D[layer], self.values_K_S_D[layer]
        keys.index_copy_(1, places_N, keys_N_K_D.transpose(0, 1))
        values.index_copy_(1, places_N, values_N_K_D.transpose(0, 1))
        return keys, values

    def close_session(self, session_id: str) -> None:
        """Mark the rows of a session that has ended. They are evicted first."""
        for row in self._rows:
            if row.session_id == session_id:
                row.is_closed = True

    def drop(self, *, besides: frozenset[str] = frozenset(), session_id: str | None = None) -> None:
        """Drop idle rows: either all rows computed with weights other than `besides`, or the rows of one session."""
        for row in list(self._rows):
            if session_id is None:
                is_wanted = row.fingerprint in besides
            else:
                is_wanted = row.session_id != session_id
            if not is_wanted and not row.is_busy:
                self._free(row)

    def return_memory(self) -> None:
        """Return the memory of the cache to the system if it has no row and is on the CPU."""
        if self._memory is not None and not self._rows:
            self._memory.clear()

    @property
    def num_bytes(self) -> int:
        """The size of all keys and values, in bytes."""
        return sum(tensor.nbytes for tensor in (*self.keys_K_S_D, *self.values_K_S_D))

    @property
    def num_busy(self) -> int:
        return sum(row.is_busy for row in self._rows)

    def _new_row(self, session_id: str, fingerprint: str, size: int, *, besides: Row | None) -> Row | None:
        while (taken := self._space.take(size)) is None:
            if not self._evict(besides=besides):
                return None
        row = Row(*taken, session_id, fingerprint)
        self._rows.append(row)
        return row

    def _take_over(self, row: Row, size: int) -> Row | None:
        return row if self.grow(row, size) else None

    def _evict(self, *, besides: Row | None) -> bool:
        idle = [row for row in self._rows if not row.is_busy and row is not besides]
        if not idle:
            return False
        self._free(min(idle, key=lambda row: (not row.is_closed, row.last_used)))
        return True

    def _free(self, row: Row) -> None:
        self._rows.remove(row)
        self._space.give(row.offset, row.capacity)

    def _copy(self, source: int, target: int, num_tokens: int) -> None:
        if source == target:
            return
        trunk = () if self.trunk_1_S_H is None else (self.trunk_1_S_H,)
        for tensor in (*self.keys_K_S_D, *self.values_K_S_D, *trunk):
            tensor[:, target : target + num_tokens] = tensor[:, source : source + num_tokens]

    def _touch(self, row: Row) -> None:
        self._clock += 1
        row.last_used = self._clock


@final
class Space:
    """The free space of the cache. It is a buddy allocator; each capacity is `largest`, halved zero or more times.

    A block of capacity c starts at a multiple of c. Its buddy is the other half of the block from which it was split.
    Two free buddies become one block again. The lowest block that fits is used, so the used space stays contiguous.
    """

    def __init__(self, num_tokens: int, *, largest: int) -> None:
        halvings = max(0, (largest // SMALLEST_ROW).bit_length() - 1)
        smallest = -(-largest // 2**halvings)
        self.capacities = tuple(smallest << power for power in range(halvings + 1))
        top = self.capacities[-1]
        self.num_tokens = max(1, num_tokens // top) * top
        self._free: dict[int, set[int]] = {capacity: set() for capacity in self.capacities}
        self._free[top] = set(range(0, self.num_tokens, top))

    def take(self, size: int) -> tuple[int, int] | None:
        """Return (offset, capacity) of a new block of at least `size` tokens, or None if there is none."""
        wanted = next(capacity for capacity in self.capacities if capacity >= size)
        for capacity in self.capacities:
            if capacity < wanted or not self._free[capacity]:
                continue
            offset = min(self._free[capacity])
            self._free[capacity].remove(offset)
            while capacity > wanted:
                capacity //= 2
                self._free[capacity].add(offset + capacity)
            return offset, wanted
        return None

    def give(self, offset: int, capacity: int) -> None:
        """Free a block."""
        while capacity < self.capacities[-1] and _buddy(offset, capacity) in self._free[capacity]:
            self._free[capacity].remove(_buddy(offset, capacity))
            offset, capacity = min(offset, _buddy(offset, capacity)), 2 * capacity
        self._free[capacity].add(offset)

    def double(self, offset: int, capacity: int) -> int | None:
        """Exchange a block for one twice as large, and return the offset of the new block, or None if there is no such
        block. The block is joined with its buddy if the buddy is free."""
        buddy = _buddy(offset, capacity)
        if buddy in self._free[capacity]:
            self._free[capacity].remove(buddy)
            return min(offset, buddy)
        taken = self.take(2 * capacity)
        if taken is None:
            return None
        # The old block is freed at once. Nothing is written there before the next call of `take`, and the caller copies
        # first.
        self.give(offset, capacity)
        return taken[0]


def _buddy(offset: int, capacity: int) -> int:
    return offset + capacity if (offset // capacity) % 2 == 0 else offset - capacity
