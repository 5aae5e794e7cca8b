"""OpenEnv servers (https://github.com/meta-pytorch/OpenEnv). Each session is a series of `reset` and `step` messages
over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, final

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from sparring.environments.adapters.adapter import Adapter, opening_with, waited
from sparring.environments.calls import Observation, ToolFailure
from sparring.environments.schema_tools import SchemaTool
from sparring.errors import InfrastructureError, ServiceError
from sparring.types import Json, Message, Task

_MAX_MESSAGE_BYTES = 64 * 2**20
_CLOSE_SECONDS = 2.0
"""The number of seconds for a server to close the connection. A server that hangs never closes it."""
_OF_THE_MODEL = ("invalid_args", "tool_not_found", "execution_error")
"""Errors of a tool that the model can correct. All other errors are failures of the server."""


class OpenEnvServer(Adapter):
    """A running OpenEnv server. Each episode has its own session on the server, and therefore its own environment
    state.

    The fields of the server's action type are the arguments of the tool `step`. A server whose actions are tool calls
    offers those tools instead. Each transition logs `reward` and `done`; `adapters.episode_return` sums the rewards. A
    server that dies, exceeds a time limit, violates the protocol or raises an error in `step` causes an
    InfrastructureError. An environment that wants to report a bad action to the model must do so in its observation.

    The library's own client is not used, because it reconnects after a lost connection. The episode would then continue
    in a different environment.
    """

    def __init__(self, url: str, reset: Mapping[str, Json] | None = None, call_seconds: float = 60.0) -> None:
        """`url` is the server's address, http://host:port.

        `reset` is passed to the environment's `reset` for every task, in addition to the task's seed and id.
        """
        self._url = url.rstrip("/")
        self._reset = dict(reset or {})
        self._call_seconds = call_seconds
        self._session: _Session | None = None
        self._is_over = False

    @classmethod
    def list_tools(cls, **options: Any) -> Iterable[SchemaTool]:
        return waited(cls(**options)._list_tools())

    def reset_arguments(self, task: Task) -> Mapping[str, Json]:
        """Return the arguments of the environment's `reset` for a task. The server ignores arguments that it does not
        accept."""
        return {"seed": task.seed, "episode_id": task.id, **self._reset}

    def describe(self, observation: Mapping[str, Json]) -> str:
        """Return an observation as text for the model. By default, the text is the observation's fields as JSON."""
        fields = {name: value for name, value in observation.items() if name != "metadata"}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    async def reset(self, task: Task) -> list[Message]:
        """Reset the environment. The first observation follows the task's own text."""
        self._session = _Session(self._url, seconds=self._call_seconds)
        await self._session.open()
        answer = await self._session.ask("reset", self.reset_arguments(task))
        self._is_over = bool(answer.get("done"))
        text = self.describe(answer["observation"])
        return opening_with(task, text) if text != "{}" else list(task.messages)

    async def call_listed(self, name: str, arguments: Mapping[str, Json]) -> Observation:
        assert self._session is not None, "the environment was not reset"
        assert self.listed is not None
        if self._is_over:
            raise ToolFailure("the episode is over")
        if is_step := name == "step":
            action = dict(arguments)
        else:
            action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        answer = await self._session.ask("step", action)
        self._is_over = bool(answer.get("done"))
        observation, logged = answer["observation"], {"reward": answer.get("reward"), "done": self._is_over}
        if is_step:
            return Observation(self.describe(observation), logged)
        result, repairs = _tool_result(name, observation)
        return Observation(result, logged, repairs)

    @property
    def is_done(self) -> bool:
        return self._is_over

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def state(self) -> Mapping[str, Json]:
        """Return the episode's state from the server: `episode_id`, `step_count` and the environment's own fields."""
        assert self._session is not None, "the environment was not reset"
        return await self._session.ask("state")

    async def _list_tools(self) -> list[SchemaTool]:
        try:
            async with httpx.AsyncClient(timeout=self._call_seconds) as client:
                answer = await client.get(f"{self._url}/schema")
            schema = answer.raise_for_status().json()["action"]
            properties = schema.get("properties", {})
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServiceError(
                f"{self._url}/schema does not describe the actions of an OpenEnv server ({type(error).__name__}: {error}). Start "
                "the server, or correct environment.options.url."
            ) from error
        if properties.get("type", {}).get("const") not in ("call_tool", "list_tools"):
            return [SchemaTool("step", schema.get("description", "Take one action."), _arguments(schema))]
        session = _Session(self._url, seconds=self._call_seconds)
        try:
            await session.open()
            tools = (await session.ask("step", {"type": "list_tools"}))["observation"]["tools"]
        except InfrastructureError as error:
            raise ServiceError(f"{error} Therefore its tools cannot be listed.") from error
        finally:
            await session.close()
        return [SchemaTool(tool["name"], tool["description"], tool["input_schema"]) for tool in tools]


