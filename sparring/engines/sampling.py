"""Sampling of one token per row from logits. Each row has its own random stream.

Shapes: B rows, T drawn tokens, V vocabulary, C blocks of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparring.models.compiled import address_of, can_compile
from sparring.types import Sampling

BLOCK = 256
"""The number of tokens whose probabilities are summed together. A draw searches the blocks, then one block."""


@final
class UniformStream:
    """A stream of uniform numbers in [0, 1) that depends only on the seed (Philox, a counter-based generator)."""

    __slots__ = ("_generator",)

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))

    def next(self) -> float:
        """Return the next number."""
        return float(self._generator.random())


@torch.inference_mode()
def draw(
    logits_B_V: Tensor,
    sampling: Sequence[Sampling],
    uniforms: Sequence[float],
    rows: Sequence[int] | None = None,
    *,
    top_ks: Sequence[int | None] = (),
) -> tuple[Tensor, Tensor]:
    """Return one sampled token per uniform number [T], and its log-probability [T] under the distribution from which it
    was drawn.

    `rows` contains the row [T] from which each token is drawn; by default, one token is drawn from each row. `sampling`
    has the settings of each row. Temperature 0 takes the most likely token and reports its log-probability at
    temperature 1. top_p < 1 keeps the smallest set of most likely tokens whose probability reaches top_p, and
    renormalizes. `top_ks` contains the number of most likely tokens of each row that are kept before that; None keeps all.
    """
    scores_B_V, device = logits_B_V.float(), logits_B_V.device
    temperatures_B = torch.tensor([one.temperature or 1.0 for one in sampling], dtype=torch.float32, device=device)
    top_ks = tuple(top_ks) or (None,) * len(sampling)
    if any(_removes(one, top_k, scores_B_V.shape[1]) for one, top_k in zip(sampling, top_ks, strict=True)):
        scores_B_V = scores_B_V / temperatures_B[:, None]
        temperatures_B = torch.ones_like(temperatures_B)
        for row, (one, top_k) in enumerate(zip(sampling, top_ks, strict=True)):
            if top_k is not None and top_k < scores_B_V.shape[1]:
                scores_B_V[row] = _likeliest(scores_B_V[row], top_k)
            if one.top_p < 1.0 and one.temperature > 0:
                scores_B_V[row] = _nucleus(scores_B_V[row], one.top_p)
    best_B, likeliest_B, sums_B_C = _summarize(scores_B_V, temperatures_B)
    rows_T = torch.tensor(range(len(sampling)) if rows is None else rows, device=device)
    cumulated_T_C = sums_B_C.double().cumsum(dim=-1)[rows_T]

    def log_odds(tokens_T_X: Tensor) -> Tensor:
        """Return the log-probabilities of tokens, up to the constant that makes a row's probabilities sum to one."""
        scores_T_X = scores_B_V[rows_T[:, None], tokens_T_X] - best_B[rows_T, None]
        return scores_T_X / temperatures_B[rows_T, None]

    drawn_T = _search(cumulated_T_C, uniforms, log_odds, scores_B_V.shape[1])
    greedy_T = torch.tensor([one.temperature == 0 for one in sampling], device=device)[rows_T]
    tokens_T = torch.where(greedy_T, likeliest_B[rows_T], drawn_T)
    logprobs_T = log_odds(tokens_T[:, None])[:, 0].double() - cumulated_T_C[:, -1].log()
    return tokens_T, logprobs_T.clamp(max=0.0).float()


@torch.inference_mode()
def constrain(logits_B_V: Tensor, allowed: Mapping[int, Tensor], sampling: Sequence[Sampling]) -> tuple[Tensor, Tensor]:
    """Return the logits, with -inf for the tokens that a constrained row does not allow, and the probability mass [C]
    that this removes from each constrained row.

    `allowed` contains the mask [V] for each of the C constrained rows; the other rows do not change. The probability
    mass is measured after the temperature is applied, or at temperature 1 if the temperature is 0.
    """
    constrained_B_V, removed = logits_B_V.to(torch.float32, copy=True), []
    for row, mask_V in allowed.items():
        scores_V, allowed_V = constrained_B_V[row], mask_V.to(logits_B_V.device)
        probabilities_V = (scores_V / (sampling[row].temperature or 1.0)).softmax(dim=-1)
        removed.append(probabilities_V.masked_fill_(allowed_V, 0.0).sum())
        scores_V.masked_fill_(~allowed_V, float("-inf"))
    return constrained_B_V, torch.stack(removed).clamp(max=1.0)


