"""Every switch that saves memory leaves log-probabilities and gradients as they are, within 1e-4 in fp32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from sparring.errors import ConfigError
from sparring.models import llama, products
from sparring.models.forest import forest_logprobs, layout
from sparring.models.policy import LoraSettings, Policy
from sparring.models.recomputed import Recomputed
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch, expand_batch
from sparring.types import TokenSegment, TrainingBatch, TrainingSequence

TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
"""Not all, so that some parts of fused matrices have an adapter and others none."""
CHECKPOINTING, BF16, UNMERGED = "activation_checkpointing", "base_precision", "lora_merged"


def make_policy(*switches: str, lora: bool = True, tied: bool = True) -> Policy:
    """A Llama whose base is exact in bf16, with an adapter that is not zero."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    policy = Policy(
        model,
        None,
        max_positions=256,
        lora=LoraSettings(rank=3, alpha=6, targets=TARGETS, is_merged=UNMERGED not in switches) if lora else None,
        base_precision="bf16" if BF16 in switches else "fp32",
    )
    for name in sorted(policy.trained) if lora else ():
        values = torch.randn(policy.trained[name].shape, generator=torch.Generator().manual_seed(len(name)))
        policy.trained[name].data.copy_(values * 0.2)
    return policy


def segment(parent: int | None, size: int, *, start: int, trained: bool = True) -> TokenSegment:
    ids = tuple((start + 7 * place) % 50 for place in range(size))
    mask = tuple(trained and (place > 0 or parent is not None) for place in range(size))
    values = tuple(0.3 + 0.1 * (place % 5) for place in range(size))
    return TokenSegment(
        parent=parent,
        token_ids=ids,
        mask=mask,
        sampled_logprobs=tuple(-one for one in values),
        advantages=values,
        weights=values,
        temperature=0.8,
    )


BATCH = TrainingBatch(
    segments=(
        segment(None, 21, start=3, trained=False),
        segment(0, 17, start=5),
        segment(0, 2, start=6),
        segment(1, 9, start=8),
        segment(None, 12, start=9),
    ),
    sequences=(
        TrainingSequence(segments=(0, 1, 3), trajectory_id="a"),
        TrainingSequence(segments=(0, 2), trajectory_id="b"),
        TrainingSequence(segments=(4,), trajectory_id="c"),
    ),
)
"""Two sequences that share a prompt, one of them in two turns, and a whole one."""


def learn(policy: Policy, batch: TrainingBatch = BATCH, *, checkpointing: bool = False) -> torch.Tensor:
    """Return log-probabilities and gradients in one vector."""
    learner = TorchLearner(policy, activation_checkpointing=checkpointing)
    logprobs = torch.tensor(learner.logprobs(batch))
    learner.forward_backward(batch, "importance_sampling", {})
    gradients = [policy.trained[name].grad for name in sorted(policy.trained)]
    assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
    return torch.cat([logprobs, *(gradient.flatten() for gradient in gradients if gradient is not None)])


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.abs().max() > 0.1
    assert (found - expected).abs().max() <= 1e-4 * max(1.0, expected.abs().max().item())


@contextmanager
def saved_tensors() -> Iterator[list[torch.Tensor]]:
    """Collect what autograd keeps for the backward pass, also in place of what it computes again."""
    kept: list[torch.Tensor] = []
    pack = Recomputed._pack

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    def keep_inputs(packed: Any) -> None:
        if isinstance(packed, torch.Tensor):
            kept.append(packed)
        else:
            for one in packed.inputs:
                keep_inputs(one)

    def pack_and_keep(recomputed: Recomputed, tensor: torch.Tensor) -> Any:
        packed = pack(recomputed, tensor)
        keep_inputs(packed)
        return packed

    with (
        patch.object(Recomputed, "_pack", pack_and_keep),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one),
    ):
        yield kept


