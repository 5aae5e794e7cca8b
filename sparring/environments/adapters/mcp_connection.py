"""A session with a Model Context Protocol server. Any failure of the server is an InfrastructureError."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TextIO, cast, final

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INVALID_PARAMS, CallToolResult, Tool

from sparring.environments.calls import ToolFailure
from sparring.errors import InfrastructureError
from sparring.types import Json

_LAST_WORDS = 1000
"""The number of bytes from the end of a server's standard error that an error message quotes."""


@final
class McpConnection:
    """A session that a dedicated asyncio task keeps open. The SDK requires that the task that opened the streams also
    closes them."""

    def __init__(
        self,
        transport: AbstractAsyncContextManager[object],
        *,
        name: str,
        start_seconds: float,
        call_seconds: float,
        last_words: Callable[[], str] = str,
    ) -> None:
        """`name` is the server's name in error messages. `last_words` returns the end of the server's standard
        error."""
        self._transport = transport
        self._name = name
        self._start_seconds = start_seconds
        self._call_seconds = call_seconds
        self._last_words = last_words
        self._closing = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None
        self._client: Client | None = None

    async def open(self) -> None:
        """Open the session. Raises InfrastructureError if that fails or takes longer than `start_seconds`."""
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(opened))
        try:
            async with asyncio.timeout(self._start_seconds):
                self._client = await opened
        except TimeoutError as error:
            raise self._failed(f"did not start a session within {self._start_seconds:g} s") from error

    async def list_tools(self) -> list[Tool]:
        """Return the tools from all pages of the list."""
        assert self._client is not None, "the connection is not open"
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            try:
                page = await self._client.list_tools(cursor=cursor)
            except Exception as error:
                raise self._failed(f"did not list its tools: {_describe(error)}") from error
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools

    async def call(self, name: str, arguments: Mapping[str, Json]) -> CallToolResult:
        """Call a tool. Raises ToolFailure if the server rejects the arguments."""
        assert self._client is not None, "the connection is not open"
        try:
            return await self._client.call_tool(name, dict(arguments), read_timeout_seconds=self._call_seconds)
        except Exception as error:
            if isinstance(error, MCPError) and error.code == INVALID_PARAMS:
                raise ToolFailure(f"{name}: {error.message}") from error
            raise self._failed(f"failed in the tool {name!r}: {_describe(error)}") from error

    async def close(self) -> None:
        """End the session, and the server if the transport started it."""
        if self._holding is None:
            return
        self._closing.set()
        if self._client is None:
            self._holding.cancel()
        await asyncio.wait([self._holding])

    async def _hold(self, opened: asyncio.Future[Client]) -> None:
        try:
            async with Client(self._transport, read_timeout_seconds=self._call_seconds) as client:  # type: ignore[arg-type]
                opened.set_result(client)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 (reported to `open`; after that, the calls themselves fail)
            if not opened.done():
                opened.set_exception(self._failed(f"cannot be used: {_describe(error)}"))

    def _failed(self, how: str) -> InfrastructureError:
        words = self._last_words().strip()
        return InfrastructureError(
            f"{self._name} {how}." + (f" The end of its standard error: {words}" if words else "")
        )


def to_process(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    folder: str | None,
    start_seconds: float,
    call_seconds: float,
) -> McpConnection:
    """Return a connection that starts and ends its own server. The server inherits PATH, HOME and similar variables,
    and no others."""
    program, *arguments = command
    parameters = StdioServerParameters(command=program, args=arguments, env=dict(variables), cwd=folder)
    last_words = _LastWords()

    @asynccontextmanager
    async def transport() -> AsyncIterator[object]:
        with last_words.kept() as errors:
            async with stdio_client(parameters, errlog=errors) as streams:
                yield streams

    return McpConnection(
        transport(),
        name=f"the MCP server {' '.join(command)!r}",
        start_seconds=start_seconds,
        call_seconds=call_seconds,
        last_words=last_words,
    )


def to_url(url: str, *, key: str | None, start_seconds: float, call_seconds: float) -> McpConnection:
    """Return a connection to a running server, over streamable HTTP."""

    @asynccontextmanager
    async def transport() -> AsyncIterator[object]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # The session, not the HTTP client, limits the duration of a response.
        timeout = httpx2.Timeout(start_seconds, read=None)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as client,
            streamable_http_client(url, http_client=client) as streams,
        ):
            yield streams

    return McpConnection(
        transport(), name=f"the MCP server at {url}", start_seconds=start_seconds, call_seconds=call_seconds
    )


@final
class _LastWords:
    """The last part of a process's standard error."""

    def __init__(self) -> None:
        self._file: TextIO | None = None
        self._text = ""

    def __call__(self) -> str:
        if self._file is not None:
            # The process writes at the position of this file, so reading must not move it.
            size = os.fstat(self._file.fileno()).st_size
            start = max(0, size - _LAST_WORDS)
            self._text = os.pread(self._file.fileno(), _LAST_WORDS, start).decode("utf-8", "replace")
        return self._text

    @contextmanager
    def kept(self) -> Iterator[TextIO]:
        with tempfile.TemporaryFile("w") as file:
            self._file = cast(TextIO, file)
            try:
                yield self._file
            finally:
                self()
                self._file = None


def _describe(error: BaseException) -> str:
    """Return an exception as one line of text. For an exception group, the line describes the underlying exception."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
