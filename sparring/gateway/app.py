"""The HTTP application: routes, keys, body limits, streaming; every failure is an error object of the dialect."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol, TypeAlias

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparring.chat.messages import depth, json_bytes, read_json
from sparring.errors import SparringError
from sparring.gateway.delivery import Delivery
from sparring.gateway.dialects import DIALECTS, ChatCompletions
from sparring.gateway.dialects.validation import validated
from sparring.gateway.doors import Doors
from sparring.gateway.episode import body_digest
from sparring.gateway.openapi import openapi
from sparring.gateway.queue import Poll, Release, WorkQueue
from sparring.gateway.refusals import UNKNOWN_ROUTE, is_refusal, reason_of
from sparring.gateway.request import ApiError, Asked, Begin, Call, Dialect, End, Head, Part, Reasoning, Text, error_of
from sparring.gateway.runtime import REPORTS, SAMPLES, AwsError, ReportRoute, trajectory_id
from sparring.gateway.streaming import VisibleText
from sparring.logs import get_logger
from sparring.sessions import AnySession
from sparring.sessions.refusals import MOST_REASONS
from sparring.types import Json, Turn

_logger = get_logger(__name__)

_MEDIA_TYPES = ("application/json", "application/octet-stream")
"""Of bodies; the second is how AWS's clients name a body that is passed through. What a page in a browser may send to any
server without asking it, such as text/plain, is not among them."""

_LISTEN_AFTER = 1.0
"""Seconds after which a client that waits for an answer is listened to, in case that it hangs up."""

Endpoint: TypeAlias = Callable[[Request, Send], Awaitable[Response | None]]
"""Gives the response to a request, or None when it has sent one itself."""


def create_app(
    doors: Doors,
    *,
    queue: WorkQueue | None = None,
    max_body_bytes: int = 8 * 1024 * 1024,
    clock: Callable[[], float] = time.time,
) -> ASGIApp:
    """The dialects' routes, MTRL's, reports, `/v1/models` and `/health` over `doors`; `clock`: seconds since 1970.

    The same routes stand under `/s/KEY`, for clients that cannot send a key of their own. With a `queue` workers poll for
    episodes at `/v1/queue`.
    """

    clients: set[str] = set()
    logged: set[str] = set()
    """Reasons of refusals, and fields that are not read."""

    def log_once(reason: str, message: str, *values: object) -> None:
        if reason not in logged and len(logged) < MOST_REASONS:
            logged.add(reason)
            _logger.warning(message, *values)

    def note(path: str, api_key: str, error: ApiError) -> None:
        """Count and log a request that is refused."""
        if is_refusal(error):
            path, reason = path.replace(api_key or "\0", "KEY"), reason_of(error)
            log_once(reason, "%s refused a request with %d (%s): %s", path, error.status, reason, error)
            doors.note_refusal(api_key, error)

    @contextmanager
    def noted(request: Request, api_key: str) -> Iterator[None]:
        """Notes a request that is refused, and lets the refusal pass."""
        try:
            yield
        except ApiError as error:
            note(request.scope["path"], api_key, error)
            raise

    def note_unknown(request: Request, error: ApiError) -> None:
        """Note a request for a route that there is not, if it shows a key."""
        path = request.scope["path"]
        api_key = _shown_key(path.split("/")[2] if path.startswith("/s/") else "", _headers(request))
        with suppress(ApiError):
            doors.check(api_key)
            note(path, api_key, error)

    def played(dialect: Dialect, told: Callable[[ApiError], ApiError] = _as_it_is) -> ASGIApp:
        async def play(request: Request, send: Send) -> Response | None:
            headers = _headers(request)
            api_key = _opening_key(request, headers, doors)
            is_retry = _number(headers.get("x-stainless-retry-count")) > 0
            try:
                admitted = doors.admitted(api_key)
            except ApiError:
                # Another try of a request is not counted anew: of what it is a retry has not changed.
                if not is_retry:
                    doors.refused(api_key, await _digest(request))
                raise
            with admitted, noted(request, api_key):
                body = await _body(request, max_body_bytes)
                asked = dialect.read(_decoded(body))
                if named := request.path_params.get("key") or trajectory_id(headers):
                    asked = replace(asked, episode=named)
                async with doors.enter(api_key, asked) as episode:
                    episode.session.refusals.leave_unread(asked.not_read)
                    for field in asked.not_read:
                        log_once(
                            field,
                            "%s accepts requests with the field %s, which is not read",
                            request.scope["path"],
                            field,
                        )
                    digested = request.scope["path"].encode() + body
                    delivery = episode.deliver(
                        asked, digested, prefix=dialect.id_prefix, is_retry=is_retry, client=_client(headers, clients)
                    )
                    head = Head(id=delivery.id, model=asked.model, created=int(clock()))
                    async with delivery:
                        if asked.stream:
                            await _send_stream(dialect, asked, delivery, episode.session, head, request, send)
                        else:
                            await _send_whole(dialect, asked, delivery, head, request, send)
                return None

        return _Answered(play, dialect, told)

    def reported(route: ReportRoute) -> ASGIApp:
        async def report(request: Request, _send: Send) -> Response:
            said = route.read(_decoded(await _body(request, max_body_bytes)), request.headers)
            said.tell(doors.report(route.key(said) or _opening_key(request, _headers(request), doors)))
            return JSONResponse({})

        return _Answered(report, route, route.told)

    def queued(answer: Callable[[Request, WorkQueue], Awaitable[Response]], queue: WorkQueue) -> ASGIApp:
        async def checked(request: Request, _send: Send) -> Response:
            queue.check(_bearer(_headers(request)))
            return await answer(request, queue)

        return _Answered(checked, ChatCompletions())

    async def lease(request: Request, queue: WorkQueue) -> Response:
        poll = validated(_decoded(await _body(request, max_body_bytes) or b"{}"), Poll, only={}, inert=())
        asking = asyncio.ensure_future(
            queue.lease(poll.wait_seconds, poll.endpoint or str(request.base_url).rstrip("/"))
        )
        hanging_up = asyncio.ensure_future(_hung_up(request))
        try:
            # A worker that is gone must not be handed an episode.
            await asyncio.wait({asking, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ClientDisconnect
            return Response(status_code=204) if asking.result() is None else JSONResponse(asking.result())
        finally:
            for waiting in (asking, hanging_up):
                waiting.cancel()
            await asyncio.gather(asking, hanging_up, return_exceptions=True)

    async def renew(request: Request, queue: WorkQueue) -> Response:
        queue.renew(request.path_params["lease"])
        return JSONResponse({"lease_seconds": queue.lease_seconds})

    async def release(request: Request, queue: WorkQueue) -> Response:
        said = validated(_decoded(await _body(request, max_body_bytes) or b"{}"), Release, only={}, inert=())
        queue.release(request.path_params["lease"], said.error)
        return JSONResponse({})

    async def models(request: Request, _send: Send) -> Response:
        _opening_key(request, _headers(request), doors)
        model = {"id": doors.model_name, "object": "model", "created": 0, "owned_by": "sparring"}
        return JSONResponse({"object": "list", "data": [model]})

    async def document(_request: Request, _send: Send) -> Response:
        return JSONResponse(openapi(takes_seed=doors.takes_seed, has_queue=queue is not None))

    async def health(_request: Request, _send: Send) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [
        *(Route(path, played(dialect), methods=["POST"]) for path, dialect in DIALECTS.items()),
        # Agents that take MTRL's endpoint for the base URL of an OpenAI client ask here.
        Route("/chat/completions", played(ChatCompletions()), methods=["POST"]),
        *(Route(path, played(dialect, AwsError), methods=["POST"]) for path, dialect in SAMPLES.items()),
        *(Route(path, reported(route), methods=["POST"]) for path, route in REPORTS.items()),
        Route("/v1/models", _Answered(models, ChatCompletions()), methods=["GET"]),
        Route("/openapi.json", _Answered(document, ChatCompletions()), methods=["GET"]),
        Route("/health", _Answered(health, ChatCompletions()), methods=["GET"]),
    ]
    work = {"lease": lease, "{lease}/renew": renew, "{lease}/release": release}
    polled = [
        Route(f"/v1/queue/{path}", queued(answer, queue), methods=["POST"])
        for path, answer in work.items()
        if queue is not None
    ]
    return _Routed([*routes, *polled, Mount("/s/{key}", routes=routes)], note_unknown)


async def _parts(
    asked: Asked, delivery: Delivery, session: AnySession, hanging_up: asyncio.Future[None]
) -> AsyncGenerator[Part, None]:
    """An answer as it is sampled; played again from its first token where it was sampled before. Raises ClientDisconnect
    when the client hangs up."""

    def visible_text() -> VisibleText:
        return VisibleText(lambda ids: session.read(ids, asked.tools, asked.stop), session.decode, asked.stop)

    texts = [visible_text() for _ in range(asked.num_answers)]
    begun: set[int] = set()
    reasoned = [""] * asked.num_answers

    def told(index: int, delta: str, *, is_over: bool) -> Iterator[Part]:
        """More of the text, after the reasoning that it follows from. An endpoint may reason on after its first text."""
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
            for part in told(index, texts[index].push(tokens), is_over=False):
                yield part
    turns = await delivery.turns(hanging_up)
    if turns is None:
        raise ClientDisconnect
    for index, turn in enumerate(turns):
        if index not in begun:
            yield Begin(index)
        for part in told(index, texts[index].finish(turn.message), is_over=True):
            yield part
        for number, call in enumerate(turn.message.get("tool_calls", ())):
            yield Call(index, number, call)
        yield End(index, turn)


async def _events(
    dialect: Dialect, asked: Asked, parts: AsyncGenerator[Part, None], head: Head, sent: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream, and then `sent`; a failure after the first is an event too, since the status is sent already."""
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
        yield dialect.error_event(_api_error(failure), num_sent)
    finally:
        await parts.aclose()


