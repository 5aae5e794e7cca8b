"""Products through packed copies are the plain products, and copies live no longer than their matrices."""

import gc

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.models.llama import LlamaWeights
from sparring.models.packed import MIN_ELEMENTS, PackedMatrices
from sparring.models.policy import Policy


def merged(vocab_size: int) -> LlamaWeights:
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=vocab_size,
    )
    policy = Policy(LlamaForCausalLM(config), None)
    return policy.materialize(policy.snapshot())


def test_a_large_matrix_is_packed_and_multiplies_as_before() -> None:
    weights, packed = merged(MIN_ELEMENTS // 128), PackedMatrices()
    packed.add(weights)
    assert len(packed._packed) == 1, "the output matrix alone is large enough"
    for rows in (1, 3, 16, 100):
        inputs = torch.randn(rows, 128)
        torch.testing.assert_close(packed.product(inputs, weights.lm_head), F.linear(inputs, weights.lm_head))


def test_a_small_matrix_is_left_alone() -> None:
    weights, packed = merged(MIN_ELEMENTS // 128 - 1), PackedMatrices()
    packed.add(weights)
    assert len(packed._packed) == 0
    inputs = torch.randn(5, 128)
    assert torch.equal(packed.product(inputs, weights.lm_head), F.linear(inputs, weights.lm_head))


def test_a_copy_goes_with_its_matrix() -> None:
    weights, packed = merged(MIN_ELEMENTS // 128), PackedMatrices()
    packed.add(weights)
    del weights
    gc.collect()
    assert len(packed._packed) == 0
