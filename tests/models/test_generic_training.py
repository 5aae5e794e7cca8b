"""Architectures without the lean forward train through transformers' own."""

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from sparring.models.policy import LoraSettings, Policy
from sparring.models.token_tree import count_nodes
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch, expand_batch, sequence_ids

LESSON = build_demonstration_batch(
    [
        ([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True]),
        ([1, 2, 7, 8], [False, False, False, True]),
    ]
)


@pytest.fixture
def policy():
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    made = Policy(GPTNeoXForCausalLM(config), None, lora=LoraSettings(rank=2, alpha=4, targets=("query_key_value",)))
    assert not made.is_lean
    return made


def plain_loss(policy):
    """Mean negative log-probability of the four learned tokens, written out."""
    first = policy.module(torch.tensor([[1, 2, 3, 4, 5, 6]])).logits[0].log_softmax(-1)
    second = policy.module(torch.tensor([[1, 2, 7, 8]])).logits[0].log_softmax(-1)
    return -(first[1, 3] + first[2, 4] + first[4, 6] + second[2, 8]) / 4


def test_loss_and_gradient_are_those_of_the_plain_forward(policy):
    loss = plain_loss(policy)
    expected = torch.autograd.grad(loss, list(policy.trained.values()))
    metrics = TorchLearner(policy).forward_backward(LESSON, "cross_entropy", {})
    assert metrics["training/loss"] == pytest.approx(loss.item(), rel=1e-5)
    # The forest has 8 distinct tokens; without sharing the prompt goes through the model twice.
    assert (count_nodes(sequence_ids(LESSON)), metrics["training/tokens"]) == (8, 10)
    for parameter, gradient in zip(policy.trained.values(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-4, atol=1e-7)


def test_logprobs_have_each_trained_token_once_without_sharing_too(policy):
    logprobs = TorchLearner(policy).logprobs(LESSON)
    assert len(logprobs) == expand_batch(LESSON).num_trained_tokens == LESSON.num_trained_tokens == 4
    assert -sum(logprobs) / 4 == pytest.approx(plain_loss(policy).item(), rel=1e-5)


def test_a_step_lowers_the_loss(policy):
    learner = TorchLearner(policy)
    first = learner.forward_backward(LESSON, "cross_entropy", {})["training/loss"]
    learner.optim_step(0.05)
    assert learner.forward_backward(LESSON, "cross_entropy", {})["training/loss"] < first