class _TellsErrors(Protocol):
    def error(self, error: ApiError) -> Mapping[str, Json]:
        """The body of an answer."""
        ...


def _as_it_is(error: ApiError) -> ApiError:
    return error


class _Answered:
    """An endpoint as an ASGI app that tells every failure as an error object; `told` turns it into what the API has for
    it."""

    def __init__(
        self, endpoint: Endpoint, dialect: _TellsErrors, told: Callable[[ApiError], ApiError] = _as_it_is
    ) -> None:
        self._endpoint, self._dialect, self._told = endpoint, dialect, told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._endpoint(Request(scope, receive, send), send)
        except ClientDisconnect:
            return
        except Exception as failure:  # noqa: BLE001 (the boundary: a bug must not show its traceback to a client)
            error = self._told(_api_error(failure))
            answer = JSONResponse(self._dialect.error(error), status_code=error.status, headers=error.headers)
        if answer is not None:
            await answer(scope, receive, send)


class _Routed:
    """Starlette's router, which tells unknown paths and methods as error objects too. Starlette's application would put
    three layers around every request for that, a tenth of the time of one."""

    def __init__(self, routes: Sequence[BaseRoute], note: Callable[[Request, ApiError], None]) -> None:
        """`note` is called with each unknown path or method."""
        self._router, self._note = Router(routes), note

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return self._router.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # without it the router would answer by itself, in plain text
        try:
            await self._router(scope, receive, send)
        except HTTPException as failure:
            request = Request(scope)
            error = _unknown_route(request, failure)
            self._note(request, error)
            await _unknown_answer(request, failure, error)(scope, receive, send)


