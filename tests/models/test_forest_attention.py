"""A forest's attention: the kernel's rule lets a token see exactly the tokens on its path, and both ways agree."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from sparring.models.forest_attention import build_attention, has_kernel, see_ancestors
from sparring.models.llama import LlamaShape

SHAPE = LlamaShape(num_layers=1, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, rms_eps=1e-5, vocab_size=9)

Forest = tuple[list[int], list[tuple[int, ...]]]


def grow_forest(seed: int) -> Forest:
    """Return the sizes and paths of a random forest, parents first, with branches and roots between each other."""
    numbers = random.Random(seed)
    paths: list[tuple[int, ...]] = []
    for index in range(numbers.randint(2, 12)):
        parent = numbers.choice([None, *range(index)])
        paths.append((index,) if parent is None else (*paths[parent], index))
    return [numbers.randint(1, 40) for _ in paths], paths


def owners(sizes: list[int]) -> list[int]:
    return [segment for segment, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize("seed", range(30))
def test_a_token_sees_the_tokens_before_it_on_its_path_and_no_others(seed: int) -> None:
    sizes, paths = grow_forest(seed)
    owner = owners(sizes)
    place = torch.arange(len(owner))
    seen = see_ancestors(sizes, paths, "cpu")(0, 0, place[:, None], place[None, :])
    expected = [[key <= query and owner[key] in paths[owner[query]] for key in place] for query in place]
    assert seen.tolist() == [[bool(one) for one in row] for row in expected]


# Without compilation, which a test of the rule does not need, torch warns that this is slow.
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.parametrize("seed", range(5))
def test_the_rule_of_the_kernel_gives_the_attention_of_each_segment(seed: int) -> None:
    sizes, paths = grow_forest(seed)
    num_tokens = sum(sizes)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(num_tokens, heads, 8, generator=generator) for heads in (4, 2, 2))
    assert not has_kernel(q)
    expected = build_attention(SHAPE, sizes, paths, like=q)(0, q, k, v)
    mask = create_block_mask(see_ancestors(sizes, paths, "cpu"), None, None, num_tokens, num_tokens, device="cpu")
    queries, keys, values = (one.transpose(0, 1)[None] for one in (q, k, v))
    found = flex_attention(queries, keys, values, block_mask=mask, enable_gqa=True)
    assert isinstance(found, torch.Tensor)
    assert torch.allclose(found[0].transpose(0, 1).reshape(num_tokens, -1), expected, atol=1e-5)
