"""Divide a forest into microbatches by their number of distinct tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from sparring.training.sequences import build_context_segment
from sparring.types import TrainingBatch, TrainingSequence


def pack(batch: TrainingBatch, max_tokens: int) -> list[TrainingBatch]:
    """Return microbatches of at most `max_tokens` distinct tokens, each with the ancestors that its sequences need.

    Trajectories are not divided, because some losses use all tokens of a trajectory. Their order is kept, so that the
    trajectories of a group, which share a prompt, stay together. Every trained token is in exactly one microbatch. A
    prompt that two microbatches need is computed in both. A trajectory that exceeds `max_tokens` gets its own
    microbatch.
    """
    microbatches: list[TrainingBatch] = []
    owned: set[int] = set()
    """The segments that an earlier microbatch trains. Later microbatches may need them only as context."""
    chosen: list[TrainingSequence] = []
    needed: set[int] = set()
    size = 0
    for _, members in groupby(batch.sequences, key=lambda sequence: sequence.trajectory_id):
        sequences = list(members)
        wanted = dict.fromkeys(index for sequence in sequences for index in sequence.segments)
        new = [index for index in wanted if index not in needed]
        cost = sum(len(batch.segments[index].token_ids) for index in new)
        if chosen and size + cost > max_tokens:
            microbatches.append(_microbatch(batch, chosen, needed, owned))
            chosen, needed, size = [], set(), 0
            new = list(wanted)
            cost = sum(len(batch.segments[index].token_ids) for index in new)
        chosen += sequences
        needed.update(new)
        size += cost
    if chosen:
        microbatches.append(_microbatch(batch, chosen, needed, owned))
    return microbatches


def _microbatch(
    batch: TrainingBatch, sequences: Sequence[TrainingSequence], needed: set[int], owned: set[int]
) -> TrainingBatch:
    order = sorted(needed)
    index_of = {old: new for new, old in enumerate(order)}
    segments = []
    for old in order:
        segment = batch.segments[old]
        parent = None if segment.parent is None else index_of[segment.parent]
        if old in owned:
            segments.append(build_context_segment(segment.token_ids, parent))
        else:
            segments.append(replace(segment, parent=parent))
    owned.update(needed)
    renumbered = [
        replace(sequence, segments=tuple(index_of[old] for old in sequence.segments)) for sequence in sequences
    ]
    return TrainingBatch(segments=tuple(segments), sequences=tuple(renumbered))
