"""The common parts of adapters: tools that depend on a recipe's options, and observations in the opening message."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from sparring.environments.base import Environment
from sparring.environments.schema_tools import SchemaTool
from sparring.environments.tools import ToolLike, tools_of
from sparring.errors import UsageError
from sparring.runtime.plugins import call
from sparring.types import Json, Message, Task

Result = TypeVar("Result")


class Adapter(Environment):
    """The base class for environments that come from another library. A subclass defines which tools exist and how a
    tool is called.

    `with_options` is called once for a recipe and returns a subclass that has the tools. Episodes run with that
    subclass. In Python:

        environment_class = McpServer.with_options(**options)
        agent = EnvironmentAgent(lambda: environment_class(**options), max_turns=8)

    A subclass may define further tools with `@tool`.
    """

    listed: ClassVar[Mapping[str, SchemaTool] | None] = None
    """The tools by name, in the listed order, or None before `with_options` is called."""

    @classmethod
    def list_tools(cls, **options: Any) -> Iterable[SchemaTool]:
        """Return the tools for these options, in the order in which the model sees them.

        Raises UsageError for invalid options, and ServiceError if a server does not list its tools.
        """
        raise NotImplementedError

    async def call_listed(self, name: str, arguments: Mapping[str, Json]) -> Json:
        """Run a listed tool with arguments that fit its schema.

        Raises ToolFailure for an error that the model made, and InfrastructureError for any other failure.
        """
        raise NotImplementedError

    @classmethod
    def with_options(cls, **options: Any) -> type[Environment]:
        """Return the class with its tools. Raises UsageError if two tools have the same name, and the errors of
        `list_tools`."""
        tools = list(cls.list_tools(**options))
        listed = {tool.name: tool for tool in tools}
        twice = [tool.name for tool in tools if tool is not listed[tool.name] or tool.name in tools_of(cls)]
        if twice:
            raise UsageError(f"{cls.__name__} lists the tool {twice[0]!r} twice; rename one of them.")
        named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        return type(cls.__name__, (cls,), {**named, "listed": MappingProxyType(listed)})

    @classmethod
    def tools(cls) -> Mapping[str, ToolLike]:
        if cls.listed is None:
            raise UsageError(
                f"the tools of {cls.__name__} depend on its options; use the class that {cls.__name__}.with_options(...) "
                "returns."
            )
        return {**cls.listed, **tools_of(cls)}

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Json:
        if self.listed is not None and name in self.listed:
            return await call(self.call_listed, name, arguments)
        return await super().call_tool(name, arguments)


def opening_with(task: Task, text: str) -> list[Message]:
    """Return the task's messages with the first observation. It is appended to the last user message, or becomes a new
    user message."""
    *earlier, last = task.messages or ({"role": "user", "content": ""},)
    if last["role"] != "user" or not isinstance(last["content"], str):
        return [*task.messages, {"role": "user", "content": text}]
    return [*earlier, {**last, "content": f"{last['content']}\n\n{text}".strip()}]


def waited(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine and return its result. It runs in a separate thread because the caller may be inside an event
    loop."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, coroutine).result()
