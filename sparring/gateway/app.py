"""The HTTP application: routes, keys, body limits, streaming; every failure is an OpenAI error object."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sparring.errors import SparringError
from sparring.gateway import wire
from sparring.gateway.doors import Doors
from sparring.gateway.streaming import VisibleText
from sparring.gateway.wire import ApiError, ChatRequest
from sparring.protocols import Chat
from sparring.sessions import Session
from sparring.types import Sampling, Turn

_logger = logging.getLogger(__name__)


def create_app(
    doors: Doors, *, max_body_bytes: int = 8 * 1024 * 1024, clock: Callable[[], float] = time.time
) -> Starlette:
    """`/v1/chat/completions`, `/v1/models` and `/health` over `doors`; `clock` gives seconds since 1970."""

    async def chat_completions(request: Request) -> ASGIApp:
        api_key = _bearer(request)
        doors.check(api_key)
        asked = wire.parse_request(await _json_body(request, max_body_bytes))
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(doors.enter(api_key, asked))
            answer = _Answer(session, asked, created=int(clock()))
            if not asked.stream:
                return JSONResponse(await answer.whole(request))
            events = answer.events()
            # The first event is awaited here, so that a request which fails before it gets a status of its own.
            first = await anext(events)
            stack.push_async_callback(events.aclose)
            response = StreamingResponse(_stream(first, events), media_type="text/event-stream")
            return _Held(response, stack.pop_all())

    async def models(request: Request) -> Response:
        doors.check(_bearer(request))
        model = {"id": doors.model_name, "object": "model", "created": 0, "owned_by": "sparring"}
        return JSONResponse({"object": "list", "data": [model]})

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", _answered(chat_completions), methods=["POST"]),
            Route("/v1/models", _answered(models), methods=["GET"]),
            Route("/health", _answered(health), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _unknown_route},
    )


class _Answer:
    """One request being played in its session."""

    def __init__(self, session: Session, asked: ChatRequest, *, created: int) -> None:
        self._session = session
        self._asked = asked
        self._created = created

    async def whole(self, request: Request) -> dict[str, object]:
        """The completion; a client that hangs up cancels the turn. Raises ClientDisconnect, SparringError."""
        playing = asyncio.create_task(self._play(None))
        hanging_up = asyncio.create_task(_hung_up(request))
        try:
            await asyncio.wait({playing, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                raise ClientDisconnect
            turn = playing.result()
        finally:
            await _cancelled(playing, hanging_up)
        return wire.completion(turn, id=self._id(turn.id), model=self._asked.model, created=self._created)

    async def events(self) -> AsyncGenerator[dict[str, object], None]:
        """The chunks of a stream as tokens are sampled; closing it early cancels the turn. Raises SparringError."""
        loop = asyncio.get_running_loop()
        sampled: asyncio.Queue[int | None] = asyncio.Queue()
        # Engines may report tokens from a thread of theirs.
        playing = asyncio.create_task(self._play(lambda token: _call_soon(loop, sampled, token)))
        playing.add_done_callback(lambda _: sampled.put_nowait(None))
        about = {"id": self._id(len(self._session.turns)), "model": self._asked.model, "created": self._created}
        text = VisibleText(lambda ids: self._chat.parse(ids, self._asked.plain_tools))
        is_first = True
        try:
            while (token_ids := await _drained(sampled)) is not None:
                if is_first:
                    yield wire.chunk({"role": "assistant", "content": ""}, **about)
                    is_first = False
                if delta := text.push(token_ids):
                    yield wire.chunk({"content": delta}, **about)
            turn = playing.result()
            if is_first:
                yield wire.chunk({"role": "assistant", "content": ""}, **about)
            if delta := text.finish(turn.message):
                yield wire.chunk({"content": delta}, **about)
            if reasoning := turn.message.get("reasoning_content"):
                yield wire.chunk({"reasoning_content": reasoning}, **about)
            for index, call in enumerate(turn.message.get("tool_calls", ())):
                yield wire.chunk({"tool_calls": [{"index": index, **call}]}, **about)
            yield wire.chunk({}, **about, finish=wire.finish_reason(turn))
            if self._asked.wants_usage_chunk:
                yield wire.chunk(None, **about, usage=wire.usage(turn))
        finally:
            await _cancelled(playing)

    async def _play(self, on_token: Callable[[int], None] | None) -> Turn:
        return await self._session.play(
            self._asked.plain_messages, self._asked.plain_tools, sampling=self._sampling(), on_token=on_token
        )

    def _sampling(self) -> Sampling:
        """What the client asked for; of tokens never more than the session allows."""
        asked, own = self._asked, self._session.sampling
        return replace(
            own,
            temperature=own.temperature if asked.temperature is None else asked.temperature,
            top_p=own.top_p if asked.top_p is None else asked.top_p,
            max_tokens=min(own.max_tokens, asked.wanted_tokens or own.max_tokens),
        )

    @property
    def _chat(self) -> Chat:
        return self._session.format

    def _id(self, turn_id: int) -> str:
        return f"chatcmpl-{self._session.id}-{turn_id}"


def _answered(endpoint: Callable[[Request], Awaitable[ASGIApp]]) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Tell every failure as an error object; clients are asked not to repeat a turn that failed."""

    async def answer(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as failure:  # noqa: BLE001 (the boundary: a bug must not show its traceback to a client)
            error = _api_error(failure)
            return JSONResponse(error.body, status_code=error.status, headers={"x-should-retry": "false"})

    return answer


def _api_error(failure: Exception) -> ApiError:
    if isinstance(failure, ApiError):
        return failure
    if isinstance(failure, SparringError):
        return wire.error_of(failure)
    _logger.error("A request failed through a bug", exc_info=failure)
    return ApiError(500, f"The server failed: {type(failure).__name__}. See its log.", code="internal_error")


async def _unknown_route(_request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    error = ApiError(failure.status_code, f"{failure.detail}: use /v1/chat/completions, /v1/models or /health.")
    return JSONResponse(error.body, status_code=failure.status_code, headers=failure.headers)


def _bearer(request: Request) -> str:
    scheme, _, api_key = request.headers.get("authorization", "").partition(" ")
    return api_key.strip() if scheme.lower() == "bearer" else ""


async def _json_body(request: Request, max_bytes: int) -> object:
    body = bytearray()
    async for part in request.stream():
        body.extend(part)
        if len(body) > max_bytes:
            raise ApiError(
                413, f"The body is larger than {max_bytes} bytes; shorten the messages.", code="body_too_large"
            )
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is no JSON: {error}.", code="invalid_json") from error


class _Held:
    """A response that keeps resources until it is sent, or the client hangs up, were it before the first byte."""

    def __init__(self, response: Response, resources: AsyncExitStack) -> None:
        self._response = response
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._resources:
            await self._response(scope, receive, send)


async def _stream(first: dict[str, object], events: AsyncIterator[dict[str, object]]) -> AsyncIterator[bytes]:
    """Server-sent events; a failure after the first is told as an event, since the status is sent already."""
    yield _event(first)
    try:
        async for event in events:
            yield _event(event)
    except Exception as failure:  # noqa: BLE001 (the boundary, as in _answered)
        yield _event(_api_error(failure).body)
        return
    yield b"data: [DONE]\n\n"


def _event(content: Mapping[str, object]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


def _call_soon(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[int | None], token: int) -> None:
    loop.call_soon_threadsafe(queue.put_nowait, token)


async def _drained(queue: asyncio.Queue[int | None]) -> list[int] | None:
    """All that is queued, at least one; None at the end. Tokens that come faster than we parse share a chunk."""
    first = await queue.get()
    if first is None:
        return None
    token_ids = [first]
    while not queue.empty():
        token = queue.get_nowait()
        if token is None:
            queue.put_nowait(None)
            break
        token_ids.append(token)
    return token_ids


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
