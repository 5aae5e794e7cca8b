"""Compute token log-probabilities for training with the forward pass of transformers, for architectures that the lean
forward pass does not support."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from sparring.models.output_layer import recomputed_logprobs
from sparring.models.policy import Policy
from sparring.models.split_model import SplitModel
from sparring.types import TrainingBatch


def sequence_logprobs(
    policy: Policy, batch: TrainingBatch, *, with_entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [M] of each masked token at its temperature, and the entropy [M].

    The entropies are differentiable with `with_entropy_gradient`. Each sequence goes through the model separately. The
    sequences of `batch` must not share segments, and the segments of a sequence must be consecutive, so that M is in
    segment order.
    """
    assert sorted(index for s in batch.sequences for index in s.segments) == list(range(len(batch.segments)))
    model = SplitModel(policy.base, is_bf16=policy.dtype == torch.bfloat16)
    logprobs, entropies = [], []
    for sequence in batch.sequences:
        segments = [batch.segments[index] for index in sequence.segments]
        ids = [token for segment in segments for token in segment.token_ids]
        targets = [token for segment in segments for token in segment.targets or segment.token_ids]
        mask = [masked for segment in segments for masked in segment.mask]
        temperatures = [s.temperature for s in segments for masked in s.mask if masked]
        places_M = torch.tensor([place for place, masked in enumerate(mask) if masked], device=policy.device)
        if not len(places_M):
            continue
        ids_T = torch.tensor(ids, device=policy.device)
        found = recomputed_logprobs(
            model.hidden(ids_T).index_select(0, places_M - 1),
            model.logits,
            torch.tensor(targets, device=policy.device)[places_M],
            torch.tensor(temperatures, device=policy.device),
            vocab_size=policy.base.get_input_embeddings().weight.shape[0],
        )
        logprobs.append(found[0])
        entropies.append(found[1] if with_entropy_gradient else found[1].detach())
    return torch.cat(logprobs), torch.cat(entropies)


def checkpoint_layers(policy: Policy) -> None:
    """From now on, keep only the input of each layer for the backward pass."""
    for module in policy.base.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.gradient_checkpointing = True
            vars(module)["_gradient_checkpointing_func"] = partial(checkpoint, use_reentrant=False)
            # Only a layer in training mode is checkpointed. What it contains stays in evaluation mode, without dropout.
            module.training = True
