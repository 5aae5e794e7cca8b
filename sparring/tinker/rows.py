"""Expand a forest of token segments to the rows that a service trains on, each sampled token in exactly one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparring.errors import DataError
from sparring.tinker.service import Row
from sparring.training.sequences import expand_batch, with_values
from sparring.types import TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The sequences of a batch with trained tokens. Each ends with its last trained token."""

    sequences: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int | None, ...], ...]
    """For each target of each sequence, its index among the trained tokens of the batch in segment order. None for a
    target that is not trained, or that an earlier sequence trains."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the service computes. Tokens that sequences share count once for each of them."""
        return sum(len(sequence) - 1 for sequence in self.sequences)

    def rows(self) -> list[Row]:
        """Return rows whose tokens all have weight 0."""
        return [Row(token_ids=one, weights=(0.0,) * (len(one) - 1)) for one in self.sequences]

    def gather(self, values: Sequence[Sequence[float]]) -> list[float]:
        """Return the values [M] of the trained tokens, in segment order, from one value for each target."""
        found: dict[int, float] = {}
        for places, row in zip(self.places, values, strict=True):
            found |= {place: value for place, value in zip(places, row, strict=True) if place is not None}
        return [found[place] for place in range(len(found))]

    def scatter(self, values: Sequence[float]) -> list[tuple[float, ...]]:
        """Return one value for each target of each sequence from values [M] in segment order. Other targets get 0."""
        return [tuple(0.0 if place is None else values[place] for place in places) for places in self.places]


def expand(batch: TrainingBatch) -> Expansion:
    """Return the rows of a batch. Raises DataError if its tokens were sampled at a temperature other than 1, because a
    service returns log-probabilities at temperature 1."""
    heats = {one.temperature for one in batch.segments if any(one.mask)} - {1.0}
    if heats:
        raise DataError(
            f"this batch was sampled at temperature {min(heats):g}, but a Tinker service computes log-probabilities at "
            "temperature 1 only; set sampling.temperature = 1."
        )
    numbered = expand_batch(with_values(batch, range(batch.num_trained_tokens)))
    sequences: list[tuple[int, ...]] = []
    places: list[tuple[int | None, ...]] = []
    for sequence in numbered.sequences:
        ids: list[int] = []
        own: list[int | None] = []
        for segment in (numbered.segments[index] for index in sequence.segments):
            ids += segment.token_ids
            own += [
                int(value) if is_trained else None
                for value, is_trained in zip(segment.sampled_logprobs, segment.mask, strict=True)
            ]
        end = max((index + 1 for index, place in enumerate(own) if place is not None), default=0)
        if end:
            sequences.append(tuple(ids[:end]))
            places.append(tuple(own[1:end]))
    return Expansion(sequences=tuple(sequences), places=tuple(places))


def divide(rows: Sequence[Row], max_tokens: int) -> Iterable[list[Row]]:
    """Yield rows in order, in parts of at most `max_tokens` tokens. A longer row gets its own part."""
    part: list[Row] = []
    size = 0
    for row in rows:
        if part and size + row.num_targets > max_tokens:
            yield part
            part, size = [], 0
        part.append(row)
        size += row.num_targets
    if part:
        yield part
