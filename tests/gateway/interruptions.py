"""Clients of the gateway's app that are interrupted at a chosen step of the event loop, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
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


class Exchange:
    """One request. Like a server on a socket, it drops what is sent after the client is gone."""

    def __init__(self, app: Any, dialect: str, body: Any, key: str, *, is_retry: bool = False) -> None:
        self._dialect = dialect
        self._is_stream = bool(body.get("stream"))
        self.is_gone = False
        self._left = asyncio.Event()
        self._is_read = False
        self.status = 0
        self.content = b""
        headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-type", b"application/json")]
        headers += [(b"x-stainless-retry-count", b"1")] * is_retry
        self._body = json.dumps(body).encode()
        scope = {
            "type": "http", "method": "POST", "path": PATHS[dialect], "raw_path": PATHS[dialect].encode(), "query_string": b"",
            "headers": headers, "http_version": "1.1", "scheme": "http", "root_path": "",
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)  # a full transport would suspend here
        if self.is_gone:
            return
        if message["type"] == "http.response.start":
            assert self.status == 0, "an answer has begun already"
            self.status = message["status"]
        else:
            self.content += message["body"]

    def hang_up(self) -> None:
        self.is_gone = True
        self._left.set()

    def cancel(self) -> None:
        """The server gives the request up, as it does when it stops."""
        self.is_gone = True
        self.task.cancel()

    @property
    def is_answered(self) -> bool:
        """Whether the client has all of an answer."""
        if self.status != 200 or not self._is_stream:
            return self.status == 200 and self.content != b""
        return LAST_EVENTS[self._dialect] in self.content and self.content.endswith(b"\n\n")

    @property
    def text(self) -> str:
        """What the answer says."""
        if not self._is_stream:
            whole = json.loads(self.content)
            match self._dialect:
                case "chat":
                    return whole["choices"][0]["message"]["content"]
                case "messages":
                    return whole["content"][0]["text"]
                case _:
                    return whole["output"][0]["content"][0]["text"]
        lines = [line[6:] for line in self.content.decode().splitlines() if line.startswith("data: {")]
        events = [json.loads(line) for line in lines]
        match self._dialect:
            case "chat":
                return "".join(
                    event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]
                )
            case "messages":
                return "".join(
                    event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"
                )
            case _:
                return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def asked(dialect: str, messages: list[Any], *, stream: bool) -> Any:
    """A request's body."""
    said = {"input": messages} if dialect == "responses" else {"messages": messages}
    return {"model": "m", "stream": stream, **({"max_tokens": 100} if dialect == "messages" else {}), **said}


def running_ledger(rollout_id: str) -> Ledger:
    """A ledger in memory in which a rollout is running. A commit takes three steps of the event loop."""
    ledger = Ledger()
    ledger.plan_nowait(rollout_id, task_id="t", attempt=0)
    for state in (RolloutState.LEASED, RolloutState.RUNNING):
        ledger.advance_nowait(rollout_id, state)

    async def committed(future: Any) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        future.result()

    ledger.committed = committed
    return ledger
