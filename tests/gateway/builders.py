"""Sessions whose policy is a script, and ways to ask them through the gateway."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import httpx
import openai
from hypothesis import strategies as st

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import Answer, ScriptedEngine
from sparring.errors import PolicyTimeout
from sparring.gateway import EpisodeEndpoints, Gateway
from sparring.gateway.app import create_app
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import SampleRequest, Sampling

CHAT = TemplateChat(ByteTokenizer())
USER: Any = {"role": "user", "content": "find b"}
TOOL: Any = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name":"get","arguments":{"key":"b"}}</tool_call>'


def session(script: Callable[[SampleRequest], Answer] | Sequence[Answer], **options: Any) -> Session:
    engine = ScriptedEngine(script, encode=ByteTokenizer().encode, **options)
    return Session(EpisodeIdentity("episode"), engine=engine, chat=CHAT, sampling=Sampling(max_tokens=200))


class _BreaksOff:
    """An engine that fails after its second token."""

    def __init__(self) -> None:
        self._engine = ScriptedEngine(["ab"], encode=ByteTokenizer().encode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sample(self, request: SampleRequest, on_token: Any = None) -> Any:
        await self._engine.sample(request, on_token)
        raise PolicyTimeout("the policy took too long")


def breaking_off_session() -> Session:
    """A session whose first turn fails after two tokens."""
    return Session(EpisodeIdentity("episode"), engine=_BreaksOff(), chat=CHAT, sampling=Sampling())


def through_gateway(chat_session: Session, play: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    """Play with the stock client against a real server on a free port."""

    async def run() -> Any:
        async with Gateway() as gateway, chat_session:
            entry = gateway.register(chat_session)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=10) as client:
                return await play(client)

    return asyncio.run(run())


def raw(app: Any, method: str, path: str, **options: Any) -> httpx.Response:
    """Send a request to an app, with a body of JSON unless the headers say otherwise, and return the response."""
    if "content" in options:
        options["headers"] = {"content-type": "application/json", **options.get("headers", {})}

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


def post_body(chat_session: Session, path: str, body: Any) -> httpx.Response:
    """Post a body, or bytes as they are, with the key of an endpoint, and return the response."""
    endpoints = EpisodeEndpoints("policy")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"x-api-key": endpoints.register(chat_session)}
    return raw(create_app(endpoints), "POST", path, content=content, headers=headers)


def anything() -> st.SearchStrategy[Any]:
    """Any JSON value."""
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    texts = st.text(max_size=20) | st.sampled_from(["text", "user", "assistant", "message", "\ud800"])
    return st.recursive(
        st.none() | st.booleans() | numbers | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=6,
    )


def replaced(body: Any) -> st.SearchStrategy[Any]:
    """A body with another value, or none, in one or two of its places, however deep."""

    def put(body: Any, place: tuple[Any, ...], value: Any) -> Any:
        if not place:
            return value
        is_there = isinstance(body, dict) or (
            isinstance(body, list) and isinstance(place[0], int) and place[0] < len(body)
        )
        if not is_there:
            return body
        copied = body.copy()
        copied[place[0]] = put(body[place[0]] if isinstance(body, list) else body.get(place[0]), place[1:], value)
        return copied

    one = st.tuples(st.sampled_from(list(_places(body))), anything())
    return st.lists(one, min_size=1, max_size=2).map(
        lambda changes: functools.reduce(lambda changed, change: put(changed, *change), changes, body)
    )


def _places(body: Any) -> Iterator[tuple[Any, ...]]:
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, child in items:
        yield (key,)
        yield from ((key, *place) for place in _places(child))
