"""Sends answers, either whole or while they are sampled, and detects clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Send

from sparring.chat.messages import json_bytes
from sparring.errors import SparringError
from sparring.gateway.delivery import Delivery
from sparring.gateway.request import (
    ApiError,
    Asked,
    Begin,
    Dialect,
    End,
    Head,
    Part,
    Reasoning,
    Text,
    ToolCallPart,
    error_of,
)
from sparring.gateway.streaming import VisibleText
from sparring.runtime.logs import get_logger
from sparring.sessions import AnySession
from sparring.types import Turn

_logger = get_logger(__name__)

_LISTEN_AFTER = 1.0
"""The number of seconds of waiting after which the gateway starts to check whether the client disconnects."""


async def _parts(
    asked: Asked, delivery: Delivery, session: AnySession, hanging_up: asyncio.Future[None]
) -> AsyncGenerator[Part, None]:
    """Yield the parts of an answer as it is sampled. An answer that is already sampled is yielded from its first token.
    Raises ClientDisconnect if the client disconnects."""

    def visible_text() -> VisibleText:
        return VisibleText(lambda ids: session.read(ids, asked.tools, asked.stop), session.decode, asked.stop)

    texts = [visible_text() for _ in range(asked.num_answers)]
    begun: set[int] = set()
    reasoned = [""] * asked.num_answers

    def new_parts(index: int, delta: str, *, is_over: bool) -> Iterator[Part]:
        """Yield new text, and before it any new reasoning that precedes it. An endpoint may continue its reasoning
        after its first piece of text."""
        reasoning, before = texts[index].reasoning, reasoned[index]
        if reasoning != before and reasoning.startswith(before) and (delta or is_over):
            reasoned[index] = reasoning
            yield Reasoning(index, reasoning[len(before) :])
        if delta:
            yield Text(index, delta)

    async for bunch in delivery.sampled(hanging_up):
        by_answer: dict[int, list[int]] = {}
        for index, token in bunch:
            by_answer.setdefault(index, []).append(token)
        for index, tokens in by_answer.items():
            if index not in begun:
                begun.add(index)
                yield Begin(index)
            for part in new_parts(index, texts[index].push(tokens), is_over=False):
                yield part
    turns = await delivery.turns(hanging_up)
    if turns is None:
        raise ClientDisconnect
    for index, turn in enumerate(turns):
        if index not in begun:
            yield Begin(index)
        for part in new_parts(index, texts[index].finish(turn.message), is_over=True):
            yield part
        for number, call in enumerate(turn.message.get("tool_calls", ())):
            yield ToolCallPart(index, number, call)
        yield End(index, turn)


async def _events(
    dialect: Dialect, asked: Asked, parts: AsyncGenerator[Part, None], head: Head, sent: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, then call `sent`. After the first event, a failure is sent as an event, because the
    status has already been sent."""
    num_sent = 0
    try:
        async for event in dialect.stream(asked, parts, head):
            yield event
            num_sent += 1
        await sent()
    except ClientDisconnect:
        raise
    except Exception as failure:
        if num_sent == 0:
            raise
        yield dialect.error_event(api_error(failure), num_sent)
    finally:
        await parts.aclose()


async def send_whole(
    dialect: Dialect, asked: Asked, delivery: Delivery, head: Head, request: Request, send: Send
) -> None:
    """Send a whole answer."""
    turns = await _unless_hung_up(request, delivery)
    body = json_bytes(dialect.whole(asked, turns, head))
    headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send(_piece(body))
    await _sent(delivery, request, send)
    await send(_piece(b"", is_last=True))


async def send_stream(
    dialect: Dialect, asked: Asked, delivery: Delivery, session: AnySession, head: Head, request: Request, send: Send
) -> None:
    """Send an answer as it is sampled. Failures that occur before the first event are raised, so that the response gets
    an error status."""
    hanging_up = asyncio.create_task(hung_up(request))
    parts = _parts(asked, delivery, session, hanging_up)
    events = _events(dialect, asked, parts, head, lambda: _sent(delivery, request, send))
    try:
        first = await anext(events)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_piece(first))
        async for event in events:
            await send(_piece(event))
        await send(_piece(b"", is_last=True))
    finally:
        await events.aclose()
        hanging_up.cancel()


def _piece(body: bytes, *, is_last: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": not is_last}


async def _sent(delivery: Delivery, request: Request, send: Send) -> None:
    """Mark a sent answer as received. Raises ClientDisconnect if the client is already gone.

    The check happens before the response ends, because afterwards servers report every client as gone."""
    await send(_piece(b""))  # waits while the transport has a lot of unsent data
    if _has_hung_up(request):
        raise ClientDisconnect
    delivery.arrived()


async def _unless_hung_up(request: Request, delivery: Delivery) -> Sequence[Turn]:
    """Return the delivered turns. Raises ClientDisconnect if the client disconnects. After some time of waiting, it is
    raised immediately on disconnection."""
    # The gateway does not listen from the start: listening needs a task, which is expensive compared with a quick
    # answer.
    turns = await delivery.turns(seconds=_LISTEN_AFTER)
    if turns is None:
        hanging_up = asyncio.create_task(hung_up(request))
        try:
            turns = await delivery.turns(hanging_up)
        finally:
            hanging_up.cancel()
    if turns is None:
        raise ClientDisconnect
    return turns


async def hung_up(request: Request) -> None:
    """Wait until the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _has_hung_up(request: Request) -> bool:
    """Return whether the server knows that the client is gone. The function polls the next message without waiting."""
    asking = request.receive().__await__()
    try:
        next(asking)
    except StopIteration as answer:
        return answer.value["type"] == "http.disconnect"
    finally:
        asking.close()
    return False


def api_error(failure: Exception) -> ApiError:
    """Return the error that a client gets for a failure."""
    if isinstance(failure, ApiError):
        return failure
    if isinstance(failure, SparringError):
        return error_of(failure)
    _logger.error("A request failed through a bug", exc_info=failure)
    return ApiError(
        500, f"The server failed with {type(failure).__name__}. See the server's log.", code="internal_error"
    )
