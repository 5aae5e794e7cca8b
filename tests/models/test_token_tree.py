"""A tree has one node for each distinct non-empty prefix, and its paths spell the sequences."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.models.token_tree import TokenTree, common_prefix, count_nodes

# Few ids, so that sequences often begin alike.
SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=7).map(tuple), max_size=9)


def list_prefixes(sequences: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {ids[:end] for ids in sequences for end in range(1, len(ids) + 1)}


@settings(max_examples=300, deadline=None)
@given(SEQUENCES)
def test_each_prefix_is_one_node_and_each_path_spells_its_sequence(sequences: list[tuple[int, ...]]) -> None:
    tree = TokenTree(sequences)
    assert sum(map(len, tree.branches)) == len(list_prefixes(sequences)) == count_nodes(sequences)
    for ids, path in zip(sequences, tree.paths, strict=True):
        assert tuple(token for branch, size in path for token in tree.branches[branch][:size]) == ids
    for index, parts in enumerate(tree.ancestors):
        assert all(branch < index for branch, _ in parts)


def test_a_beginning_of_another_sequence_needs_no_branch() -> None:
    tree = TokenTree([(1, 2), (1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 6)])
    assert tree.branches == [(1, 2, 6), (3, 5), (4,)]
    assert tree.ancestors == [(), ((0, 2),), ((0, 2), (1, 1))]
    assert tree.paths == [((0, 2),), ((0, 2), (1, 1), (2, 1)), ((0, 2), (1, 2)), ((0, 3),)]


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12))
def test_the_common_prefix_ends_where_the_sequences_first_differ(left: list[int], right: list[int]) -> None:
    equal = [one == other for one, other in zip(left, right, strict=False)]
    assert common_prefix(left, right) == sum(accumulate(equal, lambda before, now: before and now))