def _api_error(failure: Exception) -> ApiError:
    if isinstance(failure, ApiError):
        return failure
    if isinstance(failure, SparringError):
        return error_of(failure)
    _logger.error("A request failed through a bug", exc_info=failure)
    return ApiError(500, f"The server failed: {type(failure).__name__}. See its log.", code="internal_error")


def _unknown_route(request: Request, failure: HTTPException) -> ApiError:
    message = f"{failure.detail}: use {', '.join(DIALECTS)}, /v1/models or /health; /openapi.json has them all."
    # Ids in a path would make each request a reason of its own.
    parts = _route(request).strip("/").split("/")
    route = ["ID" if len(part) >= 12 and re.search(r"\d", part) else part for part in parts]
    return ApiError(failure.status_code, message, code=UNKNOWN_ROUTE, given="/".join(route), is_type=True)


def _route(request: Request) -> str:
    """The path without the key that it may begin with."""
    path = request.url.path
    return path if not path.startswith("/s/") else f"/{path.split('/', 3)[-1]}"


def _unknown_answer(request: Request, failure: HTTPException, error: ApiError) -> Response:
    path = _route(request)
    dialect = {**DIALECTS, **SAMPLES, **REPORTS}.get(path, ChatCompletions())
    told = AwsError(error) if path in SAMPLES else REPORTS[path].told(error) if path in REPORTS else error
    headers = {**told.headers, **(failure.headers or {})}
    return JSONResponse(dialect.error(told), status_code=failure.status_code, headers=headers)


def _opening_key(request: Request, headers: Mapping[str, str], doors: Doors) -> str:
    """The key that a request shows: in the path, as MTRL's trajectory, as bearer, in Anthropic's header.

    Many clients must send some bearer, so that counts last but one. Raises ApiError 401.
    """
    api_key = _shown_key(request.path_params.get("key", ""), headers)
    doors.check(api_key)
    return api_key


def _shown_key(in_path: str, headers: Mapping[str, str]) -> str:
    shown = [in_path, trajectory_id(headers), _bearer(headers), headers.get("x-api-key", "")]
    return next(filter(None, shown), "")


