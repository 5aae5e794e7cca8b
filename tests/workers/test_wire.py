"""What goes through the pipe to a worker comes out as it was."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparring.workers.wire import frame, receive

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
