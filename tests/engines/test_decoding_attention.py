"""Both kinds of attention for decoding compute the same, and the compiled one reads equal beginnings from one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.engines.decoding_attention import (
    MIN_SHARED,
    BuildAttention,
    build_compiled,
    build_fused,
    choose_attention,
    share_prefixes,
)
from sparring.engines.kv_cache import KVCache, Row
from sparring.models import compiled
from sparring.models.llama import LlamaShape

CPU = torch.device("cpu")


def shape_of(num_kv_heads: int, repeat: int, head_dim: int) -> LlamaShape:
    return LlamaShape(
        num_layers=1,
        hidden_size=num_kv_heads * repeat * head_dim,
        num_heads=num_kv_heads * repeat,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_eps=1e-5,
        vocab_size=100,
    )


def filled_cache(shape: LlamaShape, histories: Sequence[Sequence[int]]) -> tuple[KVCache, list[Row]]:
    """Return a cache whose keys and values depend on the token and its position alone, and one row for each history."""
    cache = KVCache(shape, num_tokens=8192, max_row_tokens=512, dtype=torch.float32, device=CPU)
    per_token = torch.randn(2, 512, 10, shape.num_kv_heads, shape.head_dim, generator=torch.Generator().manual_seed(5))
    rows = []
    for index, history in enumerate(histories):
        row = cache.claim(str(index), [*history, 0], "w", room=20)
        assert row is not None
        row.token_ids = list(history)
        positions = torch.arange(len(history))
        keys, values = per_token[:, positions, torch.tensor(history, dtype=torch.int64)]
        cache.write(0, row.offset + positions, keys, values)
        rows.append(row)
    return cache, sorted(rows, key=lambda row: (row.capacity, row.offset))


def attention_by_definition(
    shape: LlamaShape, cache: KVCache, row: Row, new: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Compute the attention of a row's new tokens in fp64: q, k, v [new, heads, D]."""
    known = slice(row.offset, row.offset + len(row.token_ids))
    repeat = shape.num_heads // shape.num_kv_heads
    outputs = []
    for head in range(shape.num_heads):
        keys = torch.cat((cache.keys_K_S_D[0][head // repeat, known], k[:, head // repeat])).double()
        values = torch.cat((cache.values_K_S_D[0][head // repeat, known], v[:, head // repeat])).double()
        scores = q[:, head].double() @ keys.T / shape.head_dim**0.5
        is_hidden = torch.ones_like(scores, dtype=torch.bool).triu(len(row.token_ids) + 1)
        outputs.append(scores.masked_fill(is_hidden, -torch.inf).softmax(dim=-1) @ values)
    return torch.stack(outputs, dim=1).reshape(new, -1)


def run(
    build: BuildAttention, shape: LlamaShape, cache: KVCache, rows: Sequence[Row], counts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention and the inputs [N, heads, D]: q, then k, then v."""
    heads = shape.num_heads + 2 * shape.num_kv_heads
    inputs = torch.randn(sum(counts), heads, shape.head_dim, generator=torch.Generator().manual_seed(7)) * 2
    q, k, v = inputs.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), dim=1)
    return build(shape, cache, rows, counts)(0, q, k, v), inputs


@pytest.mark.parametrize("build", [build_compiled, build_fused])
@given(
    sizes=st.sampled_from([(1, 1, 8), (3, 3, 64), (2, 4, 16), (1, 7, 64), (2, 2, 6)]),
    beginning=st.sampled_from([0, 5, 40, 130]),
    ends=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 4)), min_size=1, max_size=6),
    num_threads=st.sampled_from([1, 2, 3]),
)
@settings(max_examples=30, deadline=None)
def test_attention_is_the_softmax_over_the_row(
    build: BuildAttention,
    sizes: tuple[int, int, int],
    beginning: int,
    ends: list[tuple[int, int]],
    num_threads: int,
) -> None:
    shape = shape_of(*sizes)
    common = [place % 10 for place in range(beginning)]
    histories = [[*common, *((index + place) % 10 for place in range(size))] for index, (size, _) in enumerate(ends)]
    cache, rows = filled_cache(shape, histories)
    counts = [ends[int(row.session_id)][1] for row in rows]
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "MIN_WORK", 1)
            found, inputs = run(build, shape, cache, rows, counts)
    finally:
        torch.set_num_threads(before)
    q, k, v = inputs.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), dim=1)
    first = 0
    for row, count in zip(rows, counts, strict=True):
        own = slice(first, first + count)
        expected = attention_by_definition(shape, cache, row, count, q[own], k[own], v[own])
        torch.testing.assert_close(found[own].double(), expected, rtol=0, atol=5e-6)
        places = slice(row.offset + len(row.token_ids), row.offset + len(row.token_ids) + count)
        assert torch.equal(cache.keys_K_S_D[0][:, places], k[own].transpose(0, 1))
        assert torch.equal(cache.values_K_S_D[0][:, places], v[own].transpose(0, 1))
        first += count


@pytest.mark.parametrize("num_common", [0, 41, 90])
def test_a_row_gets_the_same_numbers_alone_and_with_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, num_common: int
) -> None:
    monkeypatch.setattr(compiled, "MIN_WORK", 1)
    shape, common = shape_of(3, 3, 64), [place % 7 for place in range(num_common)]
    histories = [[*common, *((index * place) % 10 for place in range(1 + 9 * index))] for index in range(8)]
    cache, rows = filled_cache(shape, histories)
    together, inputs = run(build_compiled, shape, cache, rows, [1] * 8)
    q, k, v = inputs.split((9, 3, 3), dim=1)
    before = torch.get_num_threads()
    for num_threads in (1, 2, 5):
        torch.set_num_threads(num_threads)
        try:
            assert torch.equal(run(build_compiled, shape, cache, rows, [1] * 8)[0], together)
            for index, row in enumerate(rows):
                one = slice(index, index + 1)
                alone = build_compiled(shape, cache, [row], [1])(0, q[one], k[one], v[one])
                assert torch.equal(alone[0], together[index])
        finally:
            torch.set_num_threads(before)


def test_equal_beginnings_are_read_from_one_place() -> None:
    system, task = [1] * 64, [2] * 64
    histories = [[*system, *task, 3], [*system, *task, 4, 5], [*system, 6, 7], [8, 9]]
    cache, rows = filled_cache(shape_of(1, 1, 8), histories)
    parts = {rows[index].session_id: found for index, found in share_prefixes(rows)}
    offsets = {row.session_id: row.offset for row in rows}
    # In order, the rows are 0, 1, 2 and 3: each reads what the row before it has read.
    assert parts == {"0": [], "1": [(0, 128, offsets["0"])], "2": [(0, 64, offsets["0"])], "3": []}
    # The keys of a row's own copy of its beginning are not read.
    own = next(row for row in rows if row.session_id == "1")
    before, _ = run(build_compiled, shape_of(1, 1, 8), cache, rows, [1] * 4)
    cache.keys_K_S_D[0][:, own.offset : own.offset + 128] = 1e3
    after, _ = run(build_compiled, shape_of(1, 1, 8), cache, rows, [1] * 4)
    assert torch.equal(before, after)


def test_short_beginnings_are_not_shared() -> None:
    _, rows = filled_cache(shape_of(1, 1, 8), [[1] * (MIN_SHARED - 1) + [2], [1] * (MIN_SHARED - 1) + [3]])
    assert [found for _, found in share_prefixes(rows)] == [[], []]


def test_a_row_reads_parts_of_several_rows() -> None:
    system, task = [1] * 50, [2] * 50
    histories = [[*system, 0], [*system, *task, 3], [*system, *task, 4]]  # parts are multiples of 4
    _, rows = filled_cache(shape_of(1, 1, 8), histories)
    offsets = {row.session_id: row.offset for row in rows}
    parts = {rows[index].session_id: found for index, found in share_prefixes(rows)}
    assert parts["2"] == [(0, 48, offsets["0"]), (48, 100, offsets["1"] + 48)]


@pytest.mark.parametrize("build", [build_compiled, build_fused])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_not_hidden(build: BuildAttention, value: float) -> None:
    shape = shape_of(1, 2, 8)
    cache, rows = filled_cache(shape, [[1] * 20, [2] * 20])
    inputs = torch.randn(2, 4, 8)
    inputs[0] = value
    found = build(shape, cache, rows, [1, 1])(0, inputs[:, :2], inputs[:, 2:3], inputs[:, 3:])
    assert not found[0].isfinite().any()
    assert found[1].isfinite().all()


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", torch.float32, build_compiled),
        ("cpu", torch.bfloat16, build_fused),
        ("cuda", torch.float32, build_fused),
    ],
)
def test_only_fp32_on_the_cpu_is_compiled(device: str, dtype: torch.dtype, expected: Callable[..., object]) -> None:
    assert choose_attention(torch.device(device), dtype) is expected
