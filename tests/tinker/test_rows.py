"""A forest becomes rows in which each sampled token is trained exactly once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparring.errors import DataError
from sparring.tinker.rows import divide, expand
from sparring.tinker.service import Row
from sparring.types import TokenSegment, TrainingBatch, TrainingSequence


def segment(parent: int | None, ids: tuple[int, ...], trained: tuple[int, ...]) -> TokenSegment:
    mask = tuple(index in trained for index in range(len(ids)))
    zeros = (0.0,) * len(ids)
    return TokenSegment(
        parent=parent,
        token_ids=ids,
        mask=mask,
        sampled_logprobs=zeros,
        advantages=zeros,
        weights=zeros,
        temperature=1.0,
    )


FORK = TrainingBatch(
    segments=(
        segment(None, (1, 2, 3), (1, 2)),
        segment(0, (4, 5, 6), (1,)),
        segment(0, (7, 8), (0, 1)),
        segment(None, (9, 10), ()),
    ),
    sequences=(
        TrainingSequence(segments=(0, 1), trajectory_id="a"),
        TrainingSequence(segments=(0, 2), trajectory_id="a"),
        TrainingSequence(segments=(3,), trajectory_id="b"),
    ),
)


def test_a_shared_segment_is_trained_in_the_first_of_its_sequences() -> None:
    found = expand(FORK)
    assert found.sequences == ((1, 2, 3, 4, 5), (1, 2, 3, 7, 8))
    assert found.places == ((0, 1, None, 2), (None, None, 3, 4))
    assert found.num_tokens == 8


def test_values_go_to_their_tokens_and_back() -> None:
    found, values = expand(FORK), [0.5, 1.5, 2.5, 3.5, 4.5]
    scattered = found.scatter(values)
    assert scattered == [(0.5, 1.5, 0.0, 2.5), (0.0, 0.0, 3.5, 4.5)]
    assert found.gather(scattered) == values
    assert [sum(row.weights) for row in found.rows()] == [0.0, 0.0]


def test_tokens_that_were_sampled_at_another_temperature_are_refused() -> None:
    warm = replace(FORK, segments=(*FORK.segments[:2], replace(FORK.segments[2], temperature=0.7), FORK.segments[3]))
    with pytest.raises(DataError, match=r"sampled at temperature 0.7, .* set sampling.temperature = 1"):
        expand(warm)
    expand(replace(FORK, segments=(*FORK.segments[:3], replace(FORK.segments[3], temperature=0.7))))


def test_rows_are_divided_by_their_tokens() -> None:
    rows = [Row(token_ids=tuple(range(length + 1))) for length in (3, 4, 9, 1, 1)]
    assert [[row.num_targets for row in part] for part in divide(rows, 7)] == [[3, 4], [9], [1, 1]]
