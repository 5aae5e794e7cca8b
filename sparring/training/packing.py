"""Divide a forest into microbatches, or among several learners, by the number of tokens that the model computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from sparring.errors import DataError
from sparring.models.token_tree import common_prefix, count_nodes
from sparring.training.sequences import sequence_ids, trained_values, with_values
from sparring.types import TrainingBatch, TrainingSequence

MICROBATCH_TOKENS = 32
"""The approximate cost of one more microbatch, in computed tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trajectory:
    """A trajectory that is to be packed."""

    sequences: tuple[TrainingSequence, ...]
    ids: tuple[tuple[int, ...], ...]
    """The tokens of each sequence, in order."""
    num_tokens: int
    """The number of distinct tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a batch that one of several learners trains on."""

    batch: TrainingBatch
    places: tuple[int, ...]
    """The index of each trained token among the trained tokens of the whole batch, in segment order."""


def deal(batch: TrainingBatch, num_shares: int) -> list[Share]:
    """Divide a batch into shares, so that the largest number of distinct tokens of a share is as small as possible.

    Trajectories are not divided, and those that begin alike are dealt to the same share unless the prompt that two shares
    then compute twice takes less than the imbalance otherwise. Shares without trajectories are empty.
    Raises DataError like `pack`.
    """
    numbered = with_values(batch, range(batch.num_trained_tokens))
    trajectories = sorted(_list_trajectories(batch), key=lambda trajectory: trajectory.ids)
    sizes = [trajectory.num_tokens for trajectory in trajectories]
    shared = [0, *map(_num_shared, trajectories, trajectories[1:])]
    parts = _balance(sizes, shared, num_shares)
    sequences = [[sequence for one in trajectories[part] for sequence in one.sequences] for part in parts]
    shares = [
        Share(
            batch=_microbatch(batch, one),
            places=tuple(map(int, trained_values(_microbatch(numbered, one), "sampled_logprobs"))),
        )
        for one in sequences
    ]
    _check_division(batch, [share.batch for share in shares])
    empty = Share(batch=TrainingBatch(segments=(), sequences=()), places=())
    return [*shares, *[empty] * (num_shares - len(shares))]


def pack(batch: TrainingBatch, max_tokens: int) -> list[TrainingBatch]:
    """Return microbatches of at most `max_tokens` distinct tokens, divided so that few tokens are computed twice.

    Trajectories are not divided, because some losses use all tokens of a trajectory. Every trained token is in exactly
    one microbatch. Trajectories that begin alike are neighbors. The batch is divided between neighbors that share few
    tokens, because both microbatches compute the shared tokens. A trajectory that exceeds `max_tokens` gets its own
    microbatch.

    Raises DataError if a segment belongs to several microbatches or to none, since its tokens would not be trained
    exactly once.
    """
    trajectories = sorted(_list_trajectories(batch), key=lambda trajectory: trajectory.ids)
    parts = _divide(
        [trajectory.num_tokens for trajectory in trajectories],
        [0, *map(_num_shared, trajectories, trajectories[1:])],
        max_tokens,
    )
    microbatches = [
        _microbatch(batch, [sequence for one in trajectories[part] for sequence in one.sequences]) for part in parts
    ]
    _check_division(batch, microbatches)
    return microbatches


def _check_division(batch: TrainingBatch, parts: Sequence[TrainingBatch]) -> None:
    if sum(len(part.segments) for part in parts) != len(batch.segments):
        raise DataError(
            "a segment of this batch belongs to several trajectories or to none, so its tokens would not be trained "
            "exactly once; give each trajectory segments of its own."
        )


def _list_trajectories(batch: TrainingBatch) -> list[_Trajectory]:
    pairs = zip(batch.sequences, sequence_ids(batch), strict=True)
    trajectories = []
    for _, members in groupby(pairs, key=lambda pair: pair[0].trajectory_id):
        sequences, ids = zip(*members, strict=True)
        trajectories.append(_Trajectory(sequences=sequences, ids=tuple(sorted(ids)), num_tokens=count_nodes(ids)))
    return trajectories


def _num_shared(one: _Trajectory, other: _Trajectory) -> int:
    """Return how many tokens the last sequence of one trajectory shares with the first of another. They may share
    more if they have several sequences."""
    return common_prefix(one.ids[-1], other.ids[0])


def _divide(sizes: Sequence[int], shared: Sequence[int], max_tokens: int) -> list[slice]:
    """Divide a row of items into parts of at most `max_tokens` each, at the least cost.

    `shared[i]` is the number of tokens that item i shares with the item before it. They count once if both items are in
    one part, and otherwise twice. An item that exceeds the limit gets its own part.
    """
    costs, begins = [0], [0]
    for end in range(1, len(sizes) + 1):
        best: tuple[int, int] | None = None
        size = 0
        for begin in range(end - 1, -1, -1):
            size += sizes[begin] - (shared[begin + 1] if begin + 1 < end else 0)
            if size > max_tokens and begin < end - 1:
                break
            cost = costs[begin] + size + MICROBATCH_TOKENS
            if best is None or cost < best[0]:
                best = (cost, begin)
        assert best is not None, "each item fits into a part of its own"
        costs.append(best[0])
        begins.append(best[1])
    parts, end = [], len(sizes)
    while end:
        parts.append(slice(begins[end], end))
        end = begins[end]
    return parts[::-1]


def _balance(sizes: Sequence[int], shared: Sequence[int], num_parts: int) -> list[slice]:
    """Divide a row of items into at most `num_parts` parts, so that the size of the largest part is as small as possible.

    `shared` is that of `_divide`.
    """
    low, high = max(sizes, default=0), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(sizes, shared, middle)) <= num_parts else (middle + 1, high)
    return _fill(sizes, shared, high)


def _fill(sizes: Sequence[int], shared: Sequence[int], limit: int) -> list[slice]:
    """Divide a row of items into as few parts of at most `limit` as possible. No item exceeds the limit."""
    parts, begin, size = list[slice](), 0, 0
    for index, own in enumerate(sizes):
        added = own - shared[index] if index > begin else own
        if index > begin and size + added > limit:
            parts.append(slice(begin, index))
            begin, size, added = index, 0, own
        size += added
    return [*parts, slice(begin, len(sizes))] if sizes else []


def _microbatch(batch: TrainingBatch, sequences: Sequence[TrainingSequence]) -> TrainingBatch:
    order = sorted({index for sequence in sequences for index in sequence.segments})
    index_of: dict[int | None, int] = {old: new for new, old in enumerate(order)}
    segments = [replace(batch.segments[old], parent=index_of.get(batch.segments[old].parent)) for old in order]
    renumbered = [
        replace(sequence, segments=tuple(index_of[old] for old in sequence.segments)) for sequence in sequences
    ]
    return TrainingBatch(segments=tuple(segments), sequences=tuple(renumbered))
