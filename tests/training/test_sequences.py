"""Turns become a forest, in which each sampled token of each trajectory is trained once."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparring.algorithms.reductions import REDUCTIONS
from sparring.errors import DataError
from sparring.models.token_tree import count_nodes
from sparring.training import sequences
from sparring.training.packing import pack
from sparring.training.sequences import build_demonstration_batch, expand_batch, sequence_ids
from sparring.types import Outcome, Sampling


def build_batch(groups, advantages, *, reduction="trajectory_mean", **options):
    """`sequences.build_batch` with one advantage a trajectory."""
    spread = {t.id: (advantages[t.id],) * len(t.turns) for g in groups for t in g.trajectories}
    return sequences.build_batch(groups, spread, reduction=REDUCTIONS[reduction], **options)


def masked(batch):
    """Masked (id, log-probability, advantage, weight) of all segments."""
    return [
        row[1:]
        for s in batch.segments
        for row in zip(s.mask, s.token_ids, s.sampled_logprobs, s.advantages, s.weights, strict=True)
        if row[0]
    ]


def num_distinct(batch):
    return count_nodes(sequence_ids(batch))


def shape(batch):
    return [(s.parent, s.token_ids, "".join("01"[m] for m in s.mask)) for s in batch.segments]


def test_turns_that_extend_each_other_are_one_sequence(turn, group):
    turns = [turn(0, None, [1, 2], [3, 4]), turn(1, 0, [1, 2, 3, 4, 5], [6])]
    batch = build_batch([group("t", turns)], {"t-0": 2.0}, reduction="sum")
    assert shape(batch) == [(None, (1, 2, 3, 4, 5, 6), "001101")]
    assert batch.segments[0].advantages == (0.0, 0.0, 2.0, 2.0, 0.0, 2.0)
    assert batch.segments[0].sampled_logprobs == (0.0, 0.0, -1.0, -1.0, 0.0, -1.0)
    assert [(s.segments, s.trajectory_id) for s in batch.sequences] == [((0,), "t-0")]


def test_equal_tokens_of_two_trajectories_are_trained_in_each(turn, group):
    # System prompt 1 2 for all, question 3 for group a and 4 for group b; two members answer alike.
    a = group("a", [turn(0, None, [1, 2, 3], [7])], [turn(0, None, [1, 2, 3], [7])])
    b = group("b", [turn(0, None, [1, 2, 4], [8])])
    batch = build_batch([a, b], {"a-0": 1.0, "a-1": -1.0, "b-0": 1.0}, reduction="sum")
    assert num_distinct(batch) == 6  # 1 2 | 3 7 | 4 8
    assert [row[0] for row in masked(batch)] == [7, 7, 8]
    assert sequence_ids(batch) == [(1, 2, 3, 7), (1, 2, 3, 7), (1, 2, 4, 8)]


def test_branches_share_the_turn_that_they_extend(turn, group):
    # After the answer 2, two branches go on with 5 6, then 7 or 8.
    turns = [
        turn(0, None, [1], [2]),
        turn(1, 0, [1, 2, 5, 6, 7], [10]),
        turn(2, 0, [1, 2, 5, 6, 8], [11]),
    ]
    batch = build_batch([group("t", turns)], {"t-0": 1.0}, reduction="sum")
    assert sorted(sequence_ids(batch)) == [(1, 2, 5, 6, 7, 10), (1, 2, 5, 6, 8, 11)]
    assert num_distinct(batch) == 8  # 1 2 5 6 | 7 10 | 8 11
    assert sorted(row[0] for row in masked(batch)) == [2, 10, 11]


def test_a_second_root_is_a_second_sequence_of_the_same_trajectory(turn, group):
    turns = [turn(0, None, [1, 2], [3]), turn(1, None, [1, 9], [4])]
    batch = build_batch([group("t", turns)], {"t-0": 1.0}, reduction="sum")
    assert [s.trajectory_id for s in batch.sequences] == ["t-0", "t-0"]
    assert sorted(sequence_ids(batch)) == [(1, 2, 3), (1, 9, 4)]
    assert num_distinct(batch) == 5  # the 1 once


def test_a_change_of_temperature_starts_a_segment(turn, group):
    turns = [turn(0, None, [1], [2], temperature=0.5), turn(1, 0, [1, 2, 3], [4], temperature=2.0)]
    batch = build_batch([group("t", turns)], {"t-0": 1.0})
    assert {s.token_ids: s.temperature for s in batch.segments} == {(1, 2): 0.5, (3, 4): 2.0}


def test_reductions_count_trajectories_that_are_left_out(turn, group):
    # Trained tokens 1, 3 and 4; the last has no advantage.
    members = [[turn(0, None, [1], [2] * size)] for size in (1, 3, 4)]
    advantages = {"t-0": 1.0, "t-1": -1.0, "t-2": 0.0}
    weights = {
        reduction: sorted(
            {row[3] for row in masked(build_batch([group("t", *members)], advantages, reduction=reduction))}
        )
        for reduction in ("token_mean", "trajectory_mean", "sum")
    }
    assert weights == {
        "token_mean": pytest.approx([1 / 8]),
        "trajectory_mean": pytest.approx([1 / 9, 1 / 3]),
        "sum": [1.0],
    }


def test_a_trajectory_without_tokens_counts_and_trains_nothing(turn, group):
    batch = build_batch([group("t", [], [turn(0, None, [1], [2])])], {"t-0": -1.0, "t-1": 1.0})
    assert masked(batch) == [(2, -1.0, 1.0, 0.5)]
    assert build_batch([group("t", [], [])], {"t-0": -1.0, "t-1": 1.0}, reduction="token_mean").segments == ()


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([(0, None, [1, 2], [3, 4]), (1, 0, [1, 2, 3, 9, 5], [6])], "token mismatch. Turn 1"),
        ([(0, None, [1, 2], [3]), (1, 7, [1, 2, 3], [6])], "1 turns extend a turn that it does not have"),
        ([(0, None, [], [3])], "turn 0 has no prompt"),
    ],
)
def test_turns_that_do_not_fit_together_are_refused(turn, group, turns, message):
    with pytest.raises(DataError, match=message):
        build_batch([group("t", [turn(*one) for one in turns])], {"t-0": 1.0})


def test_an_infrastructure_failure_is_never_built_into_a_batch(turn, group):
    good = group("t", [turn(0, None, [1], [2])])
    lost = replace(good.trajectories[0], outcome=Outcome.INFRASTRUCTURE_ERROR)
    with pytest.raises(AssertionError):
        build_batch([replace(good, trajectories=(lost,))], {"t-0": 1.0})


def test_demonstrations_end_with_what_is_learned():
    batch = build_demonstration_batch(
        [([1, 2, 3, 4, 5, 6], [False, False, True, False, True, False]), ([1, 2, 9], [False, False, True])]
    )
    assert shape(batch) == [(None, (1, 2, 3, 4, 5), "00101"), (None, (1, 2, 9), "001")]
    assert {row[3] for row in masked(batch)} == {1 / 3}


@pytest.mark.parametrize("mask", [[False, False], [True, False]])
def test_a_demonstration_that_teaches_nothing_or_has_no_prompt_is_refused(mask):
    with pytest.raises(DataError, match="demonstration 0"):
        build_demonstration_batch([([1, 2], mask)])


@st.composite
def played(draw):
    """Turns (id, parent, prompt, answer, temperature) of a random tree over few ids, so that prompts often agree."""
    tokens = st.lists(st.integers(0, 2), max_size=3).map(tuple)
    turns = []
    for id in range(draw(st.integers(1, 5))):
        parent = draw(st.sampled_from([None, *range(id)]))
        before = () if parent is None else turns[parent][2] + turns[parent][3]
        prompt = before + draw(tokens)
        # Engines answer with at least the stop id, but nothing here depends on it.
        turns.append((id, parent, prompt or (0,), draw(tokens), draw(st.sampled_from([1.0, 0.5]))))
    return turns


# The fixtures only build values, so sharing them between examples is harmless.
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=st.lists(played(), min_size=1, max_size=4), budget=st.integers(1, 40))
def test_every_sampled_token_is_trained_once_in_its_context_however_shared_and_packed(turn, group, members, budget):
    made = group("t", *([turn(*one[:4], temperature=one[4]) for one in turns] for turns in members))
    advantages = {f"t-{i}": float(i + 1) for i in range(len(members))}
    batch = build_batch([made], advantages, reduction="sum")

    expected = Counter(
        (prompt + answer[:offset], token, temperature, float(i + 1))
        for i, turns in enumerate(members)
        for _, _, prompt, answer, temperature in turns
        for offset, token in enumerate(answer)
    )
    assert contexts(batch) == expected
    assert contexts(expand_batch(batch)) == expected
    parts = pack(batch, budget)
    assert sum((contexts(part) for part in parts), Counter()) == expected
    assert all(num_distinct(part) <= budget or len({s.trajectory_id for s in part.sequences}) == 1 for part in parts)
    for part in [batch, *parts]:
        assert all(s.parent is None or s.parent < index for index, s in enumerate(part.segments))
        assert all(not s.mask[0] for s in part.segments if s.parent is None)
        assert all(w == 0 for s in part.segments for w, m in zip(s.weights, s.mask, strict=True) if not m)


def contexts(batch):
    """(all tokens before it, id, temperature, advantage) of each masked token."""
    found, before = Counter(), []
    for s in batch.segments:
        path = () if s.parent is None else before[s.parent] + batch.segments[s.parent].token_ids
        before.append(path)
        for offset, (token, m, advantage) in enumerate(zip(s.token_ids, s.mask, s.advantages, strict=True)):
            if m:
                found[path + s.token_ids[:offset], token, s.temperature, advantage] += 1
    return found


def test_packing_keeps_a_group_together_so_that_its_prompt_is_computed_once(turn, group):
    groups = [group(n, *([turn(0, None, [p] * 10, [1, 2])] for _ in range(3))) for n, p in (("a", 5), ("b", 6))]
    batch = build_batch(groups, {f"{n}-{i}": 1.0 for n in "ab" for i in range(3)})
    assert [num_distinct(part) for part in pack(batch, 12)] == [12, 12]
    assert [num_distinct(part) for part in pack(batch, 24)] == [24]
    # A path of 12 does not fit into 5; each goes alone with its prompt.
    assert [num_distinct(part) for part in pack(batch, 5)] == [12] * 6


def test_a_segment_of_two_trajectories_is_refused_where_it_would_be_trained_twice(turn, group):
    batch = build_batch([group("t", *([turn(0, None, [1], [2])] for _ in range(2)))], {"t-0": 1.0, "t-1": 1.0})
    shared = tuple(replace(sequence, segments=(0,)) for sequence in batch.sequences)
    with pytest.raises(DataError, match="belongs to several trajectories"):
        pack(replace(batch, segments=batch.segments[:1], sequences=shared), 1)


def test_turns_that_were_not_drawn_from_the_whole_distribution_are_context_only(turn, group):
    greedy = replace(turn(0, None, [1, 2], [3, 4]), sampling=Sampling(temperature=0.0))
    cut = replace(turn(1, 0, [1, 2, 3, 4, 5], [6]), sampling=Sampling(top_p=0.9))
    drawn = replace(turn(2, 1, [1, 2, 3, 4, 5, 6, 7], [8, 9]), removed_mass=1e-3)
    overruled = replace(turn(3, 2, [1, 2, 3, 4, 5, 6, 7, 8, 9], [10]), removed_mass=1.1e-3)
    batch = sequences.build_batch([group("a", [greedy, cut, drawn, overruled])], {"a-0": (1.0, 1.0, 1.0, 1.0)})
    ids = [token for segment in batch.segments for token in segment.token_ids]
    trained = [m for segment in batch.segments for m in segment.mask]
    assert ids == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [token for token, is_trained in zip(ids, trained, strict=True) if is_trained] == [8, 9]
    # The mean over the trajectory's two trained tokens.
    assert [w for segment in batch.segments for w in segment.weights if w] == [0.5, 0.5]
