"""What goes through the pipe to a worker comes out as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InfrastructureError
from sparring.workers.wire import decode_result, encode_outcome, frame, prefix_length, receive

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.just("@") | st.integers() | st.tuples(st.integers(), st.text()), inner)
    ),
    max_leaves=12,
)


async def sent(content: bytes) -> Any:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    return await receive(reader)


@given(VALUES)
def test_every_value_arrives_as_it_was_sent(value: Any) -> None:
    # By their text: equality would take 1 for 1.0 and for True, and no NaN for another.
    assert repr(asyncio.run(sent(frame(value)))) == repr(value)


def test_content_that_is_nested_too_deeply_is_invalid() -> None:
    with pytest.raises(ValueError, match="not a value sent by `frame`"):
        asyncio.run(sent(prefix_length(b"[" * 100_000)))


def test_a_frame_above_the_limit_is_refused_before_its_content_is_there() -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(prefix_length(bytes(11))[:8])
        with pytest.raises(ValueError, match="11 bytes is too large; at most 10"):
            await receive(reader, most_bytes=10)

    asyncio.run(asyncio.wait_for(main(), 5))


ERROR: Any = encode_outcome(KeyError("a"))["error"]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"error": None},
        {"error": {}},
        {"error": {**ERROR, "known": "NoSuchError"}},
        {"error": {**ERROR, "known": "dataclass"}},
        {"error": {**ERROR, "known": "ConfigError"}},
        {"error": {**ERROR, "kind": "no such kind"}},
        {"error": {**ERROR, "name": 5}},
        None,
    ],
)
def test_an_outcome_that_was_not_encoded_here_is_an_outage(message: Any) -> None:
    with pytest.raises(InfrastructureError, match="has no value and no error that Sparring knows"):
        decode_result(message)
