"""Compute log-probabilities from the output matrix in chunks, so that the logits of all predicted tokens never exist at
once.

Shapes: M predicted tokens, hidden size H, vocabulary size V.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparring.models.products import ExactProduct, compute_logits, is_exact, project_back

LOGIT_BYTES = 64 * 2**20
"""The most memory that one chunk of logits may take, in bytes."""
MIXED_LOGIT_BYTES = 256 * 2**20
"""The same limit if each chunk converts the whole output matrix from a different precision."""


class FrozenHeadLogprobs(torch.autograd.Function):
    """Compute log-probabilities with a frozen output matrix in chunks, without keeping logits for the backward pass.

    The derivative of log p(target) with respect to the hidden state, (W[target] - sum_v p_v W[v]) / temperature, does
    not depend on later computations. The forward pass therefore computes it from the logits, and keeps [M, H] values
    instead of [M, V].
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_M_H: Tensor,
        head_V_H: Tensor,
        targets_M: Tensor,
        temperatures_M: Tensor,
        with_entropy: bool,
        with_entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs_M = torch.empty(len(targets_M), dtype=torch.float32, device=hidden_M_H.device)
        entropies_M = torch.zeros_like(logprobs_M)
        num_derivatives = (1 + with_entropy_gradient) if ctx.needs_input_grad[0] else 0
        derivatives = [torch.empty_like(hidden_M_H) for _ in range(num_derivatives)]
        dtype = hidden_M_H.dtype
        logit_bytes = LOGIT_BYTES if head_V_H.dtype == dtype else MIXED_LOGIT_BYTES
        step = max(1, logit_bytes // (4 * head_V_H.shape[0]))
        # One block of memory for all chunks: freed blocks of this size cannot always be used again.
        buffer = None if is_exact(hidden_M_H) else hidden_M_H.new_empty(min(step, len(targets_M)), len(head_V_H))
        for start in range(0, len(targets_M), step):
            part = slice(start, min(start + step, len(targets_M)))
            scores = compute_logits(
                hidden_M_H[part], head_V_H, None if buffer is None else buffer[: part.stop - part.start]
            )
            scores /= temperatures_M[part, None]
            highest = scores.amax(dim=-1)
            chosen = scores.gather(1, targets_M[part, None])[:, 0] - highest
            kept = scores.clone() if len(derivatives) > 1 else None
            # In place, since each pass over a chunk of logits takes a fifth of the time of a product.
            odds = scores.sub_(highest[:, None]).exp_()
            total = odds.sum(dim=-1)
            logprobs_M[part] = chosen - total.log()
            if not (with_entropy or derivatives):
                del scores, odds, kept
                continue
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
            del scores, odds, kept  # before the next chunk is computed
        ctx.save_for_backward(*derivatives)
        return logprobs_M, entropies_M

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        derivatives = ctx.saved_tensors
        total = derivatives[0] * gradients[0][:, None]
        if len(derivatives) > 1:
            total = total + derivatives[1] * gradients[1][:, None]
        return total.to(derivatives[0].dtype), None, None, None, None, None


def recomputed_logprobs(
    hidden_M_H: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    targets_M: Tensor,
    temperatures_M: Tensor,
    *,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    """Return the same values, with gradients for all tensors that `logits_of` ([M, H] -> [M, V]) uses.

    The backward pass computes the logits of each chunk again.
    """

    def chunk(hidden: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        all_logprobs = (logits_of(hidden).float() / temperatures[:, None]).log_softmax(dim=-1)
        entropies = -(all_logprobs.exp() * all_logprobs).sum(dim=-1)
        return all_logprobs.gather(1, targets[:, None])[:, 0], entropies

    step = max(1, LOGIT_BYTES // (4 * vocab_size))
    logprobs, entropies = [], []
    for start in range(0, len(targets_M), step):
        part = slice(start, start + step)
        arguments = (hidden_M_H[part], targets_M[part], temperatures_M[part])
        if torch.is_grad_enabled():
            result = checkpoint(chunk, *arguments, use_reentrant=False)
        else:
            result = chunk(*arguments)
        logprobs.append(result[0])
        entropies.append(result[1])
    if not logprobs:
        return hidden_M_H.sum(dim=-1), hidden_M_H.sum(dim=-1).detach()
    return torch.cat(logprobs), torch.cat(entropies)


def differentiable_logits(hidden_M_H: Tensor, head_V_H: Tensor) -> Tensor:
    """Return logits [M, V] whose gradients reach the hidden states and the output matrix. Both must have the same
    precision."""
    return ExactProduct.apply(hidden_M_H, head_V_H) if is_exact(hidden_M_H) else hidden_M_H @ head_V_H.T