@pytest.mark.parametrize(
    "switches",
    [(CHECKPOINTING,), (BF16,), (UNMERGED,), (CHECKPOINTING, BF16, UNMERGED)],
    ids="+".join,
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_an_adapter_has_the_same_logprobs_and_gradients_with_a_switch_on_and_off(
    switches: tuple[str, ...], tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = learn(make_policy(tied=tied))
    monkeypatch.setattr(products, "BLOCK_ELEMENTS", 100)  # several blocks of each matrix, the last one smaller
    assert_close(learn(make_policy(*switches, tied=tied), checkpointing=CHECKPOINTING in switches), expected)


def test_checkpointing_leaves_the_gradients_of_every_weight_bit_for_bit() -> None:
    assert torch.equal(learn(make_policy(lora=False), checkpointing=True), learn(make_policy(lora=False)))


@pytest.mark.parametrize("elements", [1, 64, 300], ids=lambda elements: f"{elements} in a mask")
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_attention_in_blocks_equals_attention_of_each_whole_sequence(
    lora: bool, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_policy(lora=lora)
    learner = TorchLearner(whole)
    learner.forward_backward(expand_batch(BATCH), "importance_sampling", {})
    expected = torch.cat([whole.trained[name].grad.flatten() for name in sorted(whole.trained)])  # type: ignore[union-attr]
    monkeypatch.setattr(llama, "MASK_ELEMENTS", elements)
    assert_close(learn(make_policy(lora=lora))[BATCH.num_trained_tokens :], expected)


def test_attention_keeps_no_mask_of_a_whole_sequence_nor_of_a_long_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "MASK_ELEMENTS", 1)
    with saved_tensors() as kept:
        learn(make_policy())
    assert kept
    assert not any((one == -torch.inf).any() for one in kept)


def test_one_mask_serves_all_layers() -> None:
    policy = make_policy()
    with saved_tensors() as kept:
        learn(policy, BATCH)
    masks = [one for one in kept if one.ndim in (2, 4) and (one == -torch.inf).any()]
    # A branch of 25 tokens follows the 21 that it shares. The others begin with a root, and need no mask.
    assert len({mask.data_ptr() for mask in masks}) == 1


def test_a_base_in_bf16_is_held_once_and_never_kept_in_another_precision() -> None:
    policy = make_policy(BF16, UNMERGED)
    frozen = [one for name, one in policy.module.named_parameters() if name not in policy.trained]
    assert {one.dtype for one in frozen} == {torch.bfloat16}
    assert {one.dtype for one in policy.trained.values()} == {torch.float32}
    base = policy.base_weights()
    places = {one.untyped_storage().data_ptr() for one in frozen}
    for matrix in (base.embed, base.lm_head, *(one for layer in base.layers for one in layer.linears.values())):
        assert isinstance(matrix, torch.Tensor)
        assert matrix.untyped_storage().data_ptr() in places
    with saved_tensors() as kept:
        learn(policy)
    sizes = {
        tuple(one.shape) for layer in base.layers for one in layer.linears.values() if isinstance(one, torch.Tensor)
    }
    matrices = [one for one in kept if tuple(one.shape) in sizes]
    assert matrices
    assert {one.dtype for one in matrices} == {torch.bfloat16}


def test_the_engine_weights_share_the_base_where_the_adapter_is_not_merged() -> None:
    policy = make_policy(UNMERGED)
    sampled = policy.materialize(policy.snapshot())
    for layer, base in zip(sampled.layers, policy.base_weights().layers, strict=True):
        for name, matrix in layer.linears.items():
            assert isinstance(matrix, products.AdaptedMatrix)
            assert matrix.base_O_I is base.linears[name]
    merged = make_policy()
    layer = merged.materialize(merged.snapshot()).layers[0]
    assert all(isinstance(matrix, torch.Tensor) for matrix in layer.linears.values())


def test_checkpointing_keeps_a_fraction_of_the_activations() -> None:
    policy, sizes = make_policy(), []
    for checkpointing in (False, True):
        with saved_tensors() as kept:
            forest_logprobs(policy.differentiable(), layout(BATCH.segments), checkpointing=checkpointing)
        sizes.append(sum({one.data_ptr(): one.numel() for one in kept}.values()))
    assert sizes[1] < sizes[0] / 2


def test_norms_activations_and_the_keys_of_shared_tokens_are_not_kept() -> None:
    policy = make_policy()
    base = policy.base_weights()
    forest = layout([segment(None, 60, start=3, trained=False), *(segment(0, 4, start=start) for start in range(20))])
    with saved_tensors() as kept:
        forest_logprobs(policy.differentiable(), forest)
    num_tokens = len(forest.ids_N)
    ignored = {one.untyped_storage().data_ptr() for one in policy.module.parameters()}
    sizes = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() // 4 for one in kept}
    total = sum(size for place, size in sizes.items() if place not in ignored)
    hidden, heads, kv_heads = base.shape.hidden_size, base.shape.num_heads, base.shape.num_kv_heads
    width = policy.base.config.intermediate_size
    queries, keys = heads * base.shape.head_dim, kv_heads * base.shape.head_dim
    # Both inputs of norms, q, k and v, rotated q and k, q and the output by head, the input of o, gate and up, 7 factors.
    layer = 2 * hidden + (queries + 2 * keys) + (queries + keys) + 3 * queries + 2 * width + 7 * 3
    # The last norm, its derivative, the rotation, and the sums of attention.
    assert total <= num_tokens * (base.shape.num_layers * (layer + 2 * heads) + 4 * hidden)


def test_the_fingerprint_of_a_base_is_the_same_in_either_precision() -> None:
    stored, exact = make_policy(BF16), make_policy()
    assert stored.base_fingerprint(stored.snapshot()) == exact.base_fingerprint(exact.snapshot())


def generic_policy(*, base_precision: str | None = None, precision: str = "fp32") -> Policy:
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        hidden_dropout=0.5,
    )
    return Policy(
        GPTNeoXForCausalLM(config),
        None,
        lora=LoraSettings(rank=2, alpha=4, targets=("query_key_value",)),
        base_precision=base_precision,
        precision=precision,
    )


def test_checkpointing_leaves_the_gradients_of_another_architecture() -> None:
    lesson = build_demonstration_batch([([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True])])
    found = []
    for checkpointing in (False, True):
        policy = generic_policy()
        for name in policy.trained:
            policy.trained[name].data.copy_(torch.full_like(policy.trained[name], 0.3))
        with saved_tensors() as kept:
            found.append(learn(policy, lesson, checkpointing=checkpointing))
        found.append(torch.tensor(float(len(kept))))
    assert torch.equal(found[2], found[0])
    assert found[3] < found[1]


def test_another_architecture_refuses_products_in_fp32_with_a_base_in_bf16() -> None:
    with pytest.raises(ConfigError, match=r"model\.base_precision: is bf16\. .*GPTNeoXForCausalLM"):
        generic_policy(base_precision="bf16")
    half = generic_policy(base_precision="bf16", precision="bf16")
    assert {one.dtype for one in half.base.parameters() if not one.requires_grad} == {torch.bfloat16}
