"""What a stranger sends is counted before it is parsed, and forgotten after it was refused."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.gateway import EpisodeEndpoints, Gateway
from sparring.gateway import bodies as gateway_bodies
from sparring.gateway.app import create_app
from sparring.gateway.bodies import MOST_KEYS, MOST_VALUES, _ValueCount
from sparring.gateway.dialects.validation import MOST_MESSAGES
from tests.gateway.builders import USER, post_body, session

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(alphabet='ab,[{"\\\n\u00e9', max_size=6),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text('a",\\[', max_size=3), children, max_size=4)
    ),
    max_leaves=20,
)


def brackets_and_commas(value: Any) -> int:
    match value:
        case dict() | list():
            children = list(value.values()) if isinstance(value, dict) else value
            return 1 + max(0, len(children) - 1) + sum(map(brackets_and_commas, children))
    return 0


@given(JSON, st.integers(1, 9), st.booleans())
def test_the_count_is_that_of_brackets_and_commas_outside_of_strings(value: Any, size: int, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    count = _ValueCount()
    for begin in range(0, len(text), size):
        count.add(text[begin : begin + size])
    assert count.num == brackets_and_commas(value)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        ({"messages": [0] * (MOST_VALUES + 1)}, 413, f"more than {MOST_VALUES} values"),
        ({f"key{number}": 1 for number in range(MOST_KEYS + 1)}, 413, f"more than {MOST_KEYS} keys"),
        (
            {"messages": [{"x": {f"k{number}": 1 for number in range(MOST_KEYS + 1)}}]},
            413,
            f"more than {MOST_KEYS} keys",
        ),
        (b'{"model":"m","messages":' + b"[" * 1_000_000, 413, f"more than {MOST_VALUES} values"),
    ],
    ids=["many values", "many keys", "many keys inside", "deep"],
)
def test_large_json_is_refused_before_it_is_validated(path: str, body: Any, status: int, what: str) -> None:
    began = time.process_time()
    answer = post_body(session(["never"]), path, body)
    assert (answer.status_code, what in answer.text) == (status, True)
    assert len(answer.text) < 1000
    # Far more than it takes, and far less than validation would.
    assert time.process_time() - began < 5


def test_more_messages_than_the_limit_are_refused() -> None:
    answer = post_body(
        session(["never"]), "/v1/chat/completions", {"model": "m", "messages": [USER] * (MOST_MESSAGES + 1)}
    )
    assert (answer.status_code, f"at most {MOST_MESSAGES}" in answer.text) == (400, True)


def test_a_list_of_invalid_items_gets_one_error() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}] * 1000}
    answer = post_body(session(["never"]), "/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages.0.content.0.text")


def test_a_large_body_is_read_as_a_small_one_is() -> None:
    long = {"role": "user", "content": "x" * (gateway_bodies.LARGE_BODY_BYTES + 1)}
    refused = post_body(session(["never"]), "/v1/chat/completions", {"model": "m", "messages": [long], "n": "two"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


def test_a_body_that_does_not_arrive_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_bodies, "SECONDS", 0.3)

    async def slow() -> Any:
        for _ in range(20):
            yield b"["
            await asyncio.sleep(0.05)

    async def run() -> httpx.Response:
        async with Gateway() as gateway, session(["never"]) as chat_session:
            entry = gateway.register(chat_session)
            headers = {"x-api-key": entry.api_key, "content-type": "application/json"}
            async with httpx.AsyncClient(headers=headers) as client:
                return await client.post(f"{entry.base_url}/chat/completions", content=slow())

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_timeout")


def test_a_refused_request_leaves_nothing_in_memory() -> None:
    async def run() -> None:
        endpoints = EpisodeEndpoints("policy")
        headers = {"x-api-key": endpoints.register(session(["never"])), "content-type": "application/json"}
        app = create_app(endpoints)
        transport = httpx.ASGITransport(app)
        body = json.dumps({"model": "m", "messages": [[number] for number in range(3_000)]}).encode()
        gc.collect()
        gc.disable()
        try:
            before = sum(type(one) is list for one in gc.get_objects())
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
                for _ in range(3):
                    assert (await client.post("/v1/chat/completions", content=body)).status_code == 400
            assert sum(type(one) is list for one in gc.get_objects()) - before < 3_000
        finally:
            gc.enable()

    asyncio.run(run())


def test_a_retry_count_of_many_digits_is_no_error() -> None:
    endpoints = EpisodeEndpoints("policy")
    headers = {
        "x-api-key": endpoints.register(session(["fine"])),
        "content-type": "application/json",
        "x-stainless-retry-count": "9" * 5_000,
    }

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(endpoints))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            return await client.post("/v1/chat/completions", json={"model": "m", "messages": [USER]})

    assert asyncio.run(run()).status_code == 200
