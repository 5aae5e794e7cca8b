"""Draw one token a row from logits, each row with a random stream of its own.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparring.types import Sampling

BLOCK = 256
"""Tokens whose probabilities are summed together: a draw searches the blocks, then within one."""


class UniformStream:
    """Uniform numbers in [0, 1) that depend on the seed alone (Philox, a counter-based generator)."""

    __slots__ = ("_generator",)

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))

    def next(self) -> float:
        return float(self._generator.random())


def draw(logits_B_V: Tensor, sampling: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Token [B] and its log-probability [B] under the distribution it was drawn from.

    Temperature 0 takes the likeliest token and reports its log-probability at temperature 1. top_p < 1 keeps the
    smallest set of likeliest tokens whose probability reaches top_p, and renormalises.
    """
    temperatures = torch.tensor([s.temperature or 1.0 for s in sampling], device=logits_B_V.device)
    scaled_B_V = logits_B_V.float() / temperatures[:, None]
    for row, one in enumerate(sampling):
        if one.top_p < 1.0 and one.temperature > 0:
            scaled_B_V[row] = _nucleus(scaled_B_V[row], one.top_p)
    normalizer_B = scaled_B_V.logsumexp(dim=-1)
    greedy = torch.tensor([s.temperature == 0 for s in sampling], device=logits_B_V.device)
    if bool(greedy.all()):
        tokens_B = scaled_B_V.argmax(dim=-1)
    else:
        uniforms_B = torch.tensor(uniforms, dtype=torch.float64, device=logits_B_V.device)
        tokens_B = _inverse_cdf((scaled_B_V - normalizer_B[:, None]).exp(), uniforms_B)
        if bool(greedy.any()):
            tokens_B = torch.where(greedy, scaled_B_V.argmax(dim=-1), tokens_B)
    logprobs_B = scaled_B_V.gather(1, tokens_B[:, None])[:, 0] - normalizer_B
    return tokens_B, logprobs_B.clamp(max=0.0)


def _inverse_cdf(probabilities_B_V: Tensor, uniforms_B: Tensor) -> Tensor:
    """The token at which the cumulated probability passes the uniform number; sums are kept in double precision."""
    padded = F.pad(probabilities_B_V, (0, -probabilities_B_V.shape[1] % BLOCK))
    blocks = padded.view(padded.shape[0], -1, BLOCK)
    cumulated = blocks.sum(dim=-1).double().cumsum(dim=-1)
    targets = uniforms_B * cumulated[:, -1]
    block = torch.searchsorted(cumulated, targets[:, None], right=True)[:, 0].clamp(max=cumulated.shape[1] - 1)
    rows = torch.arange(len(block), device=block.device)
    before = torch.where(block > 0, cumulated[rows, (block - 1).clamp(min=0)], torch.zeros_like(targets))
    within = blocks[rows, block].double().cumsum(dim=-1)
    inside = torch.searchsorted(within, (targets - before)[:, None], right=True)[:, 0].clamp(max=BLOCK - 1)
    tokens = (block * BLOCK + inside).clamp(max=probabilities_B_V.shape[1] - 1)
    # Rounding at the end of a block may point at a token of probability zero: take the likeliest of the block then.
    impossible = probabilities_B_V.gather(1, tokens[:, None])[:, 0] == 0
    return torch.where(impossible, probabilities_B_V.argmax(dim=-1), tokens)


def _nucleus(logits_V: Tensor, top_p: float) -> Tensor:
    ordered, indices = logits_V.sort(descending=True)
    before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
    kept = indices[before < top_p]
    result = torch.full_like(logits_V, float("-inf"))
    result[kept] = logits_V[kept]
    return result
