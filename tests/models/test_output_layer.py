"""Logits exist in chunks only, with the values and gradients of the whole, for the lean forward and for that of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM

from sparring.models import output_layer, products
from sparring.models.architectures.families import FAMILIES
from sparring.models.forest import forest_logprobs, layout
from sparring.models.generic import GenericModel
from sparring.models.generic_training import sequence_logprobs
from sparring.models.policy import LoraSettings, Policy
from sparring.models.pretrained import load_pretrained
from sparring.models.split_model import SplitModel
from sparring.training.sequences import build_demonstration_batch, expand_batch
from sparring.types import TrainingBatch
from tests.models.architectures.small_models import save_small_model

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]
MASK = [place > 0 and place % 5 != 2 for place in range(len(IDS))]
BATCH = expand_batch(build_demonstration_batch([(IDS, MASK), (IDS[::-1], MASK)]))
TEMPERATURE = 0.7


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lean_policy(*, lora: bool, precision: str = "fp32", base_precision: str | None = None, seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    settings = LoraSettings(rank=2, alpha=4) if lora else None
    model = LlamaForCausalLM(config)
    return moved(Policy(model, None, lora=settings, precision=precision, base_precision=base_precision))


def moved(policy: Policy) -> Policy:
    """Move the trained numbers from their start, where an adapter is zero."""
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.trained.values():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return policy


def cooled(batch: TrainingBatch) -> TrainingBatch:
    return replace(batch, segments=tuple(replace(one, temperature=TEMPERATURE) for one in batch.segments))


def learn(policy: Policy) -> list[torch.Tensor]:
    """Return log-probabilities, entropies and the gradients of a sum of both."""
    batch = cooled(BATCH)
    if policy.is_lean:
        found = forest_logprobs(policy.differentiable(), layout(batch.segments), with_entropy_gradient=True)
    else:
        found = sequence_logprobs(policy, batch, with_entropy_gradient=True)
    loss = (found[0] * torch.linspace(-1, 1, len(found[0]))).sum() + (
        found[1] * torch.linspace(0, 1, len(found[1]))
    ).sum()
    gradients = torch.autograd.grad(loss, [policy.trained[name] for name in sorted(policy.trained)])
    return [found[0].detach(), found[1].detach(), *gradients]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert max(one.abs().max() for one in expected[2:]) > 0.01
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-5 * max(1.0, other.abs().max().item())


def use_chunks(monkeypatch: pytest.MonkeyPatch, rows: int, vocab_size: int) -> None:
    for name in ("LOGIT_BYTES", "MIXED_LOGIT_BYTES"):
        monkeypatch.setattr(output_layer, name, 4 * vocab_size * rows)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
@pytest.mark.parametrize("base_precision", ["fp32", "bf16"])
def test_chunks_equal_the_whole_in_the_lean_forward(
    lora: bool, base_precision: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = lean_policy(lora=lora, base_precision=base_precision)
    assert policy.is_lean
    expected = learn(policy)
    use_chunks(monkeypatch, rows, 50)
    assert_close(learn(policy), expected)


def test_logits_of_bf16_operands_are_their_product_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "BLOCK_ELEMENTS", 100)
    generator = torch.Generator().manual_seed(0)
    hidden, matrix = (torch.randn(rows, 16, generator=generator).bfloat16() for rows in (5, 50))
    expected = hidden.float() @ matrix.float().T
    logits = products.multiply_in_fp32(hidden, matrix)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, expected, atol=1e-5)
    # Rounded to bf16, logits of this size are off by up to 2^-8 of their size.
    assert (products.compute_logits(hidden, matrix) - expected).abs().max() > 0.01
    monkeypatch.setattr(products, "EXACT_DEVICES", {"cpu"})
    assert torch.equal(products.compute_logits(hidden, matrix), logits)


def test_exact_logits_have_the_gradients_of_a_product_in_bf16() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, matrix = (torch.randn(rows, 16, generator=generator).bfloat16().requires_grad_() for rows in (5, 50))
    weight = torch.randn(5, 50, generator=generator)
    exact = products.ExactProduct.apply(hidden, matrix)
    found = torch.autograd.grad((exact * weight).sum(), (hidden, matrix))
    expected = torch.autograd.grad(((hidden @ matrix.T).float() * weight).sum(), (hidden, matrix))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert torch.allclose(one.float(), other.float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_exact_logits_bring_the_learner_nearer_to_fp32(lora: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # The base is exact in bf16, so that only the computation differs. The hidden states are rounded as well, so one model is
    # not enough.
    def errors(precision: str) -> torch.Tensor:
        found = [learn(lean_policy(lora=lora, precision=precision, seed=seed))[0] for seed in range(20)]
        return (torch.stack(found) - exact).abs().mean()

    exact = torch.stack([learn(lean_policy(lora=lora, seed=seed))[0] for seed in range(20)])
    rounded = errors("bf16")
    monkeypatch.setattr(products, "EXACT_DEVICES", {"cpu"})
    assert errors("bf16") < rounded


@pytest.fixture(scope="module", params=[family.name for family in FAMILIES if family.forward == "transformers"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_small_model(request.param, path)
    return path


@pytest.fixture(params=[True, False], ids=["lora", "full"])
def generic(request: pytest.FixtureRequest, folder: Path) -> Policy:
    model, tokenizer = load_pretrained(str(folder))
    policy = moved(Policy(model, tokenizer, lora=LoraSettings(rank=2, alpha=4) if request.param else None))
    assert not policy.is_lean
    return policy


def written_out(policy: Policy) -> list[torch.Tensor]:
    """Return what `learn` returns, from whole logits of the model itself."""
    logprobs, entropies = [], []
    for ids in (IDS, IDS[::-1]):
        every = (policy.module(input_ids=torch.tensor([ids])).logits[0] / TEMPERATURE).log_softmax(-1)
        for place in (place for place, is_trained in enumerate(MASK) if is_trained):
            logprobs.append(every[place - 1, ids[place]])
            entropies.append(-(every[place - 1].exp() * every[place - 1]).sum())
    found = torch.stack(logprobs), torch.stack(entropies)
    loss = (found[0] * torch.linspace(-1, 1, len(logprobs))).sum() + (
        found[1] * torch.linspace(0, 1, len(logprobs))
    ).sum()
    gradients = torch.autograd.grad(loss, [policy.trained[name] for name in sorted(policy.trained)])
    return [found[0].detach(), found[1].detach(), *gradients]


def test_chunks_equal_the_logits_of_each_family(generic: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = written_out(generic)
    assert_close(learn(generic), expected)
    use_chunks(monkeypatch, 3, generic.base.get_input_embeddings().weight.shape[0])
    assert_close(learn(generic), expected)


def test_no_more_logits_than_a_chunk_exist_and_none_are_kept(generic: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    vocab_size, computed, kept = generic.base.get_input_embeddings().weight.shape[0], list[int](), list[int]()
    use_chunks(monkeypatch, 3, vocab_size)
    parameters = {one.untyped_storage().data_ptr() for one in generic.module.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim and tensor.shape[-1] == vocab_size and tensor.untyped_storage().data_ptr() not in parameters:
            kept.append(tensor.numel())
        return tensor

    def count(*call: Any) -> None:
        computed.append(call[2].numel() // vocab_size)

    hook = generic.base.get_output_embeddings().register_forward_hook(count)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs, _ = sequence_logprobs(generic, BATCH)
    logprobs.sum().backward()
    hook.remove()
    # 14 trained tokens of each sequence in four chunks of 3 and one of 2, which the backward pass computes again.
    assert sum(MASK) == 14
    assert sorted(computed) == [2] * 4 + [3] * 16
    assert not kept


def test_an_engine_scores_in_chunks_and_fills_its_cache_without_logits(
    generic: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, weights = GenericModel(generic), generic.snapshot().tensors
    with torch.inference_mode():
        logits = generic.module(input_ids=torch.tensor([IDS])).logits[0]
        every = (logits[:-1] / TEMPERATURE).log_softmax(-1)
        use_chunks(monkeypatch, 3, logits.shape[-1])
        scored = model.logprobs(weights, IDS, TEMPERATURE)
        cache = model.new_cache()
        model.prefill(weights, IDS[:-1], cache)
        after = model.logits(weights, IDS[-1:], cache)
    assert torch.allclose(scored, every.gather(1, torch.tensor(IDS[1:])[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(after[0], logits[-1], atol=1e-4)


def test_what_an_architecture_does_with_its_logits_is_done_in_chunks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 20}
    config = GraniteConfig(
        **sizes, num_attention_heads=2, num_key_value_heads=2, logits_scaling=4.0, initializer_range=0.5
    )
    policy = Policy(GraniteForCausalLM(config), None)
    assert not policy.is_lean
    split = SplitModel(policy.base, is_bf16=False)
    ids = torch.tensor(IDS)
    assert torch.equal(split.logits(split.hidden(ids)), policy.base(ids[None]).logits[0])
    expected = written_out(policy)
    use_chunks(monkeypatch, 2, 20)
    assert_close(learn(policy), expected)
