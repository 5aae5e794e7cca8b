"""The lean forward computes each architecture as transformers does, and is not used for what it does not compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from sparring.models.llama import is_supported
from sparring.models.policy import LoraSettings, Policy
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch, expand_batch
from tests.models.architectures.small_models import LLAMA_3_ROPE, WIDE_HEADS, WITHOUT_HEAD_SIZE

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
SMALL = WITHOUT_HEAD_SIZE | {"vocab_size": 40}
WIDE = WIDE_HEADS | {"vocab_size": 40}

COMPUTED: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "llama with llama3 positions": lambda: LlamaConfig(**SMALL, rope_parameters=LLAMA_3_ROPE),
    "llama with linear positions": lambda: LlamaConfig(**SMALL, rope_parameters=LINEAR),
    "llama with a tied output": lambda: LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2 with biases": lambda: Qwen2Config(**SMALL),
    "qwen3 with norms of queries and keys": lambda: Qwen3Config(**WIDE),
    "mistral with wide heads": lambda: MistralConfig(**WIDE, sliding_window=None),
}
REFUSED: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama with biases of attention": lambda: LlamaConfig(**SMALL, attention_bias=True),
    "llama with biases of the MLP": lambda: LlamaConfig(**SMALL, mlp_bias=True),
    "llama with yarn positions": lambda: LlamaConfig(**SMALL, rope_parameters=YARN),
    "llama with dynamic positions": lambda: LlamaConfig(**SMALL, rope_parameters=DYNAMIC),
    "llama with another activation": lambda: LlamaConfig(**SMALL, hidden_act="gelu"),
    "qwen2 with a window": lambda: Qwen2Config(**SMALL, use_sliding_window=True, max_window_layers=1),
    "qwen3 with biases of attention": lambda: Qwen3Config(**WIDE, attention_bias=True),
    "mistral with a window": lambda: MistralConfig(**WIDE, sliding_window=8),
    "smollm3": lambda: SmolLM3Config(**SMALL, pad_token_id=None),
}


def lessons() -> Any:
    """Two sequences of 60 and 70 tokens that share their first 20, which is longer than the context of LLAMA_3_ROPE."""
    numbers = torch.randint(0, 40, (130,), generator=torch.Generator().manual_seed(2)).tolist()
    first, second = numbers[:60], numbers[:20] + numbers[60:110]
    return build_demonstration_batch([(ids, [False] * 20 + [True] * (len(ids) - 20)) for ids in (first, second)])


def create_policy(config: PreTrainedConfig, *, has_adapter: bool) -> Policy:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config)
        # A new model has zeros and ones where a trained one has any numbers; then an error would not be seen.
        add_noise(model.parameters())
        policy = Policy(model, None, lora=LoraSettings(rank=4, alpha=8) if has_adapter else None)
        if has_adapter:
            add_noise(policy.trained.values())
    return policy


@torch.no_grad()
def add_noise(parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter += 0.1 * torch.randn_like(parameter)


def expected_logprobs(policy: Policy, batch: Any) -> torch.Tensor:
    """The log-probabilities of the trained tokens from the forward of transformers, one sequence at a time."""
    found = []
    expanded = expand_batch(batch)
    for sequence in expanded.sequences:
        segments = [expanded.segments[index] for index in sequence.segments]
        ids = torch.tensor([[token for one in segments for token in one.token_ids]])
        mask = torch.tensor([masked for one in segments for masked in one.mask])
        logprobs = policy.module(input_ids=ids).logits[0, :-1].log_softmax(-1)
        found.append(logprobs.gather(1, ids[0, 1:, None])[:, 0][mask[1:]])
    return torch.cat(found)


@pytest.mark.parametrize("has_adapter", [True, False], ids=["adapter", "every weight"])
@pytest.mark.parametrize("name", COMPUTED)
def test_logprobs_and_gradients_are_those_of_transformers(name: str, has_adapter: bool) -> None:
    policy, batch = create_policy(COMPUTED[name](), has_adapter=has_adapter), lessons()
    assert policy.is_lean
    expected = expected_logprobs(policy, batch)
    assert len(expected) == 90
    learner = TorchLearner(policy)
    assert learner.logprobs(batch) == pytest.approx(expected.tolist(), abs=1e-4)
    gradients = torch.autograd.grad(-expected.mean(), list(policy.trained.values()))
    learner.forward_backward(batch, "cross_entropy", {})
    for (parameter_name, parameter), gradient in zip(policy.trained.items(), gradients, strict=True):
        assert parameter.grad is not None, parameter_name
        assert gradient.abs().max() > 1e-4, parameter_name
        assert (parameter.grad - gradient).abs().max() < 1e-4 * max(1.0, gradient.abs().max().item()), parameter_name


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_lean_forward_does_not_compute_goes_through_transformers(name: str) -> None:
    config = REFUSED[name]()
    assert not is_supported(config)
    policy, batch = create_policy(config, has_adapter=True), lessons()
    assert not policy.is_lean
    assert TorchLearner(policy).logprobs(batch) == pytest.approx(expected_logprobs(policy, batch).tolist(), abs=1e-4)
