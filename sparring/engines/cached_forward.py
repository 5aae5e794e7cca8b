"""The computations of an engine: writing prompts to the cache, decoding one token of each turn, and scoring whole
sequences.

Shapes: N tokens of the flat batch, S tokens of the cache, B rows, K key/value heads, R query heads that share one
key/value head, L tokens per row, D head dimension, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Protocol, final
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from sparring.engines.kv_cache import KVCache, Row
from sparring.models.forest import forest_logprobs, layout
from sparring.models.generic import GenericModel
from sparring.models.llama import LlamaShape, LlamaWeights, Masks, attend_causally, forward
from sparring.models.packed import PackedMatrices
from sparring.models.policy import Policy
from sparring.models.products import compute_logits, is_exact
from sparring.models.token_tree import common_prefix
from sparring.types import TokenSegment, Weights

MIN_SHARING_ROWS, MIN_SHARED_PROMPT = 16, 64
"""The minimum number of rows, and the minimum length of a common prefix in tokens, for which attention over the prefix
is computed jointly."""

MAX_DECODED_TOKENS = {"cpu": 32, "cuda": 64}
"""Up to this number of tokens, a decoding pass takes hardly longer than for a few tokens, because reading the weights
takes most of the time."""
ALIGNMENT = 64
"""On a GPU, attention reads a multiple of this many positions of each row."""


class Forward(Protocol):
    """The interface for running a policy. `weights` are always the result of calling `materialize` for one of the
    policy's versions."""

    cache: KVCache
    max_decoded_tokens: int
    """The largest number of tokens of a `decode` call with more than one token per row; 0 if rows cannot be shortened."""

    def materialize(self, weights: Weights) -> Any:
        """Return the weights in the form that the other methods use."""
        ...

    def prefill(self, weights: Any, chunks: Sequence[tuple[Row, Sequence[int]]]) -> None:
        """Add new tokens to each row. They attend to the tokens of the row and to themselves."""
        ...

    def decode(self, weights: Any, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> Tensor:
        """Add one or more tokens to each row, and return the logits [N, V] after each new token. Rows must be sorted by
        capacity and offset."""
        ...

    def keep_outputs(self, row: Row) -> None:
        """Keep the outputs for the row's tokens that do not depend on the version of the weights."""
        ...

    def forget_outputs(self) -> None:
        """Drop the outputs that `keep_outputs` has kept."""
        ...

    def logprobs(self, weights: Any, token_ids: Sequence[int], temperature: float) -> Tensor:
        """Return the log-probability (in nats) of each id except the first."""
        ...


@final
class LeanForward:
    """The lean forward pass for Llama-shaped models. All turns are in one flat batch, and keys and values are stored in
    the cache itself."""

    def __init__(self, policy: Policy, shape: LlamaShape, *, kv_cache_tokens: int) -> None:
        self._policy = policy
        self._packed = PackedMatrices()
        policy.keep_trunk(kv_cache_tokens)
        self.max_decoded_tokens = MAX_DECODED_TOKENS.get(policy.device.type, 0)
        self.cache = KVCache(
            shape,
            num_tokens=kv_cache_tokens,
            max_row_tokens=policy.max_positions,
            dtype=policy.dtype,
            device=policy.device,
            has_trunk=policy.trunk is not None,
        )

    def materialize(self, weights: Weights) -> LlamaWeights:
        loaded = self._policy.materialize(weights)
        if self._policy.is_merged:
            self._packed.add(loaded)
        return loaded

    @torch.inference_mode()
    def prefill(self, weights: LlamaWeights, chunks: Sequence[tuple[Row, Sequence[int]]]) -> None:
        cache, device = self.cache, self._policy.device
        spans = [(row.offset, len(row.token_ids), len(row.token_ids) + len(new)) for row, new in chunks]
        ids_N = torch.tensor([token for _, new in chunks for token in new], device=device)
        positions_N = torch.cat([torch.arange(begin, end, device=device) for _, begin, end in spans])
        places_N = torch.cat(
            [torch.arange(offset + begin, offset + end, device=device) for offset, begin, end in spans]
        )
        masks: Masks = {}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = (tensor.transpose(0, 1) for tensor in cache.write(layer, places_N, k, v))
            outputs, first = [], 0
            for offset, begin, end in spans:
                known = slice(offset, offset + end)
                outputs.append(
                    attend_causally(weights.shape, q[first : first + end - begin], keys[known], values[known], masks)
                )
                first += end - begin
            return torch.cat(outputs)

        forward(weights, ids_N, positions_N, attend, on_layer=self._write_trunk(places_N))
        for row, new in chunks:
            row.token_ids += new

    @torch.inference_mode()
    def decode(self, weights: LlamaWeights, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> Tensor:
        shape, cache, device = weights.shape, self.cache, self._policy.device
        counts = [len(tokens) for tokens in new]
        begins = [len(row.token_ids) for row in rows]
        positions = [begin + place for begin, count in zip(begins, counts, strict=True) for place in range(count)]
        offsets = [row.offset for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        positions_N = torch.tensor(positions, device=device)
        places_N = positions_N + torch.tensor(offsets, device=device)
        repeat = shape.num_heads // shape.num_kv_heads
        runs = _runs(rows, counts, repeat, device=device, dtype=weights.final_norm.dtype)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.write(layer, places_N, k, v)
            queries_N_K_R_D = q.reshape(len(positions), shape.num_kv_heads, repeat, shape.head_dim)
            outputs = [run.attend(queries_N_K_R_D[run.members], keys, values) for run in runs]
            out = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
            return out.reshape(len(positions), shape.num_heads * shape.head_dim)

        ids_N = torch.tensor(list(chain.from_iterable(new)), device=device)
        hidden_N_H = forward(
            weights,
            ids_N,
            positions_N,
            attend,
            product=self._packed.product,
            on_layer=self._write_trunk(places_N),
        )
        for row, tokens in zip(rows, new, strict=True):
            row.token_ids += tokens
        if is_exact(hidden_N_H):
            return compute_logits(hidden_N_H, weights.lm_head)
        return self._packed.product(hidden_N_H, weights.lm_head)

    def keep_outputs(self, row: Row) -> None:
        if self._policy.trunk is not None and self.cache.trunk_1_S_H is not None:
            outputs = self.cache.trunk_1_S_H[0, row.offset : row.offset + len(row.token_ids)]
            self._policy.trunk.add([row.token_ids], [()], outputs)

    def forget_outputs(self) -> None:
        if self._policy.trunk is not None:
            self._policy.trunk.clear()

    def _write_trunk(self, places_N: Tensor) -> Callable[[int, Tensor], None] | None:
        """Return a function that stores the outputs of the frozen layers for these places of the cache."""
        trunk, outputs_1_S_H = self._policy.trunk, self.cache.trunk_1_S_H
        if trunk is None or outputs_1_S_H is None:
            return None

        def write(index: int, x_N_H: Tensor) -> None:
            if index == trunk.num_layers:
                outputs_1_S_H[0].index_copy_(0, places_N, x_N_H)

        return write

    @torch.no_grad()
    def logprobs(self, weights: LlamaWeights, token_ids: Sequence[int], temperature: float) -> Tensor:
        zeros = (0.0,) * len(token_ids)
        segment = TokenSegment(
            parent=None,
            token_ids=tuple(token_ids),
            mask=(False,) + (True,) * (len(token_ids) - 1),
            sampled_logprobs=zeros,
            advantages=zeros,
            weights=zeros,
            temperature=temperature,
        )
        return forest_logprobs(weights, layout([segment], device=self._policy.device))[0]


@final
class GenericForward:
    """The forward pass of the transformers library, which processes one sequence at a time. The cache only tracks
    space. Each turn processes its whole history again, because not every architecture's cache can be truncated or
    copied."""

    def __init__(self, policy: Policy, *, kv_cache_tokens: int) -> None:
        self._policy = policy
        self._model = GenericModel(policy)
        self.max_decoded_tokens = 0
        self._caches: WeakKeyDictionary[Row, Any] = WeakKeyDictionary()
        nothing = LlamaShape(
            num_layers=0, hidden_size=0, num_heads=1, num_kv_heads=1, head_dim=0, rms_eps=0.0, vocab_size=0
        )
        self.cache = KVCache(
            nothing,
            num_tokens=kv_cache_tokens,
            max_row_tokens=policy.max_positions,
            dtype=policy.dtype,
            device=policy.device,
            keeps_rows=False,
        )

    def materialize(self, weights: Weights) -> Mapping[str, Tensor]:
        return self._policy.move(weights)

    @torch.inference_mode()
    def prefill(self, weights: Mapping[str, Tensor], chunks: Sequence[tuple[Row, Sequence[int]]]) -> None:
        for row, new in chunks:
            self._model.prefill(weights, new, self._cache_of(row))
            row.token_ids += new

    @torch.inference_mode()
    def decode(self, weights: Mapping[str, Tensor], rows: Sequence[Row], new: Sequence[Sequence[int]]) -> Tensor:
        logits = []
        for row, tokens in zip(rows, new, strict=True):
            logits.append(self._model.logits(weights, tokens, self._cache_of(row))[-len(tokens) :])
            row.token_ids += tokens
        return torch.cat(logits)

    def keep_outputs(self, row: Row) -> None:
        pass

    def forget_outputs(self) -> None:
        pass

    @torch.inference_mode()
    def logprobs(self, weights: Mapping[str, Tensor], token_ids: Sequence[int], temperature: float) -> Tensor:
        return self._model.logprobs(weights, token_ids, temperature)

    def _cache_of(self, row: Row) -> Any:
        if row not in self._caches:
            self._caches[row] = self._model.new_cache()
        return self._caches[row]


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
    """[slots, 1 or num_new * R, longest - shared], added to the scores."""
    prompt: slice
    """The common prefix of all members, as a slice of the cache in tokens, read from the first member. It is empty if
    the prefix is short."""

    def attend(self, queries_N_K_R_D: Tensor, keys_K_S_D: Tensor, values_K_S_D: Tensor) -> Tensor:
        """Return the attention [N, K, R, D] of the members' new tokens."""
        num_slots, (num_heads, repeat, head_dim) = len(self.mask), queries_N_K_R_D.shape[1:]
        if self.places is not None:
            spread = queries_N_K_R_D.new_zeros(num_slots * self.num_new, num_heads, repeat, head_dim)
            queries_N_K_R_D = spread.index_copy_(0, self.places, queries_N_K_R_D)
        # The new tokens of a row read the same keys, like the query heads that share a key head.
        apart = queries_N_K_R_D.reshape(num_slots, self.num_new, num_heads, repeat, head_dim)
        out = self._attend(apart.transpose(1, 2).flatten(2, 3), keys_K_S_D, values_K_S_D)
        out = out.unflatten(2, (self.num_new, repeat)).transpose(1, 2).flatten(0, 1)
        return out if self.places is None else out[self.places]

    def _attend(self, queries_B_K_R_D: Tensor, keys_K_S_D: Tensor, values_K_S_D: Tensor) -> Tensor:
        if self.prompt.stop > self.prompt.start:
            return self._attend_shared(queries_B_K_R_D, keys_K_S_D, values_K_S_D)
        keys, values = self._rows(keys_K_S_D).transpose(0, 1), self._rows(values_K_S_D).transpose(0, 1)
        return F.scaled_dot_product_attention(queries_B_K_R_D, keys, values, attn_mask=self.mask[:, None])

    def _attend_shared(self, queries_B_K_R_D: Tensor, keys_K_S_D: Tensor, values_K_S_D: Tensor) -> Tensor:
        """Compute attention with one matrix product for all queries and the shared prompt, one product for the rest of
        each row, and one softmax over both. The prompt's keys and values are thus read once instead of once per row (as
        in arXiv:2402.05099)."""
        num_rows, num_heads, repeat, head_dim = queries_B_K_R_D.shape
        scaled = queries_B_K_R_D * head_dim**-0.5
        flat_K_BR_D = scaled.transpose(0, 1).reshape(num_heads, num_rows * repeat, head_dim)
        own_keys, own_values = self._rows(keys_K_S_D), self._rows(values_K_S_D)
        shared_scores = torch.bmm(flat_K_BR_D, keys_K_S_D[:, self.prompt].transpose(1, 2))
        own_scores = [
            torch.baddbmm(self.mask, scaled[:, head], own_keys[head].transpose(1, 2)) for head in range(num_heads)
        ]
        num_shared = self.prompt.stop - self.prompt.start
        weights = torch.cat(
            (shared_scores.view(num_heads, num_rows, repeat, num_shared), torch.stack(own_scores)), dim=-1
        ).softmax(dim=-1)
        shared_weights = weights[..., :num_shared].reshape(num_heads, num_rows * repeat, num_shared)
        shared_K_B_R_D = torch.bmm(shared_weights, values_K_S_D[:, self.prompt]).view(num_heads, num_rows, repeat, -1)
        own = [torch.bmm(weights[head, ..., num_shared:], own_values[head]) for head in range(num_heads)]
        return (shared_K_B_R_D + torch.stack(own)).transpose(0, 1)

    def _rows(self, tensor_K_S_D: Tensor) -> Tensor:
        """Return the part of each row after the shared prompt: [K, capacities, longest - shared, D]."""
        rows = tensor_K_S_D[:, self.begin : self.end].unflatten(1, (-1, self.capacity))
        return rows[:, :, self.prompt.stop - self.prompt.start : self.longest]


def _runs(
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
        # On a GPU, launching one fused attention is faster than launching the products into which it would be split.
        num_shared = _num_shared(members) if device.type == "cpu" else 0
        lengths = [num_shared] * num_slots  # a skipped row attends to some token, but its result is never read
        slots = [(row.offset - begin) // capacity for row in members]
        for slot, row in zip(slots, members, strict=True):
            lengths[slot] = len(row.token_ids)
        longest = max(len(row.token_ids) + count for row, count in zip(members, added, strict=True))
        if device.type == "cuda":
            # The rounded length lets the next tokens use the kernel that was chosen or built for this shape, and lets
            # the kernel read the aligned mask in place.
            longest = min(capacity, -(-longest // ALIGNMENT) * ALIGNMENT)
        positions = torch.arange(num_shared, longest, device=device)
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
                prompt=slice(begin, begin + num_shared),
            )
        )
    return runs


def _num_shared(rows: Sequence[Row]) -> int:
    """Return the length of the common prefix of all rows, or 0 if reading it once does not justify the additional
    matrix products."""
    if len(rows) < MIN_SHARING_ROWS:
        return 0
    shared = min(common_prefix(rows[0].token_ids, row.token_ids) for row in rows[1:])
    return shared if shared >= MIN_SHARED_PROMPT else 0
