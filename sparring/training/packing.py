"""Divide a forest into microbatches by their number of distinct tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from sparring.errors import DataError
from sparring.models.token_tree import GrowingTree
from sparring.training.sequences import sequence_ids
from sparring.types import TrainingBatch, TrainingSequence


def pack(batch: TrainingBatch, max_tokens: int) -> list[TrainingBatch]:
    """Return microbatches of at most `max_tokens` distinct tokens.

    Trajectories are not divided, because some losses use all tokens of a trajectory. Their order is kept, so that the
    trajectories of a group, which share a prompt, stay together. Every trained token is in exactly one microbatch. A
    token that two microbatches need as context is computed in both. A trajectory that exceeds `max_tokens` gets its own
    microbatch.

    Raises DataError if a segment belongs to several trajectories or to none, since its tokens would not be trained
    exactly once.
    """
    ids_of = dict(zip(map(id, batch.sequences), sequence_ids(batch), strict=True))
    microbatches: list[TrainingBatch] = []
    chosen: list[TrainingSequence] = []
    tree = GrowingTree()
    for _, members in groupby(batch.sequences, key=lambda sequence: sequence.trajectory_id):
        sequences = list(members)
        for sequence in sequences:
            tree.add(ids_of[id(sequence)])
        if chosen and tree.num_nodes > max_tokens:
            microbatches.append(_microbatch(batch, chosen))
            chosen, tree = [], GrowingTree()
            for sequence in sequences:
                tree.add(ids_of[id(sequence)])
        chosen += sequences
    if chosen:
        microbatches.append(_microbatch(batch, chosen))
    if sum(len(microbatch.segments) for microbatch in microbatches) != len(batch.segments):
        raise DataError(
            "a segment of this batch belongs to several trajectories or to none, so its tokens would not be trained "
            "exactly once; give each trajectory segments of its own."
        )
    return microbatches


def _microbatch(batch: TrainingBatch, sequences: Sequence[TrainingSequence]) -> TrainingBatch:
    order = sorted({index for sequence in sequences for index in sequence.segments})
    index_of: dict[int | None, int] = {old: new for new, old in enumerate(order)}
    segments = [replace(batch.segments[old], parent=index_of.get(batch.segments[old].parent)) for old in order]
    renumbered = [
        replace(sequence, segments=tuple(index_of[old] for old in sequence.segments)) for sequence in sequences
    ]
    return TrainingBatch(segments=tuple(segments), sequences=tuple(renumbered))
