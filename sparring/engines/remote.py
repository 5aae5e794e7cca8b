"""An engine in another process or on another machine, used over HTTP. `engines.server` implements the server side."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import httpx

from sparring.errors import InfrastructureError, ServiceError
from sparring.models.tensor_files import write_weights
from sparring.protocols import TokenCallback
from sparring.runtime.connections import Client
from sparring.runtime.remote import (
    CONNECT_SECONDS,
    SILENCE_SECONDS,
    check_protocol,
    decode,
    dumps,
    error_from,
    from_json,
    headers_of,
    to_json,
    unreachable,
)
from sparring.types import Completion, EngineCapabilities, Json, SampleRequest, Weights

LATE_SECONDS = 5.0
"""The number of seconds after a turn's deadline for which the engine waits for the server's answer."""
LOAD_SECONDS = 600.0
"""The maximum time in seconds for a server to load weights after receiving them."""
_PIECE_BYTES = 2**20


@final
class RemoteEngine:
    """Samples with an engine that another process serves. Implements `protocols.Engine`.

        engine = RemoteEngine("http://127.0.0.1:8100")

    Token ids, log-probabilities and numbers are sent as JSON; weights are sent as one safetensors file. If the server
    breaks the connection or stops responding, the turn fails with an infrastructure error. Cancelling a turn frees its
    slot on the server.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        """Connect to a running server. Raises ServiceError if the server does not respond or does not serve an
        engine."""
        self._channel = _Channel(base_url, api_key)
        self._policy: str | None = None
        self._weights: Weights | None = None
        """The weights of a frozen policy that the server does not have yet."""
        self._sending = asyncio.Lock()
        self._metrics: dict[str, float] = {}
        self._take(self._channel.hello)

    def freeze(self, weights: Weights | None = None) -> RemoteEngine:
        """Return an engine for another, frozen policy on the same server. The policy gets its weights before the first
        turn."""
        frozen = object.__new__(RemoteEngine)
        frozen._channel, frozen._policy, frozen._weights = self._channel, uuid.uuid4().hex, weights
        frozen._sending, frozen._metrics = asyncio.Lock(), {}
        frozen._version, frozen._fingerprint = 0, "" if weights is None else weights.fingerprint
        return frozen

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Sample a turn on the server. Raises any error that the server's engine raises, and InfrastructureError if the
        server breaks the connection."""
        await self._ready()
        seconds = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
        body = {
            "request": to_json(replace(request, deadline=None)),
            "policy": self._policy,
            "seconds": seconds,
            "stream": on_token is not None,
        }
        try:
            async with asyncio.timeout(None if seconds is None else seconds + LATE_SECONDS):
                async with aclosing(self._channel.lines("/v1/sample", body)) as lines:
                    async for line in lines:
                        if "token" in line and on_token is not None:
                            on_token(line["token"])
                        elif "error" in line:
                            raise error_from(line["error"], self._channel.where, otherwise=InfrastructureError)
                        elif "completion" in line:
                            return from_json(Completion, line["completion"])
        except TimeoutError:
            raise InfrastructureError(
                f"session {request.session_id}: {self._channel.where} had not responded {LATE_SECONDS:g} s after the deadline."
            ) from None
        raise InfrastructureError(
            f"session {request.session_id}: {self._channel.where} ended its response before the turn was complete."
        )

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Send the weights. Raises ServiceError if the server cannot be reached or rejects them."""
        async with self._sending:
            await self._send(weights, version)

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]:
        await self._ready()
        body = {"token_ids": list(token_ids), "temperature": temperature, "first": first, "policy": self._policy}
        return (await self._channel.post("/v1/logprobs", body))["logprobs"]

    def open_session(self, session_id: str) -> None:
        self._channel.announce(session_id, is_open=True)

    def close_session(self, session_id: str) -> None:
        self._channel.announce(session_id, is_open=False)

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._channel.capabilities

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._channel.max_context_tokens

    def metrics(self) -> dict[str, float]:
        """Return the load of the server between the last two updates of the weights."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    async def close(self) -> None:
        """Close the connections; the server keeps running. For a frozen policy this does nothing, since its engine
        closes the connections."""
        if self._policy is None:
            await self._channel.close()

    async def _ready(self) -> None:
        """Send the server everything that must precede a request: sessions, and the weights of a frozen policy."""
        await self._channel.flush()
        async with self._sending:
            if self._weights is not None:
                await self._send(self._weights, 0)
            if self._policy is not None and not self._fingerprint:
                raise InfrastructureError(
                    "this frozen policy has no weights yet; call load_weights before the first turn."
                )

    async def _send(self, weights: Weights, version: int) -> None:
        with tempfile.TemporaryDirectory(prefix="sparring-weights-") as folder:
            path = Path(folder) / "weights.safetensors"
            await asyncio.to_thread(write_weights, weights, path)
            self._take(
                await self._channel.upload(
                    path,
                    version=version,
                    fingerprint=weights.fingerprint,
                    **({"policy": self._policy} if self._policy else {}),
                )
            )
        self._weights = None

    def _take(self, state: Any) -> None:
        """Store the state that the server reports about its policy."""
        self._version, self._fingerprint = int(state["policy_version"]), str(state["fingerprint"])
        self._metrics = dict(state.get("metrics", {}))


@final
class _Channel:
    """The connections to one server, and the properties that the server reported."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self.where = f"the engine at {self._base_url}"
        headers, timeout = headers_of(api_key), httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=None)
        try:
            answer = httpx.get(f"{self._base_url}/v1/engine", headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise ServiceError(f"{unreachable(self.where, error)}. Start the engine, and check the address.") from error
        self.hello: dict[str, Json] = decode(answer, self.where, otherwise=ServiceError)
        check_protocol(self.hello, self.where, "engine")
        self.capabilities = from_json(EngineCapabilities, self.hello["capabilities"])
        self.max_context_tokens = int(self.hello["max_context_tokens"])
        self._client = Client(base_url, headers=headers, timeout=timeout)
        self._announced: list[tuple[str, bool]] = []
        """The sessions that were opened or closed, in order, and that the server does not know about yet."""
        self._flushing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def announce(self, session_id: str, *, is_open: bool) -> None:
        """Announce a session soon and in order, and no later than with the next request."""
        self._announced.append((session_id, is_open))
        with suppress(RuntimeError):  # without a running loop, the next request sends the announcement
            task = asyncio.get_running_loop().create_task(self._flush_quietly())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _flush_quietly(self) -> None:
        with suppress(InfrastructureError, ServiceError):  # the next request tries again and reports the error
            await self.flush()

    async def flush(self) -> None:
        """Send the announcements that have not been sent yet. Raises InfrastructureError if the server cannot be
        reached."""
        async with self._flushing:
            while self._announced:
                batch = self._announced[:]
                await self.post("/v1/sessions", {"sessions": batch})
                del self._announced[: len(batch)]

    async def post(self, path: str, body: Json) -> Any:
        try:
            answer = await self._client.post(
                self._base_url + path, content=dumps(body), headers={"content-type": "application/json"}
            )
        except httpx.HTTPError as error:
            raise InfrastructureError(f"{unreachable(self.where, error)}. See the engine's log.") from error
        return decode(answer, self.where, otherwise=InfrastructureError)

    async def lines(self, path: str, body: Json) -> AsyncGenerator[dict[str, Json]]:
        """Yield the lines of a streamed response. If the server stops responding, the response breaks off."""
        try:
            async with self._client.stream(
                "POST", self._base_url + path, content=dumps(body), headers={"content-type": "application/json"}
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    decode(answer, self.where, otherwise=InfrastructureError)
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield json.loads(line)
        except (httpx.HTTPError, ValueError) as error:
            raise InfrastructureError(f"{unreachable(self.where, error)}. See the engine's log.") from error

    async def upload(self, path: Path, **query: str | int) -> Any:
        async def pieces() -> AsyncIterator[bytes]:
            with path.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                    yield piece

        try:
            answer = await self._client.post(
                f"{self._base_url}/v1/weights",
                params=query,
                content=pieces(),
                timeout=httpx.Timeout(SILENCE_SECONDS, read=LOAD_SECONDS, pool=None),
            )
        except httpx.HTTPError as error:
            raise ServiceError(f"{unreachable(self.where, error)}. Restart the engine, and resume the run.") from error
        return decode(answer, self.where, otherwise=ServiceError)

    async def close(self) -> None:
        with suppress(InfrastructureError, ServiceError):
            async with asyncio.timeout(SILENCE_SECONDS):
                await self.flush()
        await self._client.aclose()
