"""Token log-probabilities of a forest of segments: every distinct token goes through the model once.

The flat batch holds all segments one after the other; a segment's tokens attend to its ancestors and, causally, to
themselves. Prompts that a group (or a whole batch) shares are one segment, so their keys and values are computed once
and receive the gradients of all segments that attend to them.

Shapes: N tokens of the flat batch, M predicted tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparring.models.llama import LlamaWeights, Masks, attend_causally, forward
from sparring.models.products import project, project_back
from sparring.types import TokenSegment

LOGIT_BYTES = 64 * 2**20
"""The most memory that one chunk of logits may take, in bytes."""
MIXED_LOGIT_BYTES = 256 * 2**20
"""The same where each chunk converts the whole output matrix from another precision."""


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
    """Lay out segments (parents first). Predicted tokens are those whose mask is set, in segment order.

    Raises ValueError if the first token of a root is to be predicted, since no token comes before it.
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

    Log-probabilities are differentiable; entropies only with `with_entropy_gradient`, since
    that takes one more product with the output matrix. `checkpointing` keeps only the input of each layer.
    """

    sizes = [place.stop - place.start for place, _ in forest.segments]
    index_at = {place.start: index for index, (place, _) in enumerate(forest.segments)}
    paths = [[index_at[other.start] for other in ancestors] + [i] for i, (_, ancestors) in enumerate(forest.segments)]
    masks: Masks = {}

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # One split for all segments: its backward pass is one concatenation, where slices would each fill a whole tensor.
        queries, keys, values = q.split(sizes), k.split(sizes), v.split(sizes)
        outputs = []
        for index, path in enumerate(paths):
            if len(path) > 1:
                seen_k, seen_v = (
                    torch.cat([keys[other] for other in path]),
                    torch.cat([values[other] for other in path]),
                )
            else:
                seen_k, seen_v = keys[index], values[index]
            outputs.append(attend_causally(weights.shape, queries[index], seen_k, seen_v, masks))
        return torch.cat(outputs)

    hidden_N_H = forward(weights, forest.ids_N, forest.positions_N, attend, checkpointing=checkpointing)
    # Not by indexing: its backward pass adds repeated rows (the end of a shared prompt) in the order of threads.
    hidden_M_H = hidden_N_H.index_select(0, forest.predictors_M)
    if weights.lm_head.requires_grad:
        logprobs_M, entropies_M = _trainable_head_logprobs(
            hidden_M_H, weights.lm_head, forest.targets_M, forest.temperatures_M
        )
    else:
        logprobs_M, entropies_M = FrozenHeadLogprobs.apply(
            hidden_M_H, weights.lm_head, forest.targets_M, forest.temperatures_M, with_entropy_gradient
        )
    return logprobs_M, entropies_M if with_entropy_gradient else entropies_M.detach()


class FrozenHeadLogprobs(torch.autograd.Function):
    """Log-probabilities under a frozen output matrix, in chunks, without keeping logits for the backward pass.

    The derivative of log p(target) by the hidden state, (W[target] - sum_v p_v W[v]) / temperature, does not depend on
    later computations, so the forward pass computes it from its logits and keeps [M, H] instead of [M, V].
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_M_H: Tensor, head_V_H: Tensor, targets_M: Tensor, temperatures_M: Tensor, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        logprobs_M = torch.empty(len(targets_M), dtype=torch.float32, device=hidden_M_H.device)
        entropies_M = torch.empty_like(logprobs_M)
        num_derivatives = (1 + with_entropy) if ctx.needs_input_grad[0] else 0
        derivatives = [torch.empty_like(hidden_M_H) for _ in range(num_derivatives)]
        dtype = hidden_M_H.dtype
        logit_bytes = LOGIT_BYTES if head_V_H.dtype == dtype else MIXED_LOGIT_BYTES
        step = max(1, logit_bytes // (4 * head_V_H.shape[0]))
        for start in range(0, len(targets_M), step):
            part = slice(start, start + step)
            scores = project(hidden_M_H[part], head_V_H).float()
            scores /= temperatures_M[part, None]
            highest = scores.amax(dim=-1)
            chosen = scores.gather(1, targets_M[part, None])[:, 0] - highest
            kept = scores.clone() if len(derivatives) > 1 else None
            # In place, since each pass over a chunk of logits takes a fifth of the time of a product.
            odds = scores.sub_(highest[:, None]).exp_()
            total = odds.sum(dim=-1)
            logprobs_M[part] = chosen - total.log()
            expected = project_back(odds.to(dtype), head_V_H).float() / total[:, None]
            # H = log(sum_v e^s_v) - sum_v p_v s_v, and the mean score is the score of the mean row of the matrix.
            mean_score = (hidden_M_H[part].float() * expected).sum(dim=-1) / temperatures_M[part]
            entropies_M[part] = total.log() + highest - mean_score
            if derivatives:
                derivative = (head_V_H[targets_M[part]].float() - expected) / temperatures_M[part, None]
                derivatives[0][part] = derivative.to(hidden_M_H.dtype)
            if kept is not None:
                # dH / ds_v = -p_v (s_v - mean score)
                odds *= mean_score[:, None] - kept
                slope = project_back(odds.to(dtype), head_V_H).float() / (total * temperatures_M[part])[:, None]
                derivatives[1][part] = slope.to(hidden_M_H.dtype)
        ctx.save_for_backward(*derivatives)
        return logprobs_M, entropies_M

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        derivatives = ctx.saved_tensors
        total = derivatives[0] * gradients[0][:, None]
        if len(derivatives) > 1:
            total = total + derivatives[1] * gradients[1][:, None]
        return total.to(derivatives[0].dtype), None, None, None, None


def _trainable_head_logprobs(
    hidden_M_H: Tensor, head_V_H: Tensor, targets_M: Tensor, temperatures_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the same values, with gradients for the output matrix too. The backward pass recomputes the logits of a chunk."""

    def chunk(hidden: Tensor, head: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        all_logprobs = ((hidden @ head.T).float() / temperatures[:, None]).log_softmax(dim=-1)
        entropies = -(all_logprobs.exp() * all_logprobs).sum(dim=-1)
        return all_logprobs.gather(1, targets[:, None])[:, 0], entropies

    step = max(1, LOGIT_BYTES // (4 * head_V_H.shape[0]))
    logprobs, entropies = [], []
    for start in range(0, len(targets_M), step):
        part = slice(start, start + step)
        arguments = (hidden_M_H[part], head_V_H, targets_M[part], temperatures_M[part])
        if torch.is_grad_enabled():
            result = checkpoint(chunk, *arguments, use_reentrant=False)
        else:
            result = chunk(*arguments)
        logprobs.append(result[0])
        entropies.append(result[1])
    if not logprobs:
        return hidden_M_H.sum(dim=-1), hidden_M_H.sum(dim=-1).detach()
    return torch.cat(logprobs), torch.cat(entropies)
