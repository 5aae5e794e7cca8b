"""Attention of decoding passes: the new tokens of each row attend to the row's tokens in the cache.

On the CPU in fp32, a compiled function reads each row in place (sparring/models/kernels.py). Elsewhere, torch's fused attention
computes neighboring rows of equal capacity together.

Shapes: N new tokens of the flat batch, S tokens of the cache, B rows, K key/value heads, R query heads that share one
key/value head, L tokens per row, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from sparring.engines.kv_cache import KVCache, Row
from sparring.models.compiled import address_of, can_compile
from sparring.models.llama import Attend, LlamaShape
from sparring.models.token_tree import common_prefix

ALIGNMENT = 64
"""On a GPU, attention reads a multiple of this many positions of each row."""
MIN_SHARED = 32
"""The minimum number of equal tokens that several rows read from the same place."""

BuildAttention: TypeAlias = Callable[[LlamaShape, KVCache, Sequence[Row], Sequence[int]], Attend]
"""(shape, cache, rows, numbers of new tokens) -> a function that writes the keys and values of the new tokens to the cache
and returns their attention. The rows must be sorted by capacity and offset."""


def choose_attention(device: torch.device, dtype: torch.dtype) -> BuildAttention:
    """Return the fastest attention for decoding that the device and the precision allow."""
    return build_compiled if can_compile(device, dtype) else build_fused


def build_compiled(shape: LlamaShape, cache: KVCache, rows: Sequence[Row], counts: Sequence[int]) -> Attend:
    """Return an attention function that is compiled for the CPU. Several rows read their equal tokens from the same
    place, so that these tokens are in the processor's cache."""
    from sparring.models.kernels import attend_rows

    repeat, num_new = shape.num_heads // shape.num_kv_heads, sum(counts)
    firsts = list(accumulate(counts, initial=0))
    described, parts = [], list[_Part]()
    for index, shared in share_prefixes(rows):
        row = rows[index]
        end = len(parts) + len(shared)
        described.append((row.offset, len(row.token_ids), counts[index], firsts[index], len(parts), end))
        parts += shared
    rows_B_6, parts_M_3 = torch.tensor(described), torch.tensor(parts or [(0, 0, 0)])
    longest = max(known + count for _, known, count, *_ in described)
    read = sum((known + count) * count for _, known, count, *_ in described)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.new_empty(num_new, shape.num_heads * shape.head_dim)
        keys, values = cache.keys_K_S_D[layer], cache.values_K_S_D[layer]
        strides = [tensor.stride(0) for tensor in (q, k, v)]
        addresses = [address_of(one) for one in (q, k, v, out, keys, values)]
        addresses += [address_of(one, torch.int64) for one in (rows_B_6, parts_M_3)]
        sizes = (len(rows), num_new, shape.num_kv_heads, repeat, shape.head_dim, keys.shape[1], len(parts_M_3), longest)
        attend_rows([*sizes, *strides, *addresses], 2 * read * shape.num_heads * shape.head_dim)
        return out

    return attend


_Part: TypeAlias = tuple[int, int, int]
"""Tokens of a row that are read from another row: (first token, end, place of the first one in the cache)."""


def share_prefixes(rows: Sequence[Row]) -> list[tuple[int, list[_Part]]]:
    """Return the indices of the rows, with equal beginnings next to each other, and the parts of each row that earlier
    rows have read. The parts are the row's first tokens, without gaps."""
    ordered = sorted(range(len(rows)), key=lambda index: rows[index].token_ids)
    found: list[tuple[int, list[_Part]]] = []
    path: list[_Part] = []  # where the tokens of the row before are read
    before: Sequence[int] = ()
    for index in ordered:
        row, kept = rows[index], list[_Part]()
        shared = common_prefix(before, row.token_ids) if before else 0
        for begin, end, place in path:
            # The compiled function sums groups of four tokens. Parts of whole groups do not change the sums.
            stop = min(end, shared) // 4 * 4
            if stop - begin < MIN_SHARED:
                break
            kept.append((begin, stop, place))
        own = kept[-1][1] if kept else 0
        found.append((index, kept))
        path, before = [*kept, (own, len(row.token_ids), row.offset + own)], row.token_ids
    return found


