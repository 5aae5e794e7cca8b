"""A server that makes any engine available over HTTP, for `engines.remote.RemoteEngine`.

GET  /v1/engine    capabilities, limits, version and fingerprint of the policy
POST /v1/sample    a turn: JSON lines with sampled tokens, empty keep-alive lines, and finally the completion or an error
POST /v1/weights   a safetensors file, with ?version= &fingerprint= and, for a frozen policy, &policy=
POST /v1/logprobs  log-probabilities of given ids
POST /v1/sessions  sessions that open or close, in order
GET  /v1/model     where the model is computed, and the hash of its weights before training
GET  /v1/model/weights  a safetensors file of the weights before training
"""

from __future__ import annotations

import asyncio
import hmac
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import final

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sparring.engines.bodies import BadRequest, SessionsBody, read_json, read_logprobs, read_number, read_sample
from sparring.errors import ConstraintError, DataError, EpisodeError, ServiceError, UsageError
from sparring.models.tensor_files import TensorFile, write_weights
from sparring.protocols import Engine
from sparring.runtime.logs import get_logger
from sparring.runtime.private_files import open_private
from sparring.runtime.remote import PROTOCOL, SIGN_OF_LIFE_SECONDS, dumps, error_json, to_json
from sparring.types import Json, SampleRequest, Weights

_logger = get_logger(__name__)

_CALLERS_OWN = (ConstraintError, DataError, EpisodeError, ServiceError, UsageError)
"""Errors that are not bugs of the server."""


