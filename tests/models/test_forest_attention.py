"""Attention in a tree: one call for all branches gives the outputs and gradients of one attention per branch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.models.forest_attention import (
    Ancestors,
    attend_with_kernel,
    build_attention,
    has_kernel,
    list_sequences,
)
from sparring.models.llama import Attend, LlamaShape

SHAPE = LlamaShape(num_layers=1, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, rms_eps=1e-5, vocab_size=9)


def grow_tree(seed: int) -> tuple[list[int], list[Ancestors]]:
    """Return the sizes and ancestors of random branches. Each begins at the root, or after any token of an earlier one."""
    numbers = random.Random(seed)
    sizes: list[int] = []
    ancestors: list[Ancestors] = []
    for index in range(numbers.randint(2, 12)):
        parent = numbers.choice([None, *range(index)])
        if parent is None:
            ancestors.append(())
        else:
            ancestors.append((*ancestors[parent], (parent, numbers.randint(1, sizes[parent]))))
        sizes.append(numbers.randint(1, 40))
    return sizes, ancestors


def attend_to_sequences(q: Tensor, k: Tensor, v: Tensor, *lengths: Any) -> Tensor:
    """Compute, with plain operations, what FlashAttention-2 computes for sequences of different lengths."""
    return torch.cat([out for out, _ in _compute(q, k, v, torch.zeros_like(q), *lengths)])


def differentiate_sequences(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *lengths: Any) -> list[Tensor]:
    """Return the gradients with respect to queries, keys and values."""
    parts = [gradients for _, gradients in _compute(q, k, v, gradient, *lengths)]
    return [torch.cat(one) for one in zip(*parts, strict=True)]


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradient: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest: int,
    longest_key: int,
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Compute output and gradients of each sequence. The queries of a sequence are the last of its keys."""
    repeat, scale = q.shape[1] // k.shape[1], q.shape[2] ** -0.5
    for index in range(len(query_ends) - 1):
        own = slice(int(query_ends[index]), int(query_ends[index + 1]))
        span = slice(int(key_ends[index]), int(key_ends[index + 1]))
        queries, to_out = (one[own].transpose(0, 1) for one in (q, gradient))
        keys, values = (one[span].repeat_interleave(repeat, dim=1).transpose(0, 1) for one in (k, v))
        num_queries, num_keys = queries.shape[1], keys.shape[1]
        assert num_queries <= longest
        assert num_keys <= longest_key
        is_seen = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        weights = (queries @ keys.mT * scale).masked_fill(~is_seen, -torch.inf).softmax(dim=-1)
        to_weights = to_out @ values.mT
        to_scores = weights * (to_weights - (weights * to_weights).sum(-1, keepdim=True)) * scale
        to_keys, to_values = (
            one.unflatten(0, (-1, repeat)).sum(1).transpose(0, 1)
            for one in (to_scores.mT @ queries, weights.mT @ to_out)
        )
        yield (weights @ values).transpose(0, 1), [(to_scores @ keys).transpose(0, 1), to_keys, to_values]


@pytest.fixture(scope="module")
def flash_on_the_cpu() -> Iterator[None]:
    """Register plain implementations of torch's operators for FlashAttention-2, which torch implements on GPUs only."""

    def compute(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        *lengths, dropout, is_causal, _ = arguments
        assert (dropout, is_causal) == (0.0, True)
        nothing = torch.empty(0)
        return attend_to_sequences(q, k, v, *lengths), nothing, nothing, nothing, nothing

    def differentiate(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        return tuple(differentiate_sequences(gradient, q, k, v, *arguments[2:6]))

    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", compute, "CPU")
    library.impl("_flash_attention_backward", differentiate, "CPU")
    yield
    library._destroy()


def with_gradients(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    inputs = [one.detach().requires_grad_() for one in (q, k, v)]
    out = attend(0, *inputs)
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    return out, *torch.autograd.grad((out * weight).sum(), inputs)


@pytest.mark.usefixtures("flash_on_the_cpu")
@pytest.mark.parametrize("seed", range(10))
def test_one_call_gives_the_outputs_and_gradients_of_each_branch(seed: int) -> None:
    sizes, ancestors = grow_tree(seed)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(sum(sizes), heads, 8, generator=generator) for heads in (4, 2, 2))
    assert not has_kernel(q, 8)
    expected = with_gradients(build_attention(SHAPE, sizes, ancestors, like=q), q, k, v)
    found = with_gradients(attend_with_kernel(sizes, ancestors, q.device), q, k, v)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_the_keys_of_a_branch_are_the_tokens_on_its_path() -> None:
    sequences = list_sequences([2, 1, 3], [(), ((0, 2),), ((0, 1),)], "cpu")
    assert sequences.places_P is not None
    assert sequences.places_P.tolist() == [0, 1, 0, 1, 2, 0, 3, 4, 5]
    assert sequences.query_ends.tolist() == [0, 2, 3, 6]
    assert sequences.key_ends.tolist() == [0, 2, 5, 9]
    assert (sequences.longest_query, sequences.longest_key) == (3, 4)


def test_branches_without_ancestors_need_no_copies() -> None:
    sequences = list_sequences([2, 3], [(), ()], "cpu")
    keys = torch.ones(5, 1, 1)
    assert sequences.gather(keys) is keys
    assert sequences.add_up(keys, 5) is keys
