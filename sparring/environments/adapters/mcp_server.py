"""Tools of a Model Context Protocol server (https://modelcontextprotocol.io), connected through its standard streams or
over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from mcp.types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from sparring.config import key_from
from sparring.environments.adapters import mcp_connection
from sparring.environments.adapters.adapter import Adapter, waited
from sparring.environments.adapters.mcp_connection import McpConnection
from sparring.environments.calls import Observation, ToolFailure
from sparring.environments.schema_tools import SchemaTool
from sparring.errors import InfrastructureError, ServiceError
from sparring.types import Json, Message, Task


class McpServer(Adapter):
    """The common base class of both transports. A recipe names `McpProcess` or `McpService` instead.

    The model sees the errors that a tool reports, and the error when the server rejects arguments. A server that dies,
    exceeds a time limit or violates the protocol causes an InfrastructureError.
    """

    _connection: McpConnection | None = None

    def connection(self, task: Task | None) -> McpConnection:
        """Return an unopened connection for one episode. Without a task, the connection is for listing the tools."""
        raise NotImplementedError

    @classmethod
    def list_tools(cls, **options: Any) -> Iterable[SchemaTool]:
        return waited(_listed(cls(**options).connection(None)))

    async def reset(self, task: Task) -> Sequence[Message] | None:
        self._connection = self.connection(task)
        await self._connection.open()
        return None

    async def call_listed(self, name: str, arguments: Mapping[str, Json]) -> Observation:
        assert self._connection is not None, "the environment was not reset"
        result = await self._connection.call(name, arguments)
        answer = flattened(result)
        if result.is_error:
            raise ToolFailure(answer.content or f"{name} failed")
        return answer

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class McpProcess(McpServer):
    """A separate server process for every episode, started with a command and connected through its standard
    streams."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        folder: str | None = None,
        start_seconds: float = 30.0,
        call_seconds: float = 60.0,
    ) -> None:
        """`command` is a program with its arguments. It runs in `folder`, with `variables` in addition to PATH, HOME
        and similar variables."""
        self._command = tuple(command)
        self._variables = dict(variables or {})
        self._folder = folder
        self._start_seconds = start_seconds
        self._call_seconds = call_seconds

    def variables_of(self, task: Task) -> Mapping[str, str]:
        """Return additional environment variables for this task's server, such as its seed. The default is none."""
        return {}

    def connection(self, task: Task | None) -> McpConnection:
        return mcp_connection.to_process(
            self._command,
            variables={**self._variables, **({} if task is None else self.variables_of(task))},
            folder=self._folder,
            start_seconds=self._start_seconds,
            call_seconds=self._call_seconds,
        )


class McpService(McpServer):
    """One server for all episodes, connected over streamable HTTP, with a separate session for each episode.

    Sparring cannot reset state that the server keeps between sessions.
    """

    persists: ClassVar[tuple[str, ...]] = ("server",)

    def __init__(
        self, url: str, api_key_env: str | None = None, start_seconds: float = 30.0, call_seconds: float = 60.0
    ) -> None:
        """`api_key_env` is the name of the environment variable that contains a bearer token."""
        self._url = url
        self._key = key_from(api_key_env)
        self._start_seconds = start_seconds
        self._call_seconds = call_seconds

    def connection(self, task: Task | None) -> McpConnection:
        return mcp_connection.to_url(
            self._url, key=self._key, start_seconds=self._start_seconds, call_seconds=self._call_seconds
        )


def flattened(result: CallToolResult) -> Observation:
    """Return a result as text, with one line for each part. Images, audio and binary resources are named but not
    shown."""
    if not result.content and result.structured_content is not None:
        return Observation(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    lines, repairs = [], []
    for part in result.content:
        text = _text_of(part)
        if text is None:
            text = f"[{_name_of(part)}]"
            repairs.append(f"result: a part of type {part.type} became {text}")
        lines.append(text)
    return Observation("\n".join(lines), repairs=repairs)


def _text_of(part: ContentBlock) -> str | None:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, EmbeddedResource) and isinstance(part.resource, TextResourceContents):
        return part.resource.text
    return None


def _name_of(part: ContentBlock) -> str:
    if isinstance(part, ImageContent | AudioContent):
        return part.mime_type
    return str(part.uri if isinstance(part, ResourceLink) else part.resource.uri)  # type: ignore[union-attr]


async def _listed(connection: McpConnection) -> list[SchemaTool]:
    try:
        await connection.open()
        tools = await connection.list_tools()
    except InfrastructureError as error:
        raise ServiceError(
            f"{error} Therefore its tools cannot be listed. Start the server, or correct environment.options."
        ) from error
    finally:
        await connection.close()
    return [SchemaTool(tool.name, tool.description or "", tool.input_schema) for tool in tools]
