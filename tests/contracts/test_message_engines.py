"""What every engine that answers in messages does: an endpoint, and scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from sparring.chat import ByteTokenizer
from sparring.config.sections import ENGINE_CAPABILITIES
from sparring.engines.openai import OpenAIEngine
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.errors import PolicyTimeout
from sparring.gateway import ModelServer, Version, Versions
from sparring.protocols import MessageEngine
from sparring.types import EngineCapabilities, MessageRequest, SampleRequest, Sampling, StopReason
from tests.gateway.builders import CHAT, USER

SLOW = {"role": "user", "content": "slow"}


@asynccontextmanager
async def endpoint() -> AsyncIterator[MessageEngine]:
    """An OpenAI endpoint: the gateway on a socket, in front of a script that is slow when it is asked to be."""

    def seconds(request: SampleRequest) -> float:
        return 30.0 if "slow" in ByteTokenizer().decode(request.prompt_ids) else 0.0

    policy = ScriptedEngine(lambda _: "it is 4", encode=ByteTokenizer().encode, seconds=seconds)
    async with ModelServer(versions=Versions([Version("m", policy)]), chat=CHAT, sampling=Sampling()) as server:
        engine = OpenAIEngine(server.base_url, "m", max_retries=0)
        yield engine
        await engine.close()


@asynccontextmanager
async def script() -> AsyncIterator[MessageEngine]:
    async def act(messages: Any) -> str:
        await asyncio.sleep(30 if messages[-1] == SLOW else 0)
        return "it is 4"

    yield ScriptedMessages(act, name="act")


ENGINES: Mapping[str, Callable[[], AbstractAsyncContextManager[MessageEngine]]] = {
    "openai": endpoint,
    "scripted": script,
}


@pytest.fixture(params=ENGINES)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[MessageEngine], Awaitable[Any]]], Any]:
    def play(scenario: Callable[[MessageEngine], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            async with ENGINES[request.param]() as engine:
                return await asyncio.wait_for(scenario(engine), 60)

        return asyncio.run(whole())

    return play


def asked(*messages: Any, **changes: Any) -> MessageRequest:
    values = {"session_id": "s", "tools": (), "sampling": Sampling(max_tokens=200), **changes}
    return MessageRequest(messages=messages or (USER,), **values)


def test_an_answer_is_the_assistants_message(run: Any) -> None:
    found = run(lambda engine: engine.answer(asked()))
    assert (found.message["role"], found.message["content"]) == ("assistant", "it is 4")
    assert found.stop_reason is StopReason.STOP


def test_the_pieces_of_an_answer_join_to_it(run: Any) -> None:
    async def scenario(engine: MessageEngine) -> tuple[list[Mapping[str, str]], Any]:
        pieces: list[Mapping[str, str]] = []
        return pieces, await engine.answer(asked(), pieces.append)

    pieces, found = run(scenario)
    assert "".join(piece.get("content", "") for piece in pieces) == found.message["content"]


def test_it_states_that_it_reports_no_tokens(run: Any) -> None:
    async def scenario(engine: MessageEngine) -> tuple[EngineCapabilities, str]:
        return engine.capabilities, engine.fingerprint

    capabilities, fingerprint = run(scenario)
    assert capabilities == EngineCapabilities()
    kind, _, name = fingerprint.partition(":")
    assert name
    assert ENGINE_CAPABILITIES[kind] == capabilities


def test_a_request_that_is_cancelled_is_given_up(run: Any) -> None:
    async def scenario(engine: MessageEngine) -> float:
        turn = asyncio.ensure_future(engine.answer(asked(SLOW)))
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert (await engine.answer(asked())).message["content"] == "it is 4"
        return time.monotonic() - begun

    assert run(scenario) < 15


def test_past_the_deadline_an_endpoint_is_a_timeout_of_the_policy() -> None:
    async def scenario() -> None:
        async with endpoint() as engine:
            with pytest.raises(PolicyTimeout):
                await engine.answer(asked(SLOW, deadline=time.monotonic() + 0.5))

    asyncio.run(scenario())
