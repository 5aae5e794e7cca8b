"""The HTTP application, with routes, keys, body limits and streaming. Every failure is returned as an error object of
the dialect."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from sparring.gateway.bodies import (
    LARGE_BODY_BYTES,
    MOST_KEYS,
    MOST_REPORTED_VALUES,
    check_keys,
    decode,
    decode_report,
    read_body,
)
from sparring.gateway.dialects import DIALECTS, ChatCompletions
from sparring.gateway.dialects.validation import validated
from sparring.gateway.endpoints import Endpoints
from sparring.gateway.episode import body_digest
from sparring.gateway.openapi import openapi
from sparring.gateway.queue import Poll, Release, WorkQueue
from sparring.gateway.refusals import UNKNOWN_ROUTE, is_refusal, reason_of
from sparring.gateway.request import CONVERSATION, ApiError, Asked, Dialect, Head
from sparring.gateway.runtime import REPORTS, SAMPLES, AwsError, ReportRoute, trajectory_id
from sparring.gateway.sending import api_error, hung_up, send_stream, send_whole
from sparring.gateway.versions import VERSIONS, VersionChange, Versions
from sparring.runtime.logs import get_logger
from sparring.runtime.shares import apply_share, run_within_share
from sparring.runtime.threads import process_long_text
from sparring.sessions import AnySession
from sparring.sessions.refusals import MOST_REASONS
from sparring.types import Json
from sparring.web.gate import Gate, Gated, Refused, count_tokens, read_authorization
from sparring.web.keys import Permission

_logger = get_logger(__name__)

Endpoint: TypeAlias = Callable[[Request, Send], Awaitable[Response | None]]
"""A function that returns the response to a request, or None if it already sent a response."""


def _as_it_is(error: ApiError) -> ApiError:
    return error


def create_app(
    endpoints: Endpoints,
    *,
    queue: WorkQueue | None = None,
    versions: Versions | None = None,
    gate: Gate | None = None,
    max_body_bytes: int = 8 * 1024 * 1024,
    clock: Callable[[], float] = time.time,
) -> ASGIApp:
    """Return the app. It has the routes of the dialects, of MTRL and of reports, as well as `/v1/models` and `/health`.
    `clock` returns seconds since 1970.

    The same routes also exist under `/s/KEY`, for clients that cannot send a key in a header. With a `queue`, workers
    poll for episodes at `/v1/queue`. With `versions`, an operator changes them at `VERSIONS`. With a `gate`, all routes
    except `/openapi.json` and `/health` need a key that it admits; otherwise, `endpoints` check the keys.
    """
    refusals = _Refusals(endpoints)
    sampling = _SamplingRoutes(endpoints, refusals, max_body_bytes, clock)
    chat = ChatCompletions()

    def find_key(scope: Scope) -> str:
        return _shown_key(scope["path_params"].get("key", ""), _headers(scope), endpoints)

    def admit(app: _Answered) -> ASGIApp:
        return app if gate is None else Gated(app, gate, "complete", find_key=find_key, refuse=app.refuse)

    async def models(request: Request, _send: Send) -> Response:
        _opening_key(request, _headers(request.scope), endpoints)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "sparring"} for name in endpoints.model_names]
        return JSONResponse({"object": "list", "data": data})

    async def document(_request: Request, _send: Send) -> Response:
        return JSONResponse(
            openapi(takes_seed=endpoints.takes_seed, has_queue=queue is not None, has_versions=versions is not None)
        )

    async def health(_request: Request, _send: Send) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [
        *(Route(path, admit(sampling.app(dialect)), methods=["POST"]) for path, dialect in DIALECTS.items()),
        # Agents that use MTRL's endpoint as the base URL of an OpenAI client send their requests here.
        Route("/chat/completions", admit(sampling.app(chat)), methods=["POST"]),
        *(Route(path, admit(sampling.app(dialect, AwsError)), methods=["POST"]) for path, dialect in SAMPLES.items()),
        *(
            Route(path, admit(_report_app(route, endpoints, max_body_bytes)), methods=["POST"])
            for path, route in REPORTS.items()
        ),
        Route("/v1/models", admit(_Answered(models, chat)), methods=["GET"]),
        Route("/openapi.json", _Answered(document, chat), methods=["GET"]),
        Route("/health", _Answered(health, chat), methods=["GET"]),
    ]
    polled = [] if queue is None else _QueueRoutes(queue, max_body_bytes).routes()
    changed = [] if versions is None else [_versions_route(versions, gate or Gate("serve"), max_body_bytes)]
    return _Routed([*routes, *polled, *changed, Mount("/s/{key}", routes=routes)], refusals.note_unknown)


class _Refusals:
    """Counts refused requests, and logs each reason only once."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._logged: set[str] = set()
        """The reasons of refusals and the ignored fields that were already logged."""

    def log_once(self, reason: str, message: str, *values: object) -> None:
        if reason not in self._logged and len(self._logged) < MOST_REASONS:
            self._logged.add(reason)
            _logger.warning(message, *values)

    def note(self, path: str, api_key: str, error: ApiError) -> None:
        """Count and log a refused request."""
        if is_refusal(error):
            path, reason = path.replace(api_key or "\0", "KEY"), reason_of(error)
            self.log_once(reason, "%s refused a request with %d (%s): %s", path, error.status, reason, error)
            self._endpoints.note_refusal(api_key, error)

    @contextmanager
    def noted(self, request: Request, api_key: str) -> Iterator[None]:
        """Record a refused request, and re-raise the error."""
        try:
            yield
        except ApiError as error:
            self.note(request.scope["path"], api_key, error)
            raise

    def note_unknown(self, request: Request, error: ApiError) -> None:
        """Record a request for an unknown route, if it has a key."""
        path = request.scope["path"]
        in_path = path.split("/")[2] if path.startswith("/s/") else ""
        api_key = _shown_key(in_path, _headers(request.scope), self._endpoints)
        with suppress(ApiError):
            self._endpoints.check(api_key)
            self.note(path, api_key, error)


