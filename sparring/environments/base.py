"""The world of one episode: a base class to derive from, and the guarantee that it is closed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Literal

from sparring.environments.tools import ToolLike, tools_of
from sparring.errors import InfrastructureError, SparringError, UsageError
from sparring.faults import fault_point
from sparring.plugins import call
from sparring.protocols import SessionLike
from sparring.types import Json, Message, Task, ToolSchema

CLOSE_SECONDS = 30.0
"""How long an asynchronous `close` may take before it counts as failed."""

EVALUATION_ONLY = "evaluation_only"
"""The field of a task that says why nobody may train on it; tasks without it may be trained on, whoever plays them."""

REPAIRS = "repairs"
"""The field of a task that lists what was changed of its source when it was made, and the entry of a transition that lists what
an adapter changed of a result: texts, which `sparring check` shows."""


class Environment:
    """Derive from this, mark methods with `@tool`; a fresh object is made for every episode.

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
        """Prepare the world; return opening messages, or None for the task's own."""
        return None

    def reply(self, messages: Sequence[Message], session: SessionLike) -> str | Awaitable[str | None] | None:
        """What the user says to a message without tool calls, the last of `messages`; None, as here, ends the episode.

        A policy that the recipe names may play the user: ask it at `session.of(name)`, or return what a `UserSimulator`
        replies.
        """
        return None

    def final_state(self) -> Json | Awaitable[Json]:
        """What the world is like when the episode is over, for scorers (`scorers.state_difference`); never shown to the policy.
        None, as here, says nothing."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Release what the world holds. Called on every exit path, exactly once, also when `reset` failed."""
        return None

    @property
    def is_done(self) -> bool:
        """True ends the episode after the tool call that made it so."""
        return False

    @property
    def available_tools(self) -> Collection[str] | None:
        """Names of the tools that the next turn may call; None, as here, for all of `tools()`.

        Read before every turn. Where the names change, the next turn begins a new segment: its prompt is rendered again with the
        schemas of the tools that are available now, and its branch reason names them. Each change computes the prompt again.
        """
        return None

    def demonstrate(self, task: Task) -> Sequence[Message]:
        """The assistant messages of a perfect episode, in order; the warm start learns from them."""
        raise UsageError(
            f"{type(self).__name__} has no scripted expert, so there is nothing to demonstrate; "
            "define `demonstrate(task)`, or set warm_start.demonstrations to a function or a file."
        )

    @classmethod
    def with_options(cls, **options: Any) -> type[Environment]:
        """The class that plays under a recipe's options: this one, unless its tools depend on them (see `Adapter`)."""
        return cls

    @classmethod
    def evaluation_only(cls, **options: Any) -> str | None:
        """Why nobody may train in this environment under these options; None, as here, where training is allowed."""
        return None

    @classmethod
    def tools(cls) -> Mapping[str, ToolLike]:
        """The tools by name. Raises UsageError when a signature cannot become a schema."""
        return tools_of(cls)

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Json:
        """Run one of `tools()` with arguments that fit it; `calls.execute` says what becomes of what it raises."""
        fault_point("environment.tool")
        return await call(getattr(self, name), **arguments)

    @classmethod
    def tool_schemas(cls) -> tuple[ToolSchema, ...]:
        """All tools in the OpenAI shape. Raises UsageError when a signature cannot become a schema."""
        return tuple(tool.schema for tool in cls.tools().values())

    @classmethod
    def offered_tools(cls) -> tuple[ToolSchema, ...]:
        """The tools that go to the chat template with every turn; none when the prompt describes them."""
        return cls.tool_schemas() if cls.describe_tools == "schema" else ()


def available_tools(environment: Environment) -> Mapping[str, ToolLike]:
    """The tools that the next turn may call, by name, in the order of `tools()`. Raises UsageError for names of no tool."""
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
    """What the chat template lists at the next turn: the available ones of `offered_tools()`. Raises UsageError as
    `available_tools` does."""
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
    """Prepare the world and return the opening messages. Raises InfrastructureError when it cannot be prepared."""
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
    """What the user says next, None at the end. Raises InfrastructureError when the environment fails over it."""
    name = type(environment).__name__
    try:
        said = await call(environment.reply, messages, session)
    except SparringError:
        raise
    except Exception as error:
        raise InfrastructureError(f"Task {task.id}: {name}.reply failed: {error!r}.") from error
    if said is not None and not isinstance(said, str):
        raise UsageError(f"{name}.reply returned {said!r:.60}; return the text that the user says, or None to end.")
    return said


async def final_state(environment: Environment, task: Task) -> Json:
    """What the world is like now, as a value of its own. Raises InfrastructureError when the environment fails over it."""
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
        # A cancellation must not leave the world half closed.
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