def _headers(request: Request) -> dict[str, str]:
    """Each header's first value; Starlette's own mapping looks through all of them at each question."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(request.scope["headers"])}


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else ""


_MOST_CLIENTS = 16
"""Names of clients that a gateway counts one by one."""


def _client(headers: Mapping[str, str], known: set[str]) -> str:
    """The program that asks, by the beginning of its User-Agent: `asyncopenai-python` of `AsyncOpenAI/Python 2.1`."""
    product = re.match(r"([\w.-]+)(?:/([a-z]+))?", headers.get("user-agent", "").lower(), re.ASCII)
    name = "-".join(filter(None, product.groups()))[:32] if product else "unnamed"
    if name not in known and len(known) >= _MOST_CLIENTS:
        return "other"
    known.add(name)
    return name


async def _digest(request: Request) -> bytes:
    """Of a body that is read and not kept."""
    digest = body_digest(request.scope["path"].encode())
    async for part in request.stream():
        digest.update(part)
    return digest.digest()


async def _body(request: Request, max_bytes: int) -> bytes:
    media_type = request.headers.get("content-type", _MEDIA_TYPES[0]).partition(";")[0].strip().lower()
    if media_type not in _MEDIA_TYPES:
        raise ApiError(
            415, f"content-type: {media_type[:80]!r} is not read here; send application/json.",
            code="unsupported_media_type", param="content-type", given=media_type,
        )  # fmt: skip
    body = bytearray()
    async for part in request.stream():
        body.extend(part)
        if len(body) > max_bytes:
            raise ApiError(
                413, f"The body is larger than {max_bytes} bytes; shorten the messages.", code="body_too_large"
            )
    return bytes(body)


def _decoded(body: bytes) -> Json:
    """What a body says. Raises ApiError 400 also for JSON that could not be worked with, or not be sent back in an
    answer or an error: nested too deeply, half a character, a number beyond all floats."""
    try:
        decoded = read_json(body)
    except ValueError as error:
        raise ApiError(400, f"The body is no JSON: {error}.", code="invalid_json") from error
    if body.count(b"[") + body.count(b"{") > _MAX_LEVELS:
        try:
            orjson.dumps(decoded)
        except orjson.JSONEncodeError as error:  # it reads 1024 levels and writes 254, and no integer beyond 64 bits
            if depth(decoded) > _MAX_LEVELS:
                raise ApiError(
                    400, f"The body is nested deeper than {_MAX_LEVELS} levels; flatten it.", code="invalid_json"
                ) from error
    return decoded


_MAX_LEVELS = 254


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


async def _send_whole(
    dialect: Dialect, asked: Asked, delivery: Delivery, head: Head, request: Request, send: Send
) -> None:
    """Send an answer in one piece."""
    turns = await _unless_hung_up(request, delivery)
    body = json_bytes(dialect.whole(asked, turns, head))
    headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send(_piece(body))
    await _sent(delivery, request, send)
    await send(_piece(b"", is_last=True))


async def _send_stream(
    dialect: Dialect, asked: Asked, delivery: Delivery, session: AnySession, head: Head, request: Request, send: Send
) -> None:
    """Send an answer as it is sampled. Raises what befalls it before its first event, so that it gets a status."""
    hanging_up = asyncio.create_task(_hung_up(request))
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
    """All that a client is to get was sent: it has arrived unless the client is gone by now, which raises ClientDisconnect.

    It is asked before the response ends, after which servers say of every client that it is gone."""
    await send(_piece(b""))  # waits while much of what was sent before lies in the transport
    if _has_hung_up(request):
        raise ClientDisconnect
    delivery.arrived()


async def _unless_hung_up(request: Request, delivery: Delivery) -> Sequence[Turn]:
    """The turns that are delivered. Raises ClientDisconnect when the client hangs up, at once if it has waited a while."""
    # Not from the start: listening takes a task, which is much beside an answer that comes soon.
    turns = await delivery.turns(seconds=_LISTEN_AFTER)
    if turns is None:
        hanging_up = asyncio.create_task(_hung_up(request))
        try:
            turns = await delivery.turns(hanging_up)
        finally:
            hanging_up.cancel()
    if turns is None:
        raise ClientDisconnect
    return turns


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _has_hung_up(request: Request) -> bool:
    """Whether the server knows that the client is gone. It is asked for its next message, and not waited for."""
    asking = request.receive().__await__()
    try:
        next(asking)
    except StopIteration as answer:
        return answer.value["type"] == "http.disconnect"
    finally:
        asking.close()
    return False