def engine_app(engine: Engine, *, api_key: str | None = None, model: ServedModel | None = None) -> Starlette:
    """Return the routes of an engine. With `api_key`, requests without this key are rejected. Without `api_key`, bind
    the server to loopback only. With `model`, the server also sends the initial weights to a run that has none."""
    routes = _Routes(engine)
    described = [] if model is None else _model_routes(model, api_key)
    return Starlette(
        routes=[
            Route("/v1/engine", guarded(routes.hello, api_key)),
            Route("/v1/sample", guarded(routes.sample, api_key), methods=["POST"]),
            Route("/v1/weights", guarded(routes.weights, api_key), methods=["POST"]),
            Route("/v1/logprobs", guarded(routes.logprobs, api_key), methods=["POST"]),
            Route("/v1/sessions", guarded(routes.sessions, api_key), methods=["POST"]),
            *described,
        ]
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model of an engine, for a run without its own weights."""

    device: str
    weights: Weights
    """The trained weights before training."""
    base_fingerprint: Callable[[], str]


def _model_routes(model: ServedModel, api_key: str | None) -> list[Route]:
    base_fingerprint = cache(model.base_fingerprint)

    async def describe(_: Request) -> Response:
        return JSONResponse(
            {
                "device": model.device,
                "base_fingerprint": await asyncio.to_thread(base_fingerprint),
                "fingerprint": model.weights.fingerprint,
            }
        )

    async def send_weights(_: Request) -> Response:
        folder = tempfile.TemporaryDirectory(prefix="sparring-engine-")
        path = Path(folder.name) / "weights.safetensors"
        await asyncio.to_thread(write_weights, model.weights, path)
        return FileResponse(path, background=BackgroundTask(folder.cleanup))

    return [
        Route("/v1/model", guarded(describe, api_key)),
        Route("/v1/model/weights", guarded(send_weights, api_key)),
    ]


def guarded(
    handle: Callable[[Request], Awaitable[Response]], api_key: str | None
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler, wrapped so that it checks the key and returns errors as JSON."""

    async def answer(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if api_key is not None and not hmac.compare_digest(given.encode(), f"Bearer {api_key}".encode()):
            return JSONResponse(
                {
                    "error": {
                        "kind": "ServiceError",
                        "message": "this is not the server's API key; send the key with which the server was started",
                    }
                },
                401,
            )
        try:
            return await handle(request)
        except ClientDisconnect:
            return Response(status_code=499)  # the client, which is gone, does not get it
        except BadRequest as error:
            return _error({"kind": "DataError", "message": str(error)}, error.status)
        except Exception as error:
            if not isinstance(error, _CALLERS_OWN):
                _logger.exception("a request to %s failed", request.url.path)
            return _error(error_json(error), 422)

    return answer


def _error(error: Mapping[str, Json], status: int) -> Response:
    # The message may quote what no JSON in UTF-8 can contain, such as a lone surrogate.
    return Response(dumps({"error": error}), status, media_type="application/json")


async def received(request: Request, path: Path) -> None:
    """Write the body of a request to a file."""
    with open_private(path, "wb") as file:
        async for piece in request.stream():
            await asyncio.to_thread(file.write, piece)


@final
class _Routes:
    """The handlers of one engine and of its frozen policies. The policies are keyed by the names that the client gave
    them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._frozen: dict[str, Engine] = {}

    async def hello(self, _: Request) -> Response:
        return JSONResponse(
            {
                "serves": "engine",
                "protocol": PROTOCOL,
                "capabilities": to_json(self._engine.capabilities),
                "max_context_tokens": self._engine.max_context_tokens,
                **_state(self._engine),
            }
        )

    async def sample(self, request: Request) -> Response:
        body = await read_sample(request)
        deadline = None if body.seconds is None else time.monotonic() + body.seconds
        asked = replace(body.request, deadline=deadline)
        lines = self._lines(self._of(body.policy), asked, request, is_streamed=body.stream)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def _lines(
        self, engine: Engine, asked: SampleRequest, request: Request, *, is_streamed: bool
    ) -> AsyncIterator[bytes]:
        """Yield the tokens and the result of a turn. The turn is cancelled when its client disconnects."""
        tokens: asyncio.Queue[int | None] = asyncio.Queue()
        sampling = asyncio.ensure_future(engine.sample(asked, tokens.put_nowait if is_streamed else None))
        sampling.add_done_callback(lambda _: tokens.put_nowait(None))
        leaving = asyncio.ensure_future(_hung_up(request))
        leaving.add_done_callback(lambda _: sampling.cancel())
        try:
            while True:
                try:
                    token = await asyncio.wait_for(tokens.get(), SIGN_OF_LIFE_SECONDS)
                except TimeoutError:
                    yield b"\n"
                    continue
                if token is None:
                    break
                yield _line({"token": token})
            yield _result(sampling)
        finally:
            sampling.cancel()
            leaving.cancel()
            await asyncio.gather(sampling, leaving, return_exceptions=True)

    async def weights(self, request: Request) -> Response:
        query, version = request.query_params, int(read_number(request, "version"))
        if "fingerprint" not in query:
            raise BadRequest(400, "The query has no fingerprint; send that of the weights.")
        with tempfile.TemporaryDirectory(prefix="sparring-engine-") as folder:
            path = Path(folder) / "weights.safetensors"
            await received(request, path)
            # The file is read as a whole, since the engine keeps the tensors and the file is deleted.
            tensors = await asyncio.to_thread(lambda: dict(TensorFile(path)))
        weights = Weights(tensors=tensors, fingerprint=query["fingerprint"])
        engine = self._engine
        if name := query.get("policy"):
            engine = self._frozen.setdefault(name, self._engine.freeze())
        await engine.load_weights(weights, version)
        return JSONResponse({**_state(engine), "metrics": engine.metrics()})

    async def logprobs(self, request: Request) -> Response:
        body = await read_logprobs(request)
        found = await self._of(body.policy).logprobs(body.token_ids, body.temperature, body.first)
        return _json({"logprobs": found})

    async def sessions(self, request: Request) -> Response:
        for session_id, is_open in (await read_json(request, SessionsBody)).sessions:
            (self._engine.open_session if is_open else self._engine.close_session)(session_id)
        return JSONResponse({})

    def _of(self, name: str | None) -> Engine:
        if name is None:
            return self._engine
        if name not in self._frozen:
            raise ServiceError(
                "the server does not know this frozen policy, since the server was restarted; resume the run."
            )
        return self._frozen[name]


def _state(engine: Engine) -> dict[str, Json]:
    return {"policy_version": engine.policy_version, "fingerprint": engine.fingerprint}


def _result(sampling: asyncio.Future) -> bytes:
    if sampling.cancelled():
        return _line({"error": {"kind": "InfrastructureError", "message": "the turn was cancelled on the server."}})
    error = sampling.exception()
    if error is None:
        return _line({"completion": to_json(sampling.result())})
    if not isinstance(error, _CALLERS_OWN):
        _logger.error("a turn failed", exc_info=error)
    return _line({"error": error_json(error)})


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _line(value: Json) -> bytes:
    return dumps(value) + b"\n"


def _json(value: Json) -> Response:
    """Return JSON that may contain infinite numbers, since log-probabilities may be infinite."""
    return Response(dumps(value), media_type="application/json")
