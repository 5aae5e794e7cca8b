"""The routes of a server for Tinker's clients, below `/api/v1`.

    sessions      create_session, session_heartbeat, sessions, create_sampling_session, samplers
    training      create_model, forward, forward_backward, optim_step, get_info, unload_model
    checkpoints   save_weights, save_weights_for_sampler, save_weights_external, load_weights, weights_info, training_runs
    sampling      asample
    results       retrieve_future, cancel_future

Training and sampling are only started by their request. The client then calls retrieve_future until the result is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Scope

from sparring.errors import SparringError
from sparring.serving.tinker import requests as bodies
from sparring.serving.tinker.answers import ForwardResult, SampleResult
from sparring.serving.tinker.checkpoints import Address, describe
from sparring.serving.tinker.futures import Future
from sparring.serving.tinker.listing import describe_run, list_page, list_runs
from sparring.serving.tinker.refusal import Refusal
from sparring.serving.tinker.service import TinkerService
from sparring.types import Json
from sparring.web.gate import Gate, Gated, Refused, count_tokens, read_authorization

PREFIX: Final = "/api/v1"
KEY_PREFIX: Final = "tml-"
"""What the client requires at the beginning of a key. It is not a part of this server's keys."""
MOST_BYTES: Final = 64 * 2**20
"""The largest body. The client divides its batches into requests of about 5 MB."""
BODY_SECONDS: Final = 120.0
POLL_SECONDS: Final = 20.0
"""How long retrieve_future waits for a result. The client gives up after 45 s."""
LINK_SECONDS: Final = 900.0
"""How long a link to a file is valid."""
MOST_LINKS: Final = 10_000
PROTOBUF: Final = "application/x-protobuf"
CLIENT_CONFIG: Final[dict[str, Json]] = {
    "pjwt_auth_enabled": False,
    "credential_default_source": "api_key",
    "create_model_via_load_weights": True,
    "parallel_fwdbwd_chunks": True,
    "proto_compress_fwdbwd": False,
    "sample_enable_stuck_detection": False,
    "sample_use_retrieve_futures": False,
    "sample_join_sampling_session": False,
    "custom_loss_server_side": False,
}
"""The client's settings that this server chooses (`tinker.types.ClientConfigResponse`)."""

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
BodyType = TypeVar("BodyType", bound=bodies._Body)


def create_app(service: TinkerService, *, gate: Gate | None = None) -> ASGIApp:
    """Return the app. With a gate, each request needs a key that it admits, except for health checks and for links to files,
    which contain a secret. Without a gate, bind the server only to a loopback address."""
    routes = _Routes(service)
    own = Router(
        [
            Route(f"{PREFIX}{path}", _answering(handler), methods=[method])
            for (method, path), handler in routes.handlers().items()
        ],
        default=JSONResponse({"detail": "this server has no such route."}, 404),
    )
    admitted = own if gate is None else Gated(own, gate, "complete", find_key=find_key, refuse=_refuse)
    free = [
        Route(f"{PREFIX}/healthz", _answering(routes.health), methods=["GET"]),
        Route(f"{PREFIX}/files/{{secret}}/{{name}}", _answering(routes.file), methods=["GET"]),
    ]
    return Starlette(routes=[*free, Mount("/", admitted)])


def find_key(scope: Scope) -> str:
    """Return the key of a request, without the prefix that the client requires."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return (headers.get("x-api-key") or read_authorization(headers)).removeprefix(KEY_PREFIX)


def _refuse(refused: Refused) -> ASGIApp:
    headers = {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}
    return JSONResponse({"detail": str(refused)}, refused.status, headers)


def _answering(handler: Handler) -> Handler:
    """Return the handler with an answer to each error that a client can act on."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return JSONResponse({"detail": str(refusal)}, refusal.status)
        except SparringError as error:
            return JSONResponse({"detail": str(error)}, 400)

    return answer