def build_fused(shape: LlamaShape, cache: KVCache, rows: Sequence[Row], counts: Sequence[int]) -> Attend:
    """Return an attention function that runs one fused operation for each run of neighboring rows."""
    keys = cache.keys_K_S_D[0]
    num_new, repeat = sum(counts), shape.num_heads // shape.num_kv_heads
    places = [
        row.offset + len(row.token_ids) + new for row, count in zip(rows, counts, strict=True) for new in range(count)
    ]
    places_N = torch.tensor(places, device=keys.device)
    runs = _find_runs(rows, counts, repeat, device=keys.device, dtype=keys.dtype)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.write(layer, places_N, k, v)
        queries_N_K_R_D = q.reshape(num_new, shape.num_kv_heads, repeat, shape.head_dim)
        outputs = [run.attend(queries_N_K_R_D[run.members], keys, values) for run in runs]
        out = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return out.reshape(num_new, shape.num_heads * shape.head_dim)

    return attend


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Rows of equal capacity that one attention computation reads in place. They occupy at least half of the slots in
    their range of the cache (a slot has the size of one row)."""

    members: slice
    """The members' part of the flat batch."""
    begin: int
    end: int
    """The end of the range in the cache, in tokens (`begin` is its start)."""
    capacity: int
    longest: int
    num_new: int
    """The largest number of new tokens of a member. Each slot computes this number of queries."""
    places: Tensor | None
    """The index (slot * num_new + place) of each new token, or None if these are all indices in order."""
    mask: Tensor
    """[slots, 1 or num_new * R, longest], added to the scores."""

    def attend(self, queries_N_K_R_D: Tensor, keys_K_S_D: Tensor, values_K_S_D: Tensor) -> Tensor:
        """Return the attention [N, K, R, D] of the members' new tokens."""
        num_slots, (num_heads, repeat, head_dim) = len(self.mask), queries_N_K_R_D.shape[1:]
        if self.places is not None:
            spread = queries_N_K_R_D.new_zeros(num_slots * self.num_new, num_heads, repeat, head_dim)
            queries_N_K_R_D = spread.index_copy_(0, self.places, queries_N_K_R_D)
        # The new tokens of a row read the same keys, like the query heads that share a key head.
        apart = queries_N_K_R_D.reshape(num_slots, self.num_new, num_heads, repeat, head_dim)
        keys, values = self._read(keys_K_S_D), self._read(values_K_S_D)
        queries = apart.transpose(1, 2).flatten(2, 3)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask[:, None])
        out = out.unflatten(2, (self.num_new, repeat)).transpose(1, 2).flatten(0, 1)
        return out if self.places is None else out[self.places]

    def _read(self, tensor_K_S_D: Tensor) -> Tensor:
        """Return the part of each slot that some member reads: [slots, K, longest, D]."""
        slots = tensor_K_S_D[:, self.begin : self.end].unflatten(1, (-1, self.capacity))
        return slots[:, :, : self.longest].transpose(0, 1)


def _find_runs(
    rows: Sequence[Row], counts: Sequence[int], repeat: int, *, device: torch.device, dtype: torch.dtype
) -> list[_Run]:
    """Divide the batch into runs. A new run begins at each capacity change, and wherever a run would skip more slots
    than it uses. `counts` are the numbers of new tokens of the rows."""
    cuts = [0]
    for index in range(1, len(rows)):
        first, row = rows[cuts[-1]], rows[index]
        num_slots = (row.offset - first.offset) // row.capacity + 1
        if row.capacity != first.capacity or num_slots > 2 * (index + 1 - cuts[-1]):
            cuts.append(index)
    runs = []
    ends = [0, *accumulate(counts)]
    for start, stop in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        members, added = rows[start:stop], counts[start:stop]
        num_new = max(added)
        begin, end, capacity = members[0].offset, members[-1].offset + members[0].capacity, members[0].capacity
        num_slots = (end - begin) // capacity
        lengths = [0] * num_slots  # a skipped row attends to some token, but its result is never read
        slots = [(row.offset - begin) // capacity for row in members]
        for slot, row in zip(slots, members, strict=True):
            lengths[slot] = len(row.token_ids)
        longest = max(len(row.token_ids) + count for row, count in zip(members, added, strict=True))
        if device.type == "cuda":
            # The rounded length lets the next tokens use the kernel that was chosen or built for this shape, and lets
            # the kernel read the aligned mask in place.
            longest = min(capacity, -(-longest // ALIGNMENT) * ALIGNMENT)
        positions = torch.arange(longest, device=device)
        last = torch.tensor(lengths, device=device)[:, None] + torch.arange(num_new, device=device)
        if num_new > 1:
            last = last.repeat_interleave(repeat, dim=1)
        is_hidden = positions > last[:, :, None]
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=device).masked_fill_(is_hidden, float("-inf"))
        places = [slot * num_new + place for slot, count in zip(slots, added, strict=True) for place in range(count)]
        runs.append(
            _Run(
                members=slice(ends[start], ends[stop]),
                begin=begin,
                end=end,
                capacity=capacity,
                longest=longest,
                num_new=num_new,
                places=None if len(places) == num_slots * num_new else torch.tensor(places, device=device),
                mask=mask,
            )
        )
    return runs
