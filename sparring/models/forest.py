"""Compute token log-probabilities of a forest of segments: every distinct token goes through the model once.

The flat batch contains all segments one after the other. The tokens of a segment attend to all tokens of its ancestors
and, causally, to each other. A prompt that a group (or a whole batch) shares is one segment. Its keys and values are
therefore computed once, and receive the gradients of all segments that attend to them.

Shapes: N tokens of the flat batch, M predicted tokens, hidden size H, vocabulary size V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparring.models.forest_attention import build_attention
from sparring.models.llama import LlamaWeights, forward
from sparring.models.output_layer import FrozenHeadLogprobs, differentiable_logits, recomputed_logprobs
from sparring.types import TokenSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestLayout:
    """The position of each token of a forest in the flat batch, and the tokens that are predicted."""

    ids_N: Tensor
    positions_N: Tensor
    segments: tuple[tuple[slice, tuple[slice, ...]], ...]
    """The slice of each segment, and the slices of its ancestors, root first."""
    predictors_M: Tensor
    """The index in the flat batch of the token before each predicted token, whose hidden state predicts it."""
    targets_M: Tensor
    temperatures_M: Tensor


def layout(segments: Sequence[TokenSegment], *, device: torch.device | str = "cpu") -> ForestLayout:
    """Lay out segments, whose parents must come first. Predicted tokens are the tokens whose mask is set, in segment
    order.

    Raises ValueError if the mask of a root's first token is set, since no token comes before it.
    """
    depths: list[int] = []
    ancestors: list[tuple[slice, ...]] = []
    places: list[tuple[slice, tuple[slice, ...]]] = []
    ids, positions, predictors, targets, temperatures = [], [], [], [], []
    for segment in segments:
        start = len(ids)
        size = len(segment.token_ids)
        parent = segment.parent
        depth = 0 if parent is None else depths[parent] + len(segments[parent].token_ids)
        path = () if parent is None else (*ancestors[parent], places[parent][0])
        depths.append(depth)
        ancestors.append(path)
        places.append((slice(start, start + size), path))
        ids.extend(segment.token_ids)
        positions.extend(range(depth, depth + size))
        for offset, predicted in enumerate(segment.mask):
            if not predicted:
                continue
            if offset > 0:
                predictors.append(start + offset - 1)
            elif parent is not None:
                predictors.append(places[parent][0].stop - 1)
            else:
                raise ValueError("the first token of a root segment is masked as sampled, but nothing predicts it")
            targets.append(segment.token_ids[offset])
            temperatures.append(segment.temperature)
    return ForestLayout(
        ids_N=torch.tensor(ids, device=device),
        positions_N=torch.tensor(positions, device=device),
        segments=tuple(places),
        predictors_M=torch.tensor(predictors, dtype=torch.long, device=device),
        targets_M=torch.tensor(targets, dtype=torch.long, device=device),
        temperatures_M=torch.tensor(temperatures, dtype=torch.float32, device=device),
    )


def forest_logprobs(
    weights: LlamaWeights, forest: ForestLayout, *, with_entropy_gradient: bool = False, checkpointing: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [M] of each predicted token at its temperature, and the entropy [M].

    Log-probabilities are differentiable. Entropies are differentiable only with `with_entropy_gradient`, since that
    takes one more product with the output matrix. `checkpointing` keeps only the input of each layer for the backward
    pass.
    """
    sizes = [place.stop - place.start for place, _ in forest.segments]
    index_at = {place.start: index for index, (place, _) in enumerate(forest.segments)}
    paths = [
        (*(index_at[other.start] for other in ancestors), index) for index, (_, ancestors) in enumerate(forest.segments)
    ]
    attend = build_attention(weights.shape, sizes, paths, like=weights.final_norm)
    hidden_N_H = forward(weights, forest.ids_N, forest.positions_N, attend, checkpointing=checkpointing)
    # Not by indexing: its backward pass adds repeated rows (the end of a shared prompt) in the order of threads.
    hidden_M_H = hidden_N_H.index_select(0, forest.predictors_M)
    if weights.lm_head.requires_grad:
        head_V_H = weights.lm_head
        logprobs_M, entropies_M = recomputed_logprobs(
            hidden_M_H,
            lambda hidden: differentiable_logits(hidden, head_V_H),
            forest.targets_M,
            forest.temperatures_M,
            vocab_size=len(head_V_H),
        )
    else:
        logprobs_M, entropies_M = FrozenHeadLogprobs.apply(
            hidden_M_H, weights.lm_head, forest.targets_M, forest.temperatures_M, with_entropy_gradient
        )
    return logprobs_M, entropies_M if with_entropy_gradient else entropies_M.detach()