async def read_body(request: Request) -> bytes:
    """Return the body. Raises Refusal 413 if it is too large, and 408 if it does not arrive in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body.extend(part)
                if len(body) > MOST_BYTES:
                    raise Refusal(f"the body is larger than {MOST_BYTES} bytes; send fewer data at once.", 413)
    except TimeoutError:
        raise Refusal(f"the body did not arrive within {BODY_SECONDS:g} s.", 408) from None
    except ClientDisconnect:
        raise Refusal("the client is gone.") from None
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal("content-encoding: send the body as it is.", 415)
    return bytes(body)


@final
class _Routes:
    """The handlers of one service."""

    def __init__(self, service: TinkerService) -> None:
        self._service = service
        self._links: dict[str, tuple[float, Address]] = {}
        """The addresses of linked checkpoints, and until when their links are valid, by secret."""

    def handlers(self) -> dict[tuple[str, str], Handler]:
        """Return the handlers by method and path."""
        run, checkpoint = "/training_runs/{run}", "/training_runs/{run}/checkpoints/{kind}/{name}"
        return {
            ("POST", "/client/config"): self.client_config,
            ("POST", "/client/dynamic_config"): self.dynamic_config,
            ("POST", "/telemetry"): self.telemetry,
            ("GET", "/get_server_capabilities"): self.capabilities,
            ("POST", "/create_session"): self.create_session,
            ("POST", "/session_heartbeat"): self.heartbeat,
            ("GET", "/sessions"): self.list_sessions,
            ("GET", "/sessions/{session}"): self.session,
            ("POST", "/sessions/{session}/finish"): self.finish,
            ("POST", "/create_sampling_session"): self.create_sampler,
            ("GET", "/samplers/{sampler}"): self.sampler,
            ("POST", "/create_model"): self.create_model,
            ("POST", "/get_info"): self.info,
            ("POST", "/unload_model"): self.unload,
            ("POST", "/forward"): self.forward,
            ("POST", "/forward_backward"): self.forward,
            ("POST", "/optim_step"): self.optim_step,
            ("POST", "/save_weights"): self.save,
            ("POST", "/save_weights_for_sampler"): self.save_for_sampler,
            ("POST", "/save_weights_external"): self.save_external,
            ("POST", "/load_weights"): self.load,
            ("POST", "/weights_info"): self.weights_info,
            ("POST", "/asample"): self.sample,
            ("POST", "/retrieve_future"): self.retrieve,
            ("POST", "/cancel_future"): self.cancel,
            ("GET", "/training_runs"): self.list_runs,
            ("GET", run): self.run,
            ("GET", f"{run}/checkpoints"): self.list_checkpoints,
            ("GET", "/checkpoints"): self.list_checkpoints,
            ("DELETE", checkpoint): self.delete,
            ("PUT", f"{checkpoint}/ttl"): self.set_ttl,
            ("GET", f"{checkpoint}/archive"): self.archive,
            ("GET", f"{checkpoint}/external_weights_urls"): self.urls,
        }

    # The server

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def client_config(self, request: Request) -> Response:
        await read_body(request)
        return JSONResponse(CLIENT_CONFIG)

    async def dynamic_config(self, request: Request) -> Response:
        await read_body(request)
        return JSONResponse({"sample_cancel_enabled": True})

    async def telemetry(self, request: Request) -> Response:
        """Discard what the client reports about itself."""
        await read_body(request)
        return JSONResponse({"status": "accepted"})

    async def capabilities(self, _: Request) -> Response:
        base = self._service.base
        model = {
            "model_name": base.name,
            "max_context_length": base.max_tokens,
            "trainable": True,
            "sampleable": True,
        }
        return JSONResponse({"supported_models": [model]})

    # Sessions

    async def create_session(self, request: Request) -> Response:
        session = self._service.create_session(await _parse(bodies.CreateSession, request))
        return JSONResponse({"type": "create_session", "session_id": session.id})

    async def heartbeat(self, request: Request) -> Response:
        self._service.find_session((await _parse(bodies.OfSession, request)).session_id)
        return JSONResponse({"type": "session_heartbeat"})

    async def list_sessions(self, request: Request) -> Response:
        page, _ = list_page(list(self._service.sessions), request.query_params)
        return JSONResponse({"sessions": page})

    async def session(self, request: Request) -> Response:
        session = self._service.find_session(request.path_params["session"])
        runs = [run.settings.id for run in self._service.runs.values() if run.settings.session_id == session.id]
        settings = session.settings
        return JSONResponse(
            {
                "training_run_ids": runs,
                "sampler_ids": session.sampler_ids,
                "user_metadata": settings.user_metadata,
                "display_name": settings.display_name,
            }
        )

    async def finish(self, request: Request) -> Response:
        await read_body(request)
        await self._service.finish_session(request.path_params["session"])
        return JSONResponse({})

    async def create_sampler(self, request: Request) -> Response:
        sampler = await self._service.create_sampler(await _parse(bodies.CreateSamplingSession, request))
        return JSONResponse({"type": "create_sampling_session", "sampling_session_id": sampler.id})

    async def sampler(self, request: Request) -> Response:
        sampler = self._service.find_sampler(request.path_params["sampler"])
        return JSONResponse(
            {"sampler_id": sampler.id, "base_model": self._service.base.name, "model_path": sampler.model_path}
        )

    # Training

    async def create_model(self, request: Request) -> Response:
        given, digest = await _parse_with_digest(bodies.CreateModel, request)
        return _started(await self._service.create_model(given, digest))

    async def info(self, request: Request) -> Response:
        run = self._service.find_run((await _parse(bodies.OfModel, request)).model_id)
        name = self._service.base.name
        return JSONResponse(
            {
                "type": "get_info",
                "model_id": run.settings.id,
                "model_name": name,
                "model_data": {"model_name": name, "tokenizer_id": self._service.base.tokenizer_id},
                "is_lora": True,
                "lora_rank": run.settings.lora.rank,
            }
        )

    async def unload(self, request: Request) -> Response:
        run_id = (await _parse(bodies.OfModel, request)).model_id
        self._service.find_run(run_id)
        future, is_new = self._service.futures.add(f"{run_id}:unload", "")

        async def unload() -> dict[str, Json]:
            await self._service.unload_run(run_id)
            return {"model_id": run_id, "type": "unload_model"}

        if is_new:
            self._service.futures.start(future, unload)
        return _started(future)

    async def forward(self, request: Request) -> Response:
        body = await read_body(request)
        given = await self._parse_in_order(bodies.Forward, request, body)
        count_tokens(request.scope, sum(len(datum.model_input.token_ids) for datum in given.input.data))
        return _started(await self._service.forward(given, _digest(body)), given.model_id)

    async def optim_step(self, request: Request) -> Response:
        body = await read_body(request)
        given = await self._parse_in_order(bodies.OptimStep, request, body)
        return _started(self._service.optim_step(given, _digest(body)), given.model_id)

    # Checkpoints

    async def save(self, request: Request) -> Response:
        body = await read_body(request)
        given = await self._parse_in_order(bodies.SaveWeights, request, body)
        return _started(self._service.save_weights(given, _digest(body)), given.model_id)

    async def save_for_sampler(self, request: Request) -> Response:
        body = await read_body(request)
        given = await self._parse_in_order(bodies.SaveWeightsForSampler, request, body)
        return _started(self._service.save_for_sampler(given, _digest(body)), given.model_id)

    async def save_external(self, request: Request) -> Response:
        body = await read_body(request)
        given = await self._parse_in_order(bodies.SaveWeightsExternal, request, body)
        return _started(self._service.save_external(given, _digest(body)), given.model_id)

    async def load(self, request: Request) -> Response:
        body = await read_body(request)
        given = await self._parse_in_order(bodies.LoadWeights, request, body)
        try:
            return _started(await self._service.load_weights(given, _digest(body)))
        except (Refusal, SparringError) as error:
            self._skip(request, given.model_dump(), body, Refusal(str(error)))
            raise

    async def weights_info(self, request: Request) -> Response:
        given = await _parse(bodies.WeightsInfo, request)
        content = await asyncio.to_thread(self._service.checkpoints.read_content, Address.read(given.tinker_path))
        lora = content["lora_config"]
        return JSONResponse(
            {
                "base_model": content["base_model"],
                "is_lora": True,
                "lora_rank": lora["rank"],
                **{name: lora[name] for name in ("train_unembed", "train_mlp", "train_attn")},
            }
        )

    async def list_runs(self, request: Request) -> Response:
        runs = await asyncio.to_thread(list_runs, self._service)
        page, cursor = list_page(runs, request.query_params)
        return JSONResponse({"training_runs": page, "cursor": cursor})

    async def run(self, request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(describe_run, self._service, request.path_params["run"]))

    async def list_checkpoints(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._service.checkpoints.list_all, request.path_params.get("run"))
        page, cursor = list_page([describe(content) for content in found], request.query_params)
        return JSONResponse({"checkpoints": page, "cursor": cursor})

    async def delete(self, request: Request) -> Response:
        await self._service.delete_checkpoint(_address(request))
        return Response(status_code=204)

    async def set_ttl(self, request: Request) -> Response:
        """Check the address. Nothing is deleted after a time here."""
        await read_body(request)
        await asyncio.to_thread(self._service.checkpoints.read_content, _address(request))
        return Response(status_code=204)

    async def archive(self, request: Request) -> Response:
        address = _address(request)
        await asyncio.to_thread(self._service.checkpoints.list_files, address)
        expires = format_datetime(_expiry(), usegmt=True)
        headers = {"location": self._link(request, address, "checkpoint.tar"), "expires": expires}
        return Response(status_code=302, headers=headers)

    async def urls(self, request: Request) -> Response:
        address = _address(request)
        files = await asyncio.to_thread(self._service.checkpoints.list_files, address)
        urls = {file.name: self._link(request, address, file.name) for file in files}
        return JSONResponse({"urls": urls, "expires": _expiry().isoformat()})

    async def file(self, request: Request) -> Response:
        """Return a linked file. The link contains a secret instead of a key."""
        until, address = self._links.get(request.path_params["secret"], (0.0, None))
        name = request.path_params["name"]
        if address is None or until < time.monotonic():
            raise Refusal("this link is not valid, or no longer; request a new one.", 404)
        checkpoints = self._service.checkpoints
        if name == "checkpoint.tar":
            return Response(await asyncio.to_thread(checkpoints.pack, address), media_type="application/x-tar")
        files = {file.name: file for file in await asyncio.to_thread(checkpoints.list_files, address)}
        if name not in files:
            raise Refusal(f"{address.path} has no file {name!r}.", 404)
        return Response(await asyncio.to_thread(Path.read_bytes, files[name]), media_type="application/octet-stream")

    def _link(self, request: Request, address: Address, name: str) -> str:
        now = time.monotonic()
        self._links = {secret: one for secret, one in self._links.items() if one[0] > now}
        if len(self._links) >= MOST_LINKS:
            raise Refusal("there are too many links; try again later.", 429)
        secret = secrets.token_urlsafe(24)
        self._links[secret] = (now + LINK_SECONDS, address)
        return str(request.base_url).rstrip("/") + f"{PREFIX}/files/{secret}/{name}"

    # Sampling and results

    async def sample(self, request: Request) -> Response:
        given, digest = await _parse_with_digest(bodies.Sample, request)
        count_tokens(request.scope, len(given.prompt.token_ids))
        future = await self._service.sample(given, digest)
        ids = [f"{future.id}:{index}" for index in range(given.num_samples)]
        return JSONResponse({"request_id": future.id, "sample_sequence_ids": ids})

    async def retrieve(self, request: Request) -> Response:
        given = await _parse(bodies.OfRequest, request)
        future = await self._service.futures.wait(given.request_id, POLL_SECONDS)
        if not future.done.is_set():
            return _pending(future)
        if future.error is not None or future.result is None:
            category = "user" if future.is_clients_error else "server"
            return JSONResponse({"error": future.error, "category": category})
        result = future.result
        if not isinstance(result, ForwardResult | SampleResult):
            return JSONResponse(dict(result))
        if PROTOBUF in request.headers.get("accept", ""):
            return Response(result.as_protobuf(), media_type=PROTOBUF)
        return JSONResponse(result.as_json())

    async def cancel(self, request: Request) -> Response:
        """Cancel a sampling request. Training requests are computed, because others may follow them."""
        future = self._service.futures.find((await _parse(bodies.OfRequest, request)).request_id)
        if future.line is None and future.task is not None:
            future.task.cancel()
        return Response(status_code=204)

    async def _parse_in_order(self, model: type[BodyType], request: Request, body: bytes) -> BodyType:
        """Return a valid body of a request that has a place in the order of a training run. Raises Refusal; later requests do
        then not wait for this one."""
        content: Any = {}
        try:
            content = await asyncio.to_thread(_decode, request, body)
            return await asyncio.to_thread(bodies.parse, model, content)
        except Refusal as refusal:
            self._skip(request, content, body, refusal)
            raise

    def _skip(self, request: Request, content: Any, body: bytes, refusal: Refusal) -> None:
        match content:
            case {"model_id": str(run_id), "seq_id": int(seq_id)}:
                has_gradient = request.url.path.endswith("/forward_backward") and not content.get("is_forward_only")
                with suppress(Refusal):
                    self._service.skip(run_id, seq_id, _digest(body), refusal, has_gradient=has_gradient)


def _decode(request: Request, body: bytes) -> Any:
    """Return the content of a body, which is JSON or, for forward_backward, a protocol buffer. Raises Refusal."""
    if request.headers.get("content-type", "").startswith(PROTOBUF):
        return bodies.read_forward_backward(body)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not valid JSON: {error}.") from None
    if isinstance(content, dict) and request.url.path.endswith("/forward"):
        content["is_forward_only"] = True
    return content


async def _parse(model: type[BodyType], request: Request) -> BodyType:
    return (await _parse_with_digest(model, request))[0]


async def _parse_with_digest(model: type[BodyType], request: Request) -> tuple[BodyType, str]:
    body = await read_body(request)
    return await asyncio.to_thread(bodies.parse, model, body), _digest(body)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _started(future: Future, run_id: str | None = None) -> Response:
    return JSONResponse({"request_id": future.id, "model_id": run_id})


def _pending(future: Future) -> Response:
    """Return the answer to a client whose result is not there yet. The client asks again at once."""
    missing = None if future.line is None else future.line.find_missing()
    state: dict[str, Json] = {"type": "try_again", "request_id": future.id, "queue_state": "active"}
    if missing is not None:
        reason = f"request {missing} of this training run has not arrived"
        state |= {"queue_state": "paused_capacity", "queue_state_reason": reason}
    return JSONResponse(state, 408)


def _address(request: Request) -> Address:
    parameters = request.path_params
    return Address.of(parameters["run"], f"{parameters['kind']}/{parameters['name']}")


def _expiry() -> datetime:
    return datetime.fromtimestamp(time.time() + LINK_SECONDS, UTC)
