"""Rows are found again, shared and evicted; what is busy is never touched; the space never leaks."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.engines.kv_cache import KVCache, Row, Space, common_prefix
from sparring.models.llama import LlamaShape

SHAPE = LlamaShape(num_layers=1, hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=4, rms_eps=1e-5, vocab_size=10)


def make(num_tokens: int = 512, max_row_tokens: int = 256) -> KVCache:
    """Capacities 64, 128 and 256 by default, 512 tokens in all."""
    return KVCache(
        SHAPE, num_tokens=num_tokens, max_row_tokens=max_row_tokens, dtype=torch.float32, device=torch.device("cpu")
    )


def feed(cache: KVCache, row: Row, token_ids: list[int]) -> None:
    """What a forward would do: the key of a token is its id."""
    begin = row.offset + len(row.token_ids)
    cache.keys_K_S_D[0][:, begin : begin + len(token_ids)] = torch.tensor(token_ids).float()[None, :, None]
    row.token_ids += token_ids


def keys(cache: KVCache, row: Row) -> list[int]:
    return cache.keys_K_S_D[0][0, row.offset : row.offset + len(row.token_ids), 0].int().tolist()


def claim(cache: KVCache, session_id: str, token_ids: list[int], *, weights: str = "w", room: int = 0) -> Row | None:
    return cache.claim(session_id, token_ids, weights, room=room)


def played(cache: KVCache, session_id: str, token_ids: list[int], *, weights: str = "w") -> Row:
    """A turn that fed all these tokens and ended."""
    row = claim(cache, session_id, token_ids, weights=weights)
    assert row is not None
    feed(cache, row, token_ids[len(row.token_ids) :])
    cache.release(row)
    return row


def test_the_next_turn_of_a_session_finds_its_own_row() -> None:
    cache = make()
    first = played(cache, "a", [1, 2, 3])
    assert claim(cache, "a", [1, 2, 3, 4, 5]) is first
    assert first.token_ids == [1, 2, 3]


def test_memory_is_returned_only_without_rows() -> None:
    cache = make()
    row = played(cache, "a", [1, 2, 3])
    cache.return_memory()
    assert keys(cache, row) == [1, 2, 3]
    cache.drop()
    cache.return_memory()
    assert not cache.keys_K_S_D[0].any()
    assert keys(cache, played(cache, "a", [4, 5])) == [4, 5]


def test_conversations_of_one_session_each_keep_their_row() -> None:
    # As two policies of an episode, with the same weights and nothing in common but how every prompt begins.
    cache = make()
    conversations = {"agent": [0, 1, 2, 3, 4, 5], "critic": [0, 1, 6, 7, 8, 9]}
    rows = {name: played(cache, "a", ids) for name, ids in conversations.items()}
    for turn in range(3):
        for name, ids in conversations.items():
            row = claim(cache, "a", [*ids, turn, turn])
            assert row is rows[name]
            assert (row.token_ids, keys(cache, row)) == (ids, ids)
            cache.release(row)


def test_a_branch_that_shares_most_of_a_row_takes_it_over_and_none_is_left_behind() -> None:
    cache = make()
    row = played(cache, "a", [1, 2, 3, 4])
    assert claim(cache, "a", [1, 2, 9, 9]) is row
    assert (row.token_ids, cache.num_busy) == ([1, 2], 1)


def test_the_last_token_is_always_left_to_compute() -> None:
    cache = make()
    played(cache, "a", [1, 2, 3])
    row = claim(cache, "a", [1, 2, 3])
    assert row is not None
    assert row.token_ids == [1, 2]


def test_a_new_session_copies_the_longest_prefix_and_leaves_the_donor_alone() -> None:
    cache = make()
    played(cache, "a", [1, 2])
    donor = played(cache, "b", [1, 2, 3, 4])
    row = claim(cache, "c", [1, 2, 3, 9, 9])
    assert row is not None
    assert row is not donor
    assert (row.token_ids, keys(cache, row)) == ([1, 2, 3], [1, 2, 3])
    assert keys(cache, donor) == [1, 2, 3, 4]


def test_rows_of_other_weights_are_not_read() -> None:
    cache = make()
    played(cache, "a", [1, 2, 3], weights="old")
    row = claim(cache, "a", [1, 2, 3, 4], weights="new")
    assert row is not None
    assert row.token_ids == []


def test_closed_sessions_go_first_then_the_longest_unused() -> None:
    cache = make(num_tokens=256, max_row_tokens=64)  # four rows of 64
    for session in "abcd":
        played(cache, session, [ord(session), 1])
    cache.close_session("c")
    assert claim(cache, "e", [5, 6]) is not None  # takes the place of c
    assert claim(cache, "f", [7, 8]) is not None  # takes the place of a, used before b and d
    kept = [cache.longest_prefix("?", [ord(session), 1], "w")[1] for session in "abcd"]
    assert kept == [0, 2, 0, 2]


def test_busy_rows_are_never_evicted() -> None:
    cache = make(num_tokens=128, max_row_tokens=64)
    rows = [claim(cache, "a", [1, 2]), claim(cache, "b", [3, 4])]
    assert claim(cache, "c", [5, 6]) is None
    assert rows[0] is not None
    cache.release(rows[0])
    assert claim(cache, "c", [5, 6]) is not None


def test_the_only_idle_row_is_taken_over_with_what_it_shares() -> None:
    cache = make(num_tokens=64, max_row_tokens=64)
    played(cache, "a", [1, 2, 3])
    row = claim(cache, "b", [1, 2, 9])
    assert row is not None
    assert (row.session_id, row.token_ids, keys(cache, row)) == ("b", [1, 2], [1, 2])


@pytest.mark.parametrize("is_high_half", [False, True])
def test_growing_keeps_keys_in_either_half_of_a_block(is_high_half: bool) -> None:
    cache = make(num_tokens=128, max_row_tokens=128)
    low, high = claim(cache, "a", [1, 2]), claim(cache, "b", [3, 4])
    assert low is not None
    assert high is not None
    kept, other = (high, low) if is_high_half else (low, high)
    feed(cache, kept, list(range(60)))
    assert not cache.grow(kept, 65)  # the other half is busy
    cache.release(other)
    assert cache.grow(kept, 65)
    assert (kept.offset, kept.capacity) == (0, 128)
    assert keys(cache, kept) == list(range(60))


def test_a_row_that_moves_elsewhere_takes_its_keys_along() -> None:
    cache = make(num_tokens=512, max_row_tokens=256)
    first, buddy = claim(cache, "a", [1, 2]), claim(cache, "b", [3, 4])
    assert first is not None
    assert buddy is not None
    feed(cache, first, list(range(64)))
    assert cache.grow(first, 65)
    assert first.offset != 0
    assert keys(cache, first) == list(range(64))


def test_dropping_spares_the_named_weights_and_busy_rows() -> None:
    cache = make()
    played(cache, "a", [1, 2], weights="old")
    played(cache, "b", [3, 4], weights="new")
    busy = claim(cache, "c", [5, 6], weights="old")
    cache.drop(besides=frozenset({"new"}))
    assert cache.longest_prefix("?", [1, 2], "old")[1] == 0
    assert cache.longest_prefix("?", [3, 4], "new")[1] == 2
    assert busy is not None
    assert cache.num_busy == 1


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_blocks_never_overlap_and_all_come_back(seed: int) -> None:
    rng = random.Random(seed)
    space = Space(rng.choice([300, 1000, 4096]), largest=rng.choice([64, 100, 200, 257]))
    top = space.capacities[-1]
    held: list[tuple[int, int]] = []
    for _ in range(80):
        if held and rng.random() < 0.45:
            space.give(*held.pop(rng.randrange(len(held))))
        elif held and rng.random() < 0.3:
            offset, capacity = held.pop(rng.randrange(len(held)))
            moved = None if capacity == top else space.double(offset, capacity)
            held.append((offset, capacity) if moved is None else (moved, 2 * capacity))
        else:
            size = rng.randint(1, top)
            block = space.take(size)
            if block is not None:
                assert block[1] >= size
                held.append(block)
        ordered = sorted(held)
        assert all(offset % capacity == 0 for offset, capacity in ordered)
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(ordered))
        assert all(offset + capacity <= space.num_tokens for offset, capacity in ordered)
    for block in held:
        space.give(*block)
    assert [space.take(top) for _ in range(space.num_tokens // top)] == [
        (offset, top) for offset in range(0, space.num_tokens, top)
    ]


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12))
def test_common_prefix_counts_equal_tokens_from_the_start(left: list[int], right: list[int]) -> None:
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert common_prefix(left, right) == expected
