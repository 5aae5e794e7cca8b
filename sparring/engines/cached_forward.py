"""The computations of an engine: writing prompts to the cache, decoding one token of each turn, and scoring whole
sequences.

Shapes: N tokens of the flat batch, S tokens of the cache, B rows, K key/value heads, R query heads that share one
key/value head, L tokens per row, D head dimension, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, Protocol, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sparring.engines.decoding_attention import choose_attention
from sparring.engines.given_texts import Text
from sparring.engines.kv_cache import KVCache, Row
from sparring.models.forest import forest_logprobs, layout
from sparring.models.generic import GenericModel
from sparring.models.llama import LlamaShape, LlamaWeights, Masks, attend_causally, forward
from sparring.models.operations import choose_operations
from sparring.models.packed import PackedMatrices
from sparring.models.policy import Policy
from sparring.models.products import compute_logits, is_exact
from sparring.types import TokenSegment, Weights

MAX_DECODED_TOKENS = {"cpu": 32, "cuda": 64}
"""Up to this number of tokens, a decoding pass takes hardly longer than for a few tokens, because reading the weights
takes most of the time."""

TRUNK_FACTOR = 2
"""The tokens for which the learner keeps the outputs of frozen layers, for each token of the KV cache. They take far
less memory than keys and values, and both demonstrations and sampled episodes should fit."""


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

    def logprobs(self, weights: Any, texts: Sequence[Text]) -> list[list[float]]:
        """Return the log-probabilities (in nats) of each text's ids from its index `first` on."""
        ...


@final
class LeanForward:
    """The lean forward pass for Llama-shaped models. All turns are in one flat batch, and keys and values are stored in
    the cache itself."""

    def __init__(self, policy: Policy, shape: LlamaShape, *, kv_cache_tokens: int) -> None:
        self._policy = policy
        self._packed = PackedMatrices()
        policy.keep_trunk(TRUNK_FACTOR * kv_cache_tokens)
        self.max_decoded_tokens = MAX_DECODED_TOKENS.get(policy.device.type, 0)
        self.cache = KVCache(
            shape,
            num_tokens=kv_cache_tokens,
            max_row_tokens=policy.max_positions,
            dtype=policy.dtype,
            device=policy.device,
            has_trunk=policy.trunk is not None,
        )
        self._build_attention = choose_attention(policy.device, policy.dtype)
        self._operations = choose_operations(policy.device, policy.dtype)
        self._decoding = replace(self._operations, product=self._packed.product)

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

        on_layer = self._write_trunk(places_N)
        forward(weights, ids_N, positions_N, attend, operations=self._operations, on_layer=on_layer)
        for row, new in chunks:
            row.token_ids += new

    @torch.inference_mode()
    def decode(self, weights: LlamaWeights, rows: Sequence[Row], new: Sequence[Sequence[int]]) -> Tensor:
        device = self._policy.device
        counts = [len(tokens) for tokens in new]
        begins = [len(row.token_ids) for row in rows]
        positions = [begin + place for begin, count in zip(begins, counts, strict=True) for place in range(count)]
        offsets = [row.offset for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        positions_N = torch.tensor(positions, device=device)
        places_N = positions_N + torch.tensor(offsets, device=device)
        attend = self._build_attention(weights.shape, self.cache, rows, counts)
        ids_N = torch.tensor(list(chain.from_iterable(new)), device=device)
        hidden_N_H = forward(
            weights,
            ids_N,
            positions_N,
            attend,
            operations=self._decoding,
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
    def logprobs(self, weights: LlamaWeights, texts: Sequence[Text]) -> list[list[float]]:
        segments = [_segment(text) for text in texts]
        forest = layout(segments, device=self._policy.device)  # computes what the texts have in common once
        found = forest_logprobs(weights, forest, with_entropy=False, trunk=self._policy.trunk)[0].tolist()
        ends = [0, *accumulate(len(text.token_ids) - text.first for text in texts)]
        return [found[begin:end] for begin, end in pairwise(ends)]


def _segment(text: Text) -> TokenSegment:
    size = len(text.token_ids)
    zeros = (0.0,) * size
    return TokenSegment(
        parent=None,
        token_ids=text.token_ids,
        mask=tuple(index >= text.first for index in range(size)),
        sampled_logprobs=zeros,
        advantages=zeros,
        weights=zeros,
        temperature=text.temperature,
    )


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
    def logprobs(self, weights: Mapping[str, Tensor], texts: Sequence[Text]) -> list[list[float]]:
        return [
            self._model.logprobs(weights, text.token_ids, text.temperature).tolist()[text.first - 1 :] for text in texts
        ]

    def _cache_of(self, row: Row) -> Any:
        if row not in self._caches:
            self._caches[row] = self._model.new_cache()
        return self._caches[row]