class _SamplingRoutes:
    """The routes that sample turns."""

    def __init__(
        self, endpoints: Endpoints, refusals: _Refusals, max_body_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._endpoints = endpoints
        self._refusals = refusals
        self._max_body_bytes = max_body_bytes
        self._clock = clock
        self._clients: set[str] = set()

    def app(self, dialect: Dialect, convert: Callable[[ApiError], ApiError] = _as_it_is) -> _Answered:
        """Return the endpoint of one dialect."""

        async def answer(request: Request, send: Send) -> Response | None:
            await self._answer(dialect, request, send)
            return None

        return _Answered(answer, dialect, convert)

    async def _answer(self, dialect: Dialect, request: Request, send: Send) -> None:
        headers = _headers(request.scope)
        api_key = _opening_key(request, headers, self._endpoints)
        is_retry = _number(headers.get("x-stainless-retry-count")) > 0
        try:
            admitted = self._endpoints.admitted(api_key)
        except ApiError:
            # A retry is not counted again, since its content is the same.
            if not is_retry:
                self._endpoints.refused(api_key, await _digest(request))
            raise
        with admitted, apply_share(admitted.share), self._refusals.noted(request, api_key):
            body = await read_body(request, self._max_body_bytes)
            asked = await _read(dialect, body)
            if named := request.path_params.get("key") or trajectory_id(headers):
                asked = replace(asked, episode=named)
            if conversation := headers.get(CONVERSATION):
                asked = replace(asked, conversation=conversation)
            async with self._endpoints.enter(api_key, asked) as episode:
                self._note_unread(request, episode.session, asked)
                digested = request.scope["path"].encode() + body
                delivery = episode.deliver(
                    asked, digested, prefix=dialect.id_prefix, is_retry=is_retry, client=_client(headers, self._clients)
                )
                head = Head(id=delivery.id, model=episode.model or asked.model, created=int(self._clock()))
                try:
                    async with delivery:
                        if asked.stream:
                            await send_stream(dialect, asked, delivery, episode.session, head, request, send)
                        else:
                            await send_whole(dialect, asked, delivery, head, request, send)
                finally:
                    count_tokens(request.scope, delivery.num_tokens)

    def _note_unread(self, request: Request, session: AnySession, asked: Asked) -> None:
        session.refusals.leave_unread(asked.not_read)
        for field in asked.not_read:
            self._refusals.log_once(
                field, "%s accepts requests with the field %s but ignores this field", request.scope["path"], field
            )


def _report_app(route: ReportRoute, endpoints: Endpoints, max_body_bytes: int) -> _Answered:
    """Return the endpoint of one kind of report on an episode."""

    async def report(request: Request, _send: Send) -> Response:
        content = route.read(
            decode_report(await read_body(request, max_body_bytes, most_values=MOST_REPORTED_VALUES)), request.headers
        )
        headers = _headers(request.scope)
        content.tell(endpoints.report(route.key(content) or _opening_key(request, headers, endpoints)))
        return JSONResponse({})

    return _Answered(report, route, route.convert)


class _QueueRoutes:
    """The routes through which workers take episodes from a queue."""

    def __init__(self, queue: WorkQueue, max_body_bytes: int) -> None:
        self._queue = queue
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[Route]:
        work = {"lease": self._lease, "{lease}/renew": self._renew, "{lease}/release": self._release}
        return [Route(f"/v1/queue/{path}", self._checked(answer), methods=["POST"]) for path, answer in work.items()]

    def _checked(self, answer: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
        async def answered(request: Request, _send: Send) -> Response:
            return await answer(request)

        return _gate_bearer(_Answered(answered, ChatCompletions()), self._queue.gate, "work")

    async def _lease(self, request: Request) -> Response:
        poll = validated(decode(await read_body(request, self._max_body_bytes) or b"{}"), Poll, only={}, inert=())
        leasing = asyncio.ensure_future(
            self._queue.lease(poll.wait_seconds, poll.endpoint or str(request.base_url).rstrip("/"))
        )
        hanging_up = asyncio.ensure_future(hung_up(request))
        try:
            # A worker that has disconnected must not get an episode.
            await asyncio.wait({leasing, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
            if not leasing.done():
                raise ClientDisconnect
            return Response(status_code=204) if leasing.result() is None else JSONResponse(leasing.result())
        finally:
            for waiting in (leasing, hanging_up):
                waiting.cancel()
            await asyncio.gather(leasing, hanging_up, return_exceptions=True)

    async def _renew(self, request: Request) -> Response:
        self._queue.renew(request.path_params["lease"])
        return JSONResponse({"lease_seconds": self._queue.lease_seconds})

    async def _release(self, request: Request) -> Response:
        release = validated(decode(await read_body(request, self._max_body_bytes) or b"{}"), Release, only={}, inert=())
        self._queue.release(request.path_params["lease"], release.error)
        return JSONResponse({})


def _gate_bearer(app: _Answered, gate: Gate, needs: Permission) -> ASGIApp:
    """Return the app with a gate for the key in the authorization header."""
    return Gated(app, gate, needs, find_key=lambda scope: read_authorization(_headers(scope)), refuse=app.refuse)


def _versions_route(versions: Versions, gate: Gate, max_body_bytes: int) -> Route:
    """Return the route through which an operator sees and changes the versions that answer."""

    async def answer(request: Request, _send: Send) -> Response:
        if request.method == "POST":
            body = decode(await read_body(request, max_body_bytes))
            await versions.change(validated(body, VersionChange, only={}, inert=()))
        return JSONResponse(versions.as_json())

    return Route(VERSIONS, _gate_bearer(_Answered(answer, ChatCompletions()), gate, "admin"), methods=["GET", "POST"])


class _ErrorDialect(Protocol):
    def error(self, error: ApiError) -> Mapping[str, Json]:
        """Return an error as the body of a response."""
        ...


class _Answered:
    """An endpoint wrapped as an ASGI app that returns every failure as an error object. `convert` converts each error
    to the error of the API."""

    def __init__(
        self, endpoint: Endpoint, dialect: _ErrorDialect, convert: Callable[[ApiError], ApiError] = _as_it_is
    ) -> None:
        self._endpoint, self._dialect, self._convert = endpoint, dialect, convert

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._endpoint(Request(scope, receive, send), send)
        except ClientDisconnect:
            return
        except Exception as failure:  # noqa: BLE001 (the boundary: a bug must not show its traceback to a client)
            answer = self._respond(api_error(failure))
            _release_frames(failure)
        if answer is not None:
            await answer(scope, receive, send)

    def _respond(self, error: ApiError) -> Response:
        error = self._convert(error)
        return JSONResponse(self._dialect.error(error), status_code=error.status, headers=error.headers)

    def refuse(self, refused: Refused) -> ASGIApp:
        """Return the answer to a request that a gate refused."""
        return self._respond(ApiError(refused.status, str(refused), code=refused.code, retry_after=refused.retry_after))


def _release_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an exception and its causes. Their frames hold the body of the request, and the exception,
    so that all of it would wait for a garbage collection."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__ or error.__context__


class _Routed:
    """Starlette's router, extended to return error objects for unknown paths and methods. Starlette's own application
    class would do the same, but would add three layers to every request, which take a tenth of the request's time."""

    def __init__(self, routes: Sequence[BaseRoute], note: Callable[[Request, ApiError], None]) -> None:
        """Create a router. `note` is called for each request with an unknown path or method."""
        self._router, self._note = Router(routes), note

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return self._router.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # without an app, the router itself would respond in plain text
        try:
            await self._router(scope, receive, send)
        except HTTPException as failure:
            request = Request(scope)
            error = _unknown_route(request, failure)
            self._note(request, error)
            await _unknown_answer(request, failure, error)(scope, receive, send)


def _unknown_route(request: Request, failure: HTTPException) -> ApiError:
    message = f"{failure.detail}: use {', '.join(DIALECTS)}, /v1/models or /health; /openapi.json lists all routes."
    # If the path contained ids, each request would have its own reason.
    parts = _route(request).strip("/").split("/")
    route = ["ID" if len(part) >= 12 and re.search(r"\d", part) else part for part in parts]
    return ApiError(failure.status_code, message, code=UNKNOWN_ROUTE, given="/".join(route), is_type=True)


def _route(request: Request) -> str:
    """Return the path without the key at its start, if it has one."""
    path = request.url.path
    return path if not path.startswith("/s/") else f"/{path.split('/', 3)[-1]}"


def _unknown_answer(request: Request, failure: HTTPException, error: ApiError) -> Response:
    path = _route(request)
    dialect = {**DIALECTS, **SAMPLES, **REPORTS}.get(path, ChatCompletions())
    converted = AwsError(error) if path in SAMPLES else REPORTS[path].convert(error) if path in REPORTS else error
    headers = {**converted.headers, **(failure.headers or {})}
    return JSONResponse(dialect.error(converted), status_code=failure.status_code, headers=headers)


def _opening_key(request: Request, headers: Mapping[str, str], endpoints: Endpoints) -> str:
    """Return the key of a request: from the path, MTRL's trajectory id, the bearer token, or Anthropic's header.

    The bearer token comes late in this order, because many clients always send one. Raises ApiError 401.
    """
    api_key = _shown_key(request.path_params.get("key", ""), headers, endpoints)
    endpoints.check(api_key)
    return api_key


def _shown_key(in_path: str, headers: Mapping[str, str], endpoints: Endpoints) -> str:
    shown = [read_authorization(headers), headers.get("x-api-key", "")]
    if endpoints.is_key_in_path:
        shown = [in_path, trajectory_id(headers), *shown]
    return next(filter(None, shown), "")


def _headers(scope: Scope) -> dict[str, str]:
    """Return a dict with the first value of each header. Starlette's own mapping searches all headers on each
    access."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


_MOST_CLIENTS = 16
"""The maximum number of clients that a gateway counts by name."""


def _client(headers: Mapping[str, str], known: set[str]) -> str:
    """Return the name of the client program, from the start of its User-Agent: `asyncopenai-python` for
    `AsyncOpenAI/Python 2.1`."""
    product = re.match(r"([\w.-]+)(?:/([a-z]+))?", headers.get("user-agent", "").lower(), re.ASCII)
    name = "-".join(filter(None, product.groups()))[:32] if product else "unnamed"
    if name not in known and len(known) >= _MOST_CLIENTS:
        return "other"
    known.add(name)
    return name


async def _digest(request: Request) -> bytes:
    """Return the digest of a body. The body is read but not stored."""
    digest = body_digest(request.scope["path"].encode())
    async for part in request.stream():
        digest.update(part)
    return digest.digest()


async def _read(dialect: Dialect, body: bytes) -> Asked:
    """Return what a body requests. Validation of a large body must not delay the requests of others."""
    if len(body) <= LARGE_BODY_BYTES:
        return await run_within_share(partial(_read_now, dialect, body))
    return await process_long_text(_read_now, dialect, body)


def _read_now(dialect: Dialect, body: bytes) -> Asked:
    decoded = decode(body)
    if body.count(b":") > MOST_KEYS:
        check_keys(decoded)
    return dialect.read(decoded)


def _number(text: str | None) -> int:
    return int(text) if text is not None and len(text) < 10 and text.isdecimal() else 0
