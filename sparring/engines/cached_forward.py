"""The two computations of an engine: feed prompt tokens into the cache, and decode one token of each turn.

Shapes: N tokens of the flat batch, B rows, K key/value heads, R query heads that share one, L tokens a row, D head
dimension, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparring.engines.kv_cache import KVCache, Row
from sparring.models.llama import LlamaWeights, attend_causally, forward


@torch.inference_mode()
def prefill(weights: LlamaWeights, cache: KVCache, chunks: Sequence[tuple[Row, Sequence[int]]]) -> None:
    """Compute the keys and values of new tokens of each row; they attend to what the row holds and to themselves."""
    device = weights.embed.device
    spans = [(row.offset, len(row.token_ids), len(row.token_ids) + len(new)) for row, new in chunks]
    ids_N = torch.tensor([token for _, new in chunks for token in new], device=device)
    positions_N = torch.cat([torch.arange(begin, end, device=device) for _, begin, end in spans])
    places_N = torch.cat([torch.arange(offset + begin, offset + end, device=device) for offset, begin, end in spans])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.keys_S_K_D[layer], cache.values_S_K_D[layer]
        keys.index_copy_(0, places_N, k)
        values.index_copy_(0, places_N, v)
        outputs, first = [], 0
        for offset, begin, end in spans:
            known = slice(offset, offset + end)
            outputs.append(attend_causally(weights.shape, q[first : first + end - begin], keys[known], values[known]))
            first += end - begin
        return torch.cat(outputs)

    forward(weights, ids_N, positions_N, attend)
    for row, new in chunks:
        row.token_ids += new


@torch.inference_mode()
def decode(weights: LlamaWeights, cache: KVCache, rows: Sequence[Row], token_ids: Sequence[int]) -> Tensor:
    """Feed one token to each row; logits [B, V] of the next. Rows come sorted by capacity and offset."""
    shape, device = weights.shape, weights.embed.device
    runs = _runs(rows, device=device, dtype=weights.embed.dtype)
    positions_B = torch.tensor([len(row.token_ids) for row in rows], device=device)
    places_B = torch.tensor([row.offset + len(row.token_ids) for row in rows], device=device)
    repeat = shape.num_heads // shape.num_kv_heads

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.keys_S_K_D[layer], cache.values_S_K_D[layer]
        keys.index_copy_(0, places_B, k)
        values.index_copy_(0, places_B, v)
        queries_B_K_R_D = q.reshape(len(rows), shape.num_kv_heads, repeat, shape.head_dim)
        outputs = [run.attend(queries_B_K_R_D[run.members], keys, values) for run in runs]
        out = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return out.reshape(len(rows), shape.num_heads * shape.head_dim)

    hidden_B_H = forward(weights, torch.tensor(token_ids, device=device), positions_B, attend)
    for row, token in zip(rows, token_ids, strict=True):
        row.token_ids.append(token)
    return F.linear(hidden_B_H, weights.lm_head)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Rows of one capacity, at least half of them side by side, that one attention reads in place."""

    members: slice
    """Of the batch."""
    begin: int
    end: int
    """Of the cache, in tokens."""
    capacity: int
    longest: int
    places: Tensor | None
    """Which of the capacities between begin and end are the members'; None when all are."""
    mask: Tensor
    """[capacities, 1, 1, longest], added to the scores."""

    def attend(self, queries_B_K_R_D: Tensor, keys_S_K_D: Tensor, values_S_K_D: Tensor) -> Tensor:
        if self.places is not None:
            spread = queries_B_K_R_D.new_zeros(len(self.mask), *queries_B_K_R_D.shape[1:])
            queries_B_K_R_D = spread.index_copy_(0, self.places, queries_B_K_R_D)
        out = F.scaled_dot_product_attention(
            queries_B_K_R_D, self._rows(keys_S_K_D), self._rows(values_S_K_D), attn_mask=self.mask
        )
        return out if self.places is None else out[self.places]

    def _rows(self, tensor_S_K_D: Tensor) -> Tensor:
        rows = tensor_S_K_D[self.begin : self.end].unflatten(0, (-1, self.capacity))
        return rows[:, : self.longest].transpose(1, 2)


def _runs(rows: Sequence[Row], *, device: torch.device, dtype: torch.dtype) -> list[_Run]:
    """Cut the batch where the capacity changes, or where more capacities would be skipped than are in use."""
    cuts = [0]
    for index in range(1, len(rows)):
        first, row = rows[cuts[-1]], rows[index]
        num_slots = (row.offset - first.offset) // row.capacity + 1
        if row.capacity != first.capacity or num_slots > 2 * (index + 1 - cuts[-1]):
            cuts.append(index)
    runs = []
    for start, stop in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        members = rows[start:stop]
        begin, end, capacity = members[0].offset, members[-1].offset + members[0].capacity, members[0].capacity
        num_slots = (end - begin) // capacity
        lengths = [0] * num_slots  # a skipped row attends to its first token, whatever that is: nobody reads the result
        slots = [(row.offset - begin) // capacity for row in members]
        for slot, row in zip(slots, members, strict=True):
            lengths[slot] = len(row.token_ids)
        longest = max(lengths) + 1
        is_hidden = torch.arange(longest, device=device) > torch.tensor(lengths, device=device)[:, None]
        mask = torch.zeros(num_slots, longest, dtype=dtype, device=device).masked_fill_(is_hidden, float("-inf"))
        runs.append(
            _Run(
                members=slice(start, stop), begin=begin, end=end, capacity=capacity, longest=longest,
                places=None if num_slots == len(members) else torch.tensor(slots, device=device),
                mask=mask[:, None, None],
            )
        )  # fmt: skip
    return runs
