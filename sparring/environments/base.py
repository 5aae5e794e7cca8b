"""The base class of environments, and the guarantee that each is closed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Literal

from sparring.environments.tools import ToolLike, tools_of
from sparring.errors import InfrastructureError, SparringError, UsageError
from sparring.protocols import SessionLike
from sparring.runtime.faults import fault_point
from sparring.runtime.plugins import call
from sparring.types import Json, Message, Task, ToolSchema

CLOSE_SECONDS = 30.0
"""How long an asynchronous `close` may take before it counts as failed."""

EVALUATION_ONLY = "evaluation_only"
"""The field of a task with the reason why it must not be trained on; tasks without it may be trained on."""

REPAIRS = "repairs"
"""The field of a task that lists what was changed in its source, and the entry of a transition that lists what an adapter
changed in a result. `sparring check` shows these texts."""


class Environment:
    """Base class of environments. Mark methods with `@tool`; every episode gets a new object.

        class Library(Environment):
            @tool
            def find(self, title: str) -> str:
                "Shelf of a book."
                return self.shelves.get(title, "unknown")

    Methods may be sync or async. Sync ones run on the event loop of all episodes, or of those in a worker process
    (`environment.workers`): make slow ones async.
    """

    describe_tools: ClassVar[Literal["schema", "prompt"]] = "schema"
    """`schema`: the chat template lists the tools. `prompt`: the task's own messages describe them, and nothing is
    added, which saves tokens with small models; calls are parsed and checked all the same."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if callable(vars(cls).get("is_done")):
            raise UsageError(
                f"{cls.__name__}.is_done is a method, which always counts as true, so each episode would end after its first "
                "tool call. Write @property above it."
            )
        if callable(vars(cls).get("available_tools")):
            raise UsageError(
                f"{cls.__name__}.available_tools is a method, which is no list of names. Write @property above it."
            )

    def reset(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Prepare the state; return opening messages, or None for the task's own."""
        return None

    def reply(self, messages: Sequence[Message], session: SessionLike) -> str | Awaitable[str | None] | None:
        """Return the user's reply to the last of `messages`, which has no tool calls; None, as here, ends the episode.

        A policy that the recipe names may act as the user: call `session.of(name).chat`, or return the reply of a
        `UserSimulator`.
        """
        return None

    def final_state(self) -> Json | Awaitable[Json]:
        """Return the state at the end of the episode, for scorers (`scorers.state_difference`); it is never shown to the policy.
        None, as here, means no state."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release what the environment holds. Called exactly once, however the episode ended, also when `reset` failed."""
        return None

    @property
    def is_done(self) -> bool:
        """Whether the episode is over; read after each tool call."""
        return False

    @property
    def available_tools(self) -> Collection[str] | None:
        """The names of the tools that the next turn may call; None, as here, for all of `tools()`.

        Read before every turn. Where the names change, the next turn begins a new segment: its prompt is rendered again with the
        schemas of the tools that are available now, and its branch reason names them. Each change costs a whole prompt.
        """
        return None

    def demonstrate(self, task: Task) -> Sequence[Message]:
        """Return the assistant messages of a perfect episode, in order. The warm start learns from them."""
        raise UsageError(
            f"{type(self).__name__} has no scripted expert, so there is nothing to demonstrate; "
            "define `demonstrate(task)`, or set warm_start.demonstrations to a function or a file."
        )

    @classmethod
    def with_options(cls, **options: Any) -> type[Environment]:
        """Return the class to use with a recipe's options: this one, unless its tools depend on them (see `Adapter`)."""
        return cls

    @classmethod
    def evaluation_only(cls, **options: Any) -> str | None:
        """Return why training in this environment is not allowed under these options; None, as here, where it is."""
        return None

    @classmethod
    def tools(cls) -> Mapping[str, ToolLike]:
        """Return the tools by name. Raises UsageError when a signature cannot become a schema."""
        return tools_of(cls)

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Json:
        """Run one of `tools()` with arguments that fit it; `calls.execute` handles what it raises."""
        fault_point("environment.tool")
        return await call(getattr(self, name), **arguments)

    @classmethod
    def tool_schemas(cls) -> tuple[ToolSchema, ...]:
        """Return all tools in the OpenAI shape. Raises UsageError when a signature cannot become a schema."""
        return tuple(tool.schema for tool in cls.tools().values())

    @classmethod
    def offered_tools(cls) -> tuple[ToolSchema, ...]:
        """Return the tools that every turn passes to the chat template; none when the prompt describes them."""
        return cls.tool_schemas() if cls.describe_tools == "schema" else ()


def available_tools(environment: Environment) -> Mapping[str, ToolLike]:
    """Return the tools that the next turn may call, by name, in the order of `tools()`. Raises UsageError for unknown names."""
    tools, names = environment.tools(), environment.available_tools
    if names is None:
        return tools
    unknown = [names] if isinstance(names, str) else sorted(set(names) - set(tools))
    if unknown:
        raise UsageError(
            f"{type(environment).__name__}.available_tools names {', '.join(map(repr, unknown))}, and the tools are "
            f"{', '.join(tools)}; return a collection of their names, or None for all."
        )
    return {name: tool for name, tool in tools.items() if name in names}


def available_schemas(environment: Environment) -> tuple[ToolSchema, ...]:
    """Return the schemas that the chat template lists at the next turn: the available ones of `offered_tools()`. Raises
    UsageError as `available_tools` does."""
    offered = environment.offered_tools()
    if environment.available_tools is None:
        return offered
    available = available_tools(environment)
    return tuple(schema for schema in offered if schema["function"]["name"] in available)


@asynccontextmanager
async def opened(environment: Environment, task: Task) -> AsyncIterator[Environment]:
    """Close the environment exactly once, however the block is left: return, error, timeout or cancellation.

    Raises InfrastructureError when closing fails after an episode that went well; otherwise the first failure stands.
    """
    try:
        yield environment
    except BaseException:
        with suppress(InfrastructureError):
            await _close(environment, task)
        raise
    await _close(environment, task)


async def reset(environment: Environment, task: Task) -> list[Message]:
    """Reset the environment and return the opening messages. Raises InfrastructureError when that fails."""
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
            "give one of both."
        )
    return messages


async def reply(environment: Environment, messages: Sequence[Message], session: SessionLike, task: Task) -> str | None:
    """Return the user's next message, None at the end. Raises InfrastructureError when the environment fails."""
    name = type(environment).__name__
    try:
        text = await call(environment.reply, messages, session)
    except SparringError:
        raise
    except Exception as error:
        raise InfrastructureError(f"Task {task.id}: {name}.reply failed: {error!r}.") from error
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{name}.reply returned {text!r:.60}; return the user's text, or None to end.")
    return text


async def final_state(environment: Environment, task: Task) -> Json:
    """Return a copy of the environment's present state. Raises InfrastructureError when the environment fails."""
    try:
        return copy.deepcopy(await call(environment.final_state))
    except SparringError:
        raise
    except Exception as error:
        name = type(environment).__name__
        raise InfrastructureError(f"Task {task.id}: {name}.final_state failed: {error!r}.") from error


async def _close(environment: Environment, task: Task) -> None:
    closing = asyncio.ensure_future(_close_in_time(environment, task))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        # A cancellation must not leave the environment half closed.
        with suppress(InfrastructureError):
            await closing
        raise


async def _close_in_time(environment: Environment, task: Task) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            fault_point("environment.close")
            await call(environment.close)
    except Exception as error:
        name = type(environment).__name__
        raise InfrastructureError(f"Task {task.id}: {name}.close failed: {error!r}.") from error
