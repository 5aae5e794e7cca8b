"""Clients of the gateway's app that are interrupted at a chosen step of the event loop, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from sparring.ledger import Ledger, RolloutState

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
LAST_EVENTS = {
    "chat": b"data: [DONE]\n\n",
    "responses": b"event: response.completed",
    "messages": b"event: message_stop",
}


class StepLoop(asyncio.SelectorEventLoop):
    """Does something before its n-th step. A task takes a step from one suspension to the next, so this is each moment at
    which anything else can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.num_steps = 0
        self.num_left: int | None = None
        self.action: Callable[[], object] = lambda: None

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon(self._step, callback, args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(self._step, callback, args, context=context)

    def _step(self, callback: Any, args: Any) -> None:
        self.num_steps += 1
        if self.num_left is not None:
            self.num_left -= 1
            if self.num_left < 0:
                self.num_left = None
                self.action()
        callback(*args)


class Answer:
    """What a client has of an answer so far."""

    def __init__(self, dialect: str, *, is_stream: bool) -> None:
        self.dialect = dialect
        self._is_stream = is_stream
        self.status = 0
        self.content = b""

    @property
    def is_whole(self) -> bool:
        if self.status != 200 or not self._is_stream:
            return self.status == 200 and self.content.endswith(b"}")
        return LAST_EVENTS[self.dialect] in self.content and self.content.endswith(b"\n\n")

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message, as chat completions spell it."""
        if self._is_stream:
            return self._streamed()
        if not self.is_whole:
            return {"role": "assistant", "content": ""}
        whole = json.loads(self.content)
        match self.dialect:
            case "chat":
                return whole["choices"][0]["message"]
            case "messages":
                return {"role": "assistant", "content": whole["content"][0]["text"]}
            case _:
                return {"role": "assistant", "content": whole["output"][0]["content"][0]["text"]}

    @property
    def text(self) -> str:
        return self.message["content"]

    def _streamed(self) -> dict[str, Any]:
        whole = self.content[: self.content.rfind(b"\n\n") + 1] if self.status == 200 else b""
        lines = [line[6:] for line in whole.decode().splitlines() if line.startswith("data: {")]
        events = [json.loads(line) for line in lines]
        calls: list[Any] = []
        match self.dialect:
            case "chat":
                deltas = [event["choices"][0]["delta"] for event in events if event.get("choices")]
                text = "".join(delta.get("content") or "" for delta in deltas)
                calls = [
                    {key: call[key] for key in ("id", "type", "function")}
                    for delta in deltas
                    for call in delta.get("tool_calls", ())
                ]
            case "messages":
                text = "".join(one["delta"].get("text", "") for one in events if one["type"] == "content_block_delta")
            case _:
                text = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
        return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


class Exchange(Answer):
    """One request. Like a server on a socket, it drops what is sent after the client is gone."""

    def __init__(
        self,
        app: Any,
        dialect: str,
        body: Any,
        key: str,
        *,
        is_retry: bool = False,
        full: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0),
    ) -> None:
        """`full` is awaited before each piece, as by a server whose transport is full."""
        super().__init__(dialect, is_stream=bool(body.get("stream")))
        self._full = full
        self._is_gone = False
        self._left = asyncio.Event()
        self._is_read = False
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-type", b"application/json")]
        headers += [(b"x-stainless-retry-count", b"1")] * is_retry
        self._body = json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": PATHS[dialect],
            "raw_path": PATHS[dialect].encode(),
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message.get("body") != b"":
            await self._full()
        if self._is_gone:
            return
        if message["type"] == "http.response.start":
            assert self.status == 0, "an answer has begun already"
            self.status = message["status"]
        else:
            self.content += message["body"]

    def hang_up(self) -> None:
        self._is_gone = True
        self._left.set()

    def cancel(self) -> None:
        """The server gives the request up, as it does when it stops."""
        self._is_gone = True
        self.task.cancel()


def asked(dialect: str, messages: list[Any], *, stream: bool) -> Any:
    """A request's body."""
    conversation = {"input": messages} if dialect == "responses" else {"messages": messages}
    return {"model": "m", "stream": stream, **({"max_tokens": 100} if dialect == "messages" else {}), **conversation}


async def _three_steps() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def running_ledger(rollout_id: str, wait: Callable[[], Awaitable[object]] = _three_steps) -> Ledger:
    """A ledger in memory in which a rollout is running. A commit takes as long as `wait`."""
    ledger = Ledger()
    ledger.plan_nowait(rollout_id, task_id="t", attempt=0)
    for state in (RolloutState.LEASED, RolloutState.RUNNING):
        ledger.advance_nowait(rollout_id, state)

    async def committed(future: Any) -> None:
        await wait()
        future.result()

    ledger.committed = committed
    return ledger
