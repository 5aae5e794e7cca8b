"""The base class of environments, and the guarantee that each environment is closed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Literal

from sparring.environments.tools import ToolLike, tools_of
from sparring.errors import EnvironmentFailed, InfrastructureError, SparringError, UsageError
from sparring.protocols import SessionLike
from sparring.runtime.faults import fault_point
from sparring.runtime.plugins import call
from sparring.types import Json, Message, Task, ToolSchema

CLOSE_SECONDS = 30.0
"""The number of seconds that an asynchronous `close` may take before it counts as failed."""

EVALUATION_ONLY = "evaluation_only"
"""The field of a task that contains the reason why the task must not be trained on. Tasks without this field may be
trained on."""

REPAIRS = "repairs"
"""The field of a task that lists the changes to its source, and the entry of a transition that lists an adapter's
changes to a result. `sparring check` shows these texts."""


class Environment:
    """The base class of environments. Mark methods with `@tool`. Every episode gets a new object.

        class Library(Environment):
            @tool
            def find(self, title: str) -> str:
                "Shelf of a book."
                return self.shelves.get(title, "unknown")

    Methods may be sync or async. Sync methods run on the event loop of all episodes, or of the episodes in one worker
    process (`environment.workers`), so make slow methods async.
    """

    describe_tools: ClassVar[Literal["schema", "prompt"]] = "schema"
    """With `schema`, the chat template lists the tools. With `prompt`, the task's own messages describe the tools and
    nothing is added, which saves tokens with small models. Calls are parsed and checked in both cases."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if callable(vars(cls).get("is_done")):
            raise UsageError(
                f"{cls.__name__}.is_done is a method. A method always counts as true, so each episode would end after its first "
                "tool call. Write @property above it."
            )
        if callable(vars(cls).get("available_tools")):
            raise UsageError(
                f"{cls.__name__}.available_tools is a method, not a list of names. Write @property above it."
            )

    def reset(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Prepare the state. Return opening messages, or None to use the task's own messages."""
        return None

    def reply(self, messages: Sequence[Message], session: SessionLike) -> str | Awaitable[str | None] | None:
        """Return the user's reply to the last of `messages`, which has no tool calls. None, the default, ends the
        episode.

        One of the recipe's policies may act as the user. In this case, call `session.of(name).chat`, or return the
        reply of a `UserSimulator`.
        """
        return None

    def final_state(self) -> Json | Awaitable[Json]:
        """Return the state at the end of the episode, for use by scorers (`scorers.state_difference`). The state is
        never shown to the policy. None, the default, means that there is no state."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release the resources of the environment. This method is called exactly once, however the episode ends, even
        if `reset` failed."""
        return None

    @property
    def is_done(self) -> bool:
        """Whether the episode is over. This property is read after each tool call."""
        return False

    @property
    def available_tools(self) -> Collection[str] | None:
        """The names of the tools that the next turn may call. None, the default, allows all of `tools()`.

        This property is read before every turn. If the names change, the next turn starts a new segment. Its prompt is
        rendered again with the schemas of the tools that are now available, and its branch reason names these tools.
        Each change costs the processing of a whole prompt.
        """
        return None

    def demonstrate(self, task: Task) -> Sequence[Message]:
        """Return the assistant messages of a perfect episode, in order. The warm start trains on these messages."""
        raise UsageError(
            f"{type(self).__name__} has no scripted expert, so there is nothing to demonstrate; "
            "define `demonstrate(task)`, or set warm_start.demonstrations to a function or a file."
        )

    @classmethod
    def with_options(cls, **options: Any) -> type[Environment]:
        """Return the class to use with a recipe's options. The default is this class, unless its tools depend on the
        options (see `Adapter`)."""
        return cls

    @classmethod
    def evaluation_only(cls, **options: Any) -> str | None:
        """Return the reason why training in this environment is not allowed with these options. None, the default,
        allows training."""
        return None

    @classmethod
    def tools(cls) -> Mapping[str, ToolLike]:
        """Return the tools, keyed by name. Raises UsageError if a signature cannot become a schema."""
        return tools_of(cls)

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Json:
        """Run one of `tools()` with arguments that match its schema. `calls.execute` handles the exceptions."""
        fault_point("environment.tool")
        return await call(getattr(self, name), **arguments)

    @classmethod
    def tool_schemas(cls) -> tuple[ToolSchema, ...]:
        """Return all tools in OpenAI's format. Raises UsageError if a signature cannot become a schema."""
        return tuple(tool.schema for tool in cls.tools().values())

    @classmethod
    def offered_tools(cls) -> tuple[ToolSchema, ...]:
        """Return the tools that every turn passes to the chat template. The result is empty if the prompt describes the
        tools."""
        return cls.tool_schemas() if cls.describe_tools == "schema" else ()


def available_tools(environment: Environment) -> Mapping[str, ToolLike]:
    """Return the tools that the next turn may call, keyed by name, in the order of `tools()`. Raises UsageError for
    unknown names, and EnvironmentFailed if the property raises."""
    tools, names = environment.tools(), read_property(environment, "available_tools")
    if names is None:
        return tools
    unknown = [names] if isinstance(names, str) else sorted(set(names) - set(tools))
    if unknown:
        raise UsageError(
            f"{type(environment).__name__}.available_tools names {', '.join(map(repr, unknown))}, but the tools are "
            f"{', '.join(tools)}; return a collection of these names, or None for all tools."
        )
    return {name: tool for name, tool in tools.items() if name in names}


def available_schemas(environment: Environment) -> tuple[ToolSchema, ...]:
    """Return the schemas that the chat template lists in the next turn: those of `offered_tools()` that are available.
    Raises UsageError for unknown names."""
    offered = environment.offered_tools()
    if read_property(environment, "available_tools") is None:
        return offered
    available = available_tools(environment)
    return tuple(schema for schema in offered if schema["function"]["name"] in available)


def read_property(environment: Environment, name: Literal["is_done", "available_tools"]) -> Any:
    """Return the value of a property that user code computes. Raises EnvironmentFailed if this code raises."""
    try:
        return getattr(environment, name)
    except SparringError:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{type(environment).__name__}.{name} failed: {error!r}.") from error


@asynccontextmanager
async def opened(environment: Environment, task: Task) -> AsyncIterator[Environment]:
    """Close the environment exactly once, however the block ends: return, error, timeout or cancellation.

    Raises EnvironmentFailed or InfrastructureError if closing fails after an episode without errors. If several things
    fail, the first failure is raised.
    """
    try:
        yield environment
    except BaseException:
        with suppress(InfrastructureError):
            await _close(environment, task)
        raise
    await _close(environment, task)


async def reset(environment: Environment, task: Task) -> list[Message]:
    """Reset the environment and return the opening messages. Raises InfrastructureError if the reset fails."""
    name = type(environment).__name__
    try:
        fault_point("environment.reset")
        opening = await call(environment.reset, task)
    except SparringError:
        raise
    except Exception as error:
        raise InfrastructureError(f"Task {task.id}: {name}.reset failed: {error!r}.") from error
    messages = list(task.messages if opening is None else opening)
    if not messages:
        raise UsageError(
            f"Task {task.id} has no messages and {name}.reset returned none, so there is nothing to answer; "
            "provide messages in the task or in `reset`."
        )
    return messages


async def reply(environment: Environment, messages: Sequence[Message], session: SessionLike, task: Task) -> str | None:
    """Return the user's next message, or None at the end. Raises EnvironmentFailed if the environment's code raises."""
    name = type(environment).__name__
    try:
        text = await call(environment.reply, messages, session)
    except SparringError:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"Task {task.id}: {name}.reply failed: {error!r}.") from error
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{name}.reply returned {text!r:.60}; return the user's text, or None to end.")
    return text


async def final_state(environment: Environment, task: Task) -> Json:
    """Return a copy of the environment's current state. Raises EnvironmentFailed if the environment's code raises."""
    try:
        return copy.deepcopy(await call(environment.final_state))
    except SparringError:
        raise
    except Exception as error:
        name = type(environment).__name__
        raise EnvironmentFailed(f"Task {task.id}: {name}.final_state failed: {error!r}.") from error


async def _close(environment: Environment, task: Task) -> None:
    closing = asyncio.ensure_future(_close_in_time(environment, task))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        # A cancellation must not leave the environment partly closed.
        with suppress(InfrastructureError):
            await closing
        raise


async def _close_in_time(environment: Environment, task: Task) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            fault_point("environment.close")
            await call(environment.close)
    except Exception as error:
        failure = InfrastructureError if isinstance(error, InfrastructureError) else EnvironmentFailed
        raise failure(f"Task {task.id}: {type(environment).__name__}.close failed: {error!r}.") from error
