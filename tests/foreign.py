"""An expert of pointer chase that reads messages only, and endpoints on loopback that run during a test."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparring.engines.scripted_messages import ScriptedMessages
from sparring.gateway.app import create_app
from sparring.protocols import DeltaCallback
from sparring.serving.record import Recording
from sparring.types import Message, MessageAnswer, MessageRequest, Usage
from sparring.web.listener import Listener

EXPERT = '''
def act(messages):
    """Follow the links as often as the user asks for, then name the key."""
    _, key, hops = next(one["content"] for one in messages if one["role"] == "user").rstrip("?").split()
    results = [one["content"] for one in messages if one["role"] == "tool"]
    here = results[-1] if results else key
    if len(results) == int(hops):
        return f"ans {here}"
    return {"tool_calls": [{"function": {"name": "get", "arguments": {"key": here}}}]}
'''


def act(messages: Sequence[Message]) -> Any:
    scope: dict[str, Any] = {}
    exec(EXPERT, scope)
    return scope["act"](messages)


@contextmanager
def serving(start: Any) -> Iterator[Any]:
    """What the coroutine function `start` gives, on a loop and thread of its own; then what it gives is stopped."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        served = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
        try:
            yield served
        finally:
            asyncio.run_coroutine_threadsafe(served.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class CountingMessages:
    """Implements `protocols.MessageEngine` with a script that reports token counts: one for each byte."""

    def __init__(self, engine: ScriptedMessages) -> None:
        self._engine = engine
        self.capabilities, self.fingerprint = engine.capabilities, engine.fingerprint

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        answer = await self._engine.answer(request, on_delta)
        read, written = (len(json.dumps(one).encode()) for one in (list(request.messages), answer.message))
        return replace(answer, usage=Usage(num_prompt_tokens=read, num_sampled_tokens=written))

    async def close(self) -> None:
        await self._engine.close()


class ExpertEndpoint:
    """The gateway over the expert, on a free port. It reports token counts if `counts`."""

    def __init__(self, folder: Path, *, counts: bool = False) -> None:
        expert = ScriptedMessages(act, name="expert")
        self._recording = Recording(folder, CountingMessages(expert) if counts else expert, model="expert")
        self._listener = Listener(create_app(self._recording), "127.0.0.1", 0)

    async def start(self) -> ExpertEndpoint:
        await self._listener.start()
        self._recording.open()
        return self

    async def stop(self) -> None:
        await self._listener.stop()
        await self._recording.close()

    @property
    def base_url(self) -> str:
        return self._listener.base_url
