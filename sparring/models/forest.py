"""Compute token log-probabilities of a forest of segments: every distinct token goes through the model once.

The tokens of all segments form a tree. A token that several segments have after equal histories is one node. Examples
are a prompt that a group (or a whole batch) shares, and the tokens that several episodes sampled identically. The keys
and values of a node are computed once, and receive the gradients of all segments. Each trained token keeps its own
log-probability, so a node that five episodes trained on has five of them, which are equal.

Shapes: N nodes of the tree (the flat batch), M trained tokens, U different predictions, hidden size H, vocabulary V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from sparring.models.forest_attention import build_attention
from sparring.models.llama import LlamaWeights, forward
from sparring.models.operations import choose_operations
from sparring.models.output_layer import FrozenHeadLogprobs, differentiable_logits, recomputed_logprobs
from sparring.models.token_tree import Part, TokenTree
from sparring.models.trunk import TrunkCache
from sparring.types import TokenSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestLayout:
    """The position of each node in the flat batch, and the predictions that the trained tokens need."""

    ids_N: Tensor
    positions_N: Tensor
    branches: tuple[tuple[int, ...], ...]
    """The tokens of each branch; the flat batch contains one branch after the other."""
    ancestors: tuple[tuple[Part, ...], ...]
    """The tokens before each branch, root first."""
    predictors_U: Tensor
    """The index in the flat batch of the token before each predicted token, whose hidden state predicts it."""
    targets_U: Tensor
    temperatures_U: Tensor
    predictions_M: Tensor
    """The index among the U predictions of each trained token."""


def layout(segments: Sequence[TokenSegment], *, device: torch.device | str = "cpu") -> ForestLayout:
    """Lay out segments, whose parents must come first. Trained tokens are the tokens whose mask is set, in segment
    order.

    Raises ValueError if the mask of a root's first token is set, since no token comes before it.
    """
    histories: list[tuple[int, ...]] = []
    trained: list[np.ndarray] = []
    """The indices of each segment's trained tokens in the segment's history."""
    for segment in segments:
        before = () if segment.parent is None else histories[segment.parent]
        histories.append(before + segment.token_ids)
        trained.append(np.flatnonzero(segment.mask) + len(before))
        if len(trained[-1]) and trained[-1][0] == 0:
            raise ValueError("the first token of a root segment is masked as sampled, but nothing predicts it")
    # A trained token is predicted from the tokens before it, so the model does not need to read the last trained token.
    tree = TokenTree([ids[: places[-1]] if len(places) else () for ids, places in zip(histories, trained, strict=True)])
    sizes = tuple(map(len, tree.branches))
    begins = [0, *accumulate(sizes)]
    predictors, targets, temperatures = [], [], []
    for segment, ids, places, path in zip(segments, histories, trained, tree.paths, strict=True):
        if len(places):
            nodes = np.concatenate([np.arange(begins[branch], begins[branch] + size) for branch, size in path])
            predictors.append(nodes[places - 1])
            own = None if segment.targets is None else np.asarray(segment.targets)[np.flatnonzero(segment.mask)]
            targets.append(np.asarray(ids)[places] if own is None else own)
            temperatures.append(np.full(len(places), segment.temperature))
    first, predictions = _distinct(_join(predictors), _join(targets), _join(temperatures))
    ids_N = np.fromiter(chain.from_iterable(tree.branches), dtype=np.int64, count=begins[-1])
    depths = [sum(size for _, size in parts) for parts in tree.ancestors]
    positions = [np.arange(depth, depth + size) for depth, size in zip(depths, sizes, strict=True)]
    return ForestLayout(
        ids_N=torch.from_numpy(ids_N).to(device),
        positions_N=torch.from_numpy(_join(positions)).to(device),
        branches=tuple(tree.branches),
        ancestors=tuple(tree.ancestors),
        predictors_U=torch.from_numpy(_join(predictors)[first]).to(device),
        targets_U=torch.from_numpy(_join(targets)[first]).to(device),
        temperatures_U=torch.from_numpy(_join(temperatures)[first].astype(np.float32)).to(device),
        predictions_M=torch.from_numpy(predictions).to(device),
    )


def forest_logprobs(
    weights: LlamaWeights,
    forest: ForestLayout,
    *,
    with_entropy: bool = True,
    with_entropy_gradient: bool = False,
    checkpointing: bool = False,
    trunk: TrunkCache | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [M] of each trained token at its temperature, and the entropy [M].

    Log-probabilities are differentiable. Entropies are differentiable only with `with_entropy_gradient`, since that
    takes one more product with the output matrix. Without gradients, `with_entropy=False` saves such a product; entropies
    are then 0. `checkpointing` keeps only the input of each layer for the backward
    pass. `trunk` contains outputs of the first layers, which `weights` must not have changed.
    """
    attend = build_attention(
        weights.shape,
        [len(one) for one in forest.branches],
        forest.ancestors,
        like=weights.final_norm,
        checkpointing=checkpointing,
    )
    known_N_H = None if trunk is None else trunk.find(forest.branches, forest.ancestors)
    begin = None if trunk is None or known_N_H is None else (trunk.num_layers, known_N_H)

    def keep(index: int, x_N_H: Tensor) -> None:
        if trunk is not None and begin is None and index == trunk.num_layers:
            trunk.add(forest.branches, forest.ancestors, x_N_H)

    hidden_N_H = forward(
        weights,
        forest.ids_N,
        forest.positions_N,
        attend,
        operations=choose_operations(weights.final_norm.device, weights.final_norm.dtype),
        checkpointing=checkpointing,
        begin=begin,
        on_layer=keep,
    )
    # Not by indexing, whose backward pass adds repeated rows (the end of a shared prompt) in an order that depends on
    # the threads.
    hidden_U_H = hidden_N_H.index_select(0, forest.predictors_U)
    if weights.lm_head.requires_grad:
        head_V_H = weights.lm_head
        logprobs_U, entropies_U = recomputed_logprobs(
            hidden_U_H,
            lambda hidden: differentiable_logits(hidden, head_V_H),
            forest.targets_U,
            forest.temperatures_U,
            vocab_size=len(head_V_H),
        )
    else:
        logprobs_U, entropies_U = FrozenHeadLogprobs.apply(
            hidden_U_H, weights.lm_head, forest.targets_U, forest.temperatures_U, with_entropy, with_entropy_gradient
        )
    logprobs_M, entropies_M = (values.index_select(0, forest.predictions_M) for values in (logprobs_U, entropies_U))
    return logprobs_M, entropies_M if with_entropy_gradient else entropies_M.detach()


def _distinct(*columns_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of one occurrence of each distinct row [U], and for each row the index of its distinct row
    [M]."""
    keys = np.zeros(len(columns_M[0]), dtype=np.int64)
    for column in columns_M:
        values, which = np.unique(column, return_inverse=True)
        keys = keys * len(values) + which
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return all parts in one array, or an empty array of integers if there are no parts."""
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