def _removes(sampling: Sampling, top_k: int | None, num_tokens: int) -> bool:
    """Return whether some tokens of a row must not be drawn."""
    return (top_k is not None and top_k < num_tokens) or (sampling.top_p < 1.0 and sampling.temperature > 0)


def _summarize(scores_B_V: Tensor, temperatures_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest score of each row [B], its token [B], and the sums of each block of exponentials [B, C]. The
    exponents are the differences to the largest score, divided by the temperature [B]."""
    num_rows, num_tokens = scores_B_V.shape
    if can_compile(scores_B_V.device, scores_B_V.dtype):
        # The import compiles the functions, or loads what an earlier process compiled.
        from sparring.models.kernels import summarize_rows

        scores_B_V, best_B = scores_B_V.contiguous(), torch.empty_like(temperatures_B)
        likeliest_B = torch.empty(num_rows, dtype=torch.int64)
        sums_B_C = torch.empty(num_rows, -(-num_tokens // BLOCK), dtype=torch.float32)
        addresses = [address_of(one) for one in (scores_B_V, temperatures_B, best_B)]
        addresses += [address_of(likeliest_B, torch.int64), address_of(sums_B_C)]
        summarize_rows([*scores_B_V.shape, BLOCK, sums_B_C.shape[1], *addresses], 10 * scores_B_V.numel())
        return best_B, likeliest_B, sums_B_C
    best_B, likeliest_B = scores_B_V.max(dim=-1)
    odds_B_V = ((scores_B_V - best_B[:, None]) / temperatures_B[:, None]).exp_()
    padded = F.pad(odds_B_V, (0, -num_tokens % BLOCK)) if num_tokens % BLOCK else odds_B_V
    return best_B, likeliest_B, padded.view(num_rows, -1, BLOCK).sum(dim=-1)


def _search(
    cumulated_T_C: Tensor, uniforms: Sequence[float], log_odds: Callable[[Tensor], Tensor], num_tokens: int
) -> Tensor:
    """Return the inverse [T] of the cumulative distributions at the uniform numbers, given the cumulative sums of the
    blocks of each distribution."""
    # Sums are in double precision. A product must not round up to the whole sum.
    uniforms_T = torch.tensor(uniforms, dtype=torch.float64, device=cumulated_T_C.device)
    targets_T = uniforms_T.clamp(max=1 - 1e-12) * cumulated_T_C[:, -1]
    last = cumulated_T_C.shape[1] - 1
    block_T = torch.searchsorted(cumulated_T_C, targets_T[:, None], right=True)[:, 0].clamp(max=last)
    places_T = torch.arange(len(block_T), device=block_T.device)
    before_T = torch.where(block_T > 0, cumulated_T_C[places_T, (block_T - 1).clamp(min=0)], 0.0)
    tokens_T_X = block_T[:, None] * BLOCK + torch.arange(BLOCK, device=block_T.device)
    odds_T_X = log_odds(tokens_T_X.clamp(max=num_tokens - 1)).exp()
    odds_T_X.masked_fill_(tokens_T_X >= num_tokens, 0.0)
    within_T_X = odds_T_X.double().cumsum(dim=-1)
    inside_T = torch.searchsorted(within_T_X, (targets_T - before_T)[:, None], right=True)[:, 0].clamp(max=BLOCK - 1)
    # Rounding at the end of a block may point past the block or at a token of probability zero. Take the most likely
    # token of the block instead.
    is_impossible_T = odds_T_X[places_T, inside_T] == 0
    return block_T * BLOCK + torch.where(is_impossible_T, odds_T_X.argmax(dim=-1), inside_T)


def _likeliest(scores_V: Tensor, top_k: int) -> Tensor:
    """Return the scores with -inf for all tokens except the `top_k` most likely ones."""
    kept = scores_V.topk(top_k)
    return torch.full_like(scores_V, float("-inf")).index_copy_(0, kept.indices, kept.values)


def _nucleus(scores_V: Tensor, top_p: float) -> Tensor:
    """Return the scores with -inf for all tokens except the smallest set of most likely tokens whose probability
    reaches top_p."""
    ordered, indices = scores_V.sort(descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    before[0] = 0.0
    kept = ordered.masked_fill(before >= top_p, float("-inf"))
    return torch.empty_like(scores_V).index_copy_(0, indices, kept)
