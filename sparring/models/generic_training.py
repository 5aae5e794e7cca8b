"""Token log-probabilities for training with the forward of transformers, for architectures without the lean forward."""

from __future__ import annotations

import inspect
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from sparring.models.policy import Policy
from sparring.types import TrainingBatch


def sequence_logprobs(
    policy: Policy, batch: TrainingBatch, *, with_entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [M] of each masked token at its temperature, and the entropy [M] (differentiable on demand).

    Each sequence goes through the model separately. `batch` must share nothing: each segment belongs to one sequence, and the
    segments of a sequence are consecutive, so that M is in segment order.
    """
    assert sorted(index for s in batch.sequences for index in s.segments) == list(range(len(batch.segments)))
    logprobs, entropies = [], []
    for sequence in batch.sequences:
        segments = [batch.segments[index] for index in sequence.segments]
        ids = [token for segment in segments for token in segment.token_ids]
        mask = [masked for segment in segments for masked in segment.mask]
        temperatures = [s.temperature for s in segments for masked in s.mask if masked]
        places_M = torch.tensor([place for place, masked in enumerate(mask) if masked], device=policy.device)
        if not len(places_M):
            continue
        ids_T = torch.tensor(ids, device=policy.device)
        logits_M_V = _logits(policy, ids_T, places_M - 1)
        temperatures_M = torch.tensor(temperatures, device=policy.device)
        all_logprobs = (logits_M_V.float() / temperatures_M[:, None]).log_softmax(dim=-1)
        logprobs.append(all_logprobs.gather(1, ids_T[places_M, None])[:, 0])
        entropies_M = -(all_logprobs.exp() * all_logprobs).sum(dim=-1)
        entropies.append(entropies_M if with_entropy_gradient else entropies_M.detach())
    return torch.cat(logprobs), torch.cat(entropies)


def _logits(policy: Policy, ids_T: Tensor, predictors_M: Tensor) -> Tensor:
    """Return the logits [M, V] at the given positions, computed only there where the architecture supports it."""
    with torch.autocast(policy.device.type, dtype=torch.bfloat16, enabled=policy.dtype == torch.bfloat16):
        if "logits_to_keep" in inspect.signature(policy.base.forward).parameters:
            kept = policy.module(input_ids=ids_T[None], use_cache=False, logits_to_keep=predictors_M)
            return kept.logits[0]
        return policy.module(input_ids=ids_T[None], use_cache=False).logits[0, predictors_M]


def checkpoint_layers(policy: Policy) -> None:
    """Keep only the input of each layer for the backward pass from now on."""
    for module in policy.base.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.gradient_checkpointing = True
            vars(module)["_gradient_checkpointing_func"] = partial(checkpoint, use_reentrant=False)
            # Only a layer in training mode is checkpointed. What it contains stays in evaluation mode, without dropout.
            module.training = True