@final
class _Session:
    """A WebSocket with exactly one response to each request. A request is never repeated on a different socket."""

    def __init__(self, url: str, *, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self._socket: ClientConnection | None = None

    async def open(self) -> None:
        address = f"ws{self._url.removeprefix('http')}/ws"
        try:
            self._socket = await connect(
                address, open_timeout=self._seconds, close_timeout=_CLOSE_SECONDS, max_size=_MAX_MESSAGE_BYTES
            )
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            raise self._failed(f"cannot be reached: {type(error).__name__}: {error}") from error

    async def ask(self, kind: str, data: Mapping[str, Json] | None = None) -> Mapping[str, Json]:
        """Send a message of the given kind, and return the data of the response. Raises ToolFailure if the server
        rejects the format of an action."""
        assert self._socket is not None, "the session is not open"
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            async with asyncio.timeout(self._seconds):
                # A server that accepts no more sessions reports this and disconnects, possibly before the first
                # request.
                with suppress(ConnectionClosed):
                    await self._socket.send(json.dumps(message))
                answer = json.loads(await self._socket.recv())
        except TimeoutError as error:
            raise self._failed(f"did not answer {kind!r} within {self._seconds:g} s") from error
        except (OSError, WebSocketException, ValueError) as error:
            raise self._failed(f"failed during {kind!r}: {type(error).__name__}: {error}") from error
        answered = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(answered, dict) or answer.get("type") not in ("observation", "state", "error"):
            raise self._failed(f"answered {kind!r} with {str(answer)[:200]}, which is not a message of the protocol")
        if answer["type"] == "error":
            if kind == "step" and answered.get("code") == "VALIDATION_ERROR":
                raise ToolFailure(f"the action is not valid: {_problems(answered)}")
            hint = "; start it with a larger max_concurrent_envs" if answered.get("code") == "CAPACITY_REACHED" else ""
            raise self._failed(f"failed during {kind!r}: {answered.get('code')}: {answered.get('message')}{hint}")
        if answer["type"] == "observation" and not isinstance(answered.get("observation"), dict):
            raise self._failed(f"answered {kind!r} without an observation")
        return answered

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    def _failed(self, how: str) -> InfrastructureError:
        return InfrastructureError(f"the OpenEnv server at {self._url} {how}.")


def _arguments(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the schema of an action without the field `metadata`. Every action has this field, and no model needs to
    set it."""
    properties = {name: part for name, part in schema.get("properties", {}).items() if name != "metadata"}
    return {**{name: part for name, part in schema.items() if name != "description"}, "properties": properties}


def _problems(answered: Mapping[str, Json]) -> str:
    errors = answered.get("errors") or [{"msg": answered.get("message")}]
    return "; ".join(f"{'.'.join(map(str, error.get('loc', ())))} {error.get('msg')}".strip() for error in errors)


def _tool_result(name: str, observation: Mapping[str, Json]) -> tuple[Json, list[str]]:
    """Return the result of an environment's tool, and notes about the parts that are named but not shown. Raises the
    same errors as `call_listed`."""
    error = observation.get("error")
    if error is not None:
        if error.get("error_type") in _OF_THE_MODEL:
            raise ToolFailure(f"{name}: {error.get('message')}")
        raise InfrastructureError(f"the tool {name!r} of the OpenEnv server failed: {error}.")
    result = observation.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        return result, []
    # The result is in the format of the Model Context Protocol.
    kinds = [part.get("type") for part in result["content"] if "text" not in part]
    text = "\n".join(part.get("text", f"[{part.get('type')}]") for part in result["content"])
    if result.get("is_error"):
        raise ToolFailure(text or f"{name} failed")
    return text, [f"result: a part of type {kind} became [{kind}]" for kind in kinds]
