"""Sampling of one token per row from logits. Each row has its own random stream.

Shapes: B rows, T drawn tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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
    scores_B_V = logits_B_V.float()
    if any(one.temperature not in (0.0, 1.0) for one in sampling):
        temperatures = torch.tensor([one.temperature or 1.0 for one in sampling], device=logits_B_V.device)
        scores_B_V = scores_B_V / temperatures[:, None]
    for row, top_k in enumerate(top_ks):
        if top_k is not None and top_k < scores_B_V.shape[1]:
            scores_B_V = scores_B_V.clone() if scores_B_V is logits_B_V else scores_B_V
            scores_B_V[row] = _likeliest(scores_B_V[row], top_k)
    for row, one in enumerate(sampling):
        if one.top_p < 1.0 and one.temperature > 0:
            scores_B_V = scores_B_V.clone() if scores_B_V is logits_B_V else scores_B_V
            scores_B_V[row] = _nucleus(scores_B_V[row], one.top_p)
    best_B, likeliest_B = scores_B_V.max(dim=-1)
    # The probabilities are correct up to the factor that makes them sum to one. Sums of blocks are kept in double
    # precision.
    odds_B_V = (scores_B_V - best_B[:, None]).exp_()
    if odds_B_V.shape[1] % BLOCK:
        odds_B_V = F.pad(odds_B_V, (0, -odds_B_V.shape[1] % BLOCK))
    blocks = odds_B_V.view(len(sampling), -1, BLOCK)
    cumulated = blocks.sum(dim=-1).double().cumsum(dim=-1)
    rows_T = torch.tensor(range(len(sampling)) if rows is None else rows, device=logits_B_V.device)
    uniforms_T = torch.tensor(uniforms, dtype=torch.float64, device=logits_B_V.device)
    greedy_T = torch.tensor([one.temperature == 0 for one in sampling], device=logits_B_V.device)[rows_T]
    tokens_T = torch.where(greedy_T, likeliest_B[rows_T], _search(blocks, cumulated, rows_T, uniforms_T))
    scores_T = scores_B_V[rows_T, tokens_T] - best_B[rows_T]
    logprobs_T = scores_T.double() - cumulated[rows_T, -1].log()
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


def _search(blocks: Tensor, cumulated: Tensor, rows_T: Tensor, uniforms_T: Tensor) -> Tensor:
    """Return the inverse of the rows' cumulative distributions at `uniforms_T`, given `blocks` [B, blocks, BLOCK] and
    their cumulative sums [B, blocks]."""
    sums = cumulated[rows_T]
    targets = uniforms_T.clamp(max=1 - 1e-12) * sums[:, -1]  # a product must not round up to the whole sum
    block = torch.searchsorted(sums, targets[:, None], right=True)[:, 0].clamp(max=sums.shape[1] - 1)
    places = torch.arange(len(block), device=block.device)
    before = torch.where(block > 0, sums[places, (block - 1).clamp(min=0)], torch.zeros_like(targets))
    chosen = blocks[rows_T, block]
    within = chosen.double().cumsum(dim=-1)
    inside = torch.searchsorted(within, (targets - before)[:, None], right=True)[:, 0].clamp(max=BLOCK - 1)
    # Rounding at the end of a block may point past the block or at a token of probability zero. Take the most likely
    # token of the block instead.
    is_impossible = chosen[places, inside] == 0
    return block * BLOCK + torch.where(is_impossible, chosen.argmax(dim=-1), inside)


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
