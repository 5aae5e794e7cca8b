"""What the backward pass computes again is not kept until then, and changes no gradient."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from sparring.models.policy import LoraSettings, Policy
from sparring.models.recomputed import Recomputed
from sparring.models.small import small_model
from sparring.models.zeroed_memory import ZeroedMemory
from tests.models.test_small import TALK


def gated(x: Tensor, matrix: Tensor, recomputed: Recomputed) -> tuple[Tensor, list[weakref.ref[Tensor]]]:
    """Return a product with a gated activation, and references to tensors that its graph would keep."""
    gate, up = x.chunk(2, dim=-1)
    activated = recomputed.apply(F.silu, gate)
    product = recomputed.apply(torch.mul, activated, up)
    joined = recomputed.apply(lambda *parts: torch.cat(parts), product, up)
    return joined[1:, 1:] @ matrix, [weakref.ref(one) for one in (activated, joined)]


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [one.clone().requires_grad_() for one in inputs]
    function(*leaves).sin().sum().backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def test_gradients_are_the_same_bit_for_bit_and_nothing_is_kept_until_the_backward_pass() -> None:
    x, matrix = torch.randn(5, 8), torch.randn(3, 2)
    alive: list[weakref.ref[Tensor]] = []

    def compute(x: Tensor, matrix: Tensor, *, is_active: bool) -> Tensor:
        with Recomputed(is_active=is_active) as recomputed:
            value, references = gated(x, matrix, recomputed)
        alive[:] = references
        gc.collect()
        assert [one() is None for one in alive] == [is_active] * 2
        return value

    plain = gradients(lambda x, matrix: compute(x, matrix, is_active=False), x, matrix)
    recomputed = gradients(lambda x, matrix: compute(x, matrix, is_active=True), x, matrix)
    assert all(torch.equal(a, b) for a, b in zip(plain, recomputed, strict=True))


def test_without_gradients_it_only_calls_the_function() -> None:
    with torch.no_grad(), Recomputed() as recomputed:
        assert recomputed.apply(torch.neg, torch.ones(2)).tolist() == [-1, -1]


def test_an_error_inside_ends_the_context() -> None:
    x = torch.ones(3, requires_grad=True)
    recomputed = Recomputed()
    with pytest.raises(IndexError), recomputed:
        recomputed.apply(lambda x: x[[3]], x)
    kept = x * x
    assert kept.grad_fn is not None
    kept.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_a_policy_keeps_no_part_of_the_mapped_file_of_its_weights(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    model, tokenizer = small_model(0, TALK)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert str(tmp_path) in maps.read_text("utf-8")
    policy = Policy(loaded, tokenizer, lora=LoraSettings(rank=2, alpha=4))
    policy.base_weights()  # which every engine and learner does
    gc.collect()
    assert str(tmp_path) not in maps.read_text("utf-8")
    name = "model.layers.0.self_attn.o_proj.weight"
    kept = {key.replace(".base_layer", ""): value for key, value in policy.base.state_dict().items()}
    assert torch.equal(kept[name], model.state_dict()[name])


def test_zeroed_memory_is_taken_in_parts_and_cleared_as_a_whole() -> None:
    memory = ZeroedMemory(32)
    first, second = memory.take((2, 2), torch.float32), memory.take((4,), torch.float32)
    second.fill_(3)
    assert first.tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ValueError, match="does not fit"):
        memory.take((1,), torch.float32)
    memory.clear()
    second += 1
    assert second.tolist() == [1, 1, 1, 1]
    assert ZeroedMemory(0).take((0, 4), torch.float32).shape == (0, 4)
