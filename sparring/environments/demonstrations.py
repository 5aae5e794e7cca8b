"""Runs scripted episodes against the real environment, so that demonstrations contain real tool results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparring.environments.base import Environment, available_schemas, opened, reset
from sparring.environments.calls import execute
from sparring.errors import DataError
from sparring.types import Json, Message, Task, ToolSchema


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a demonstration during which the same tools are available: `messages[first:]`. The messages before it
    are its context."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema]
    """The tools that the chat template lists."""
    first: int = 0


def tool_call(name: str, /, **arguments: Json) -> Message:
    """Return the assistant message that calls one tool."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def answer(content: str) -> Message:
    """Return the assistant message that ends an episode."""
    return {"role": "assistant", "content": content}


def record_demonstration(
    environment_class: Callable[[], Environment], task: Task, messages: Sequence[Message] | None = None
) -> list[Message]:
    """Return the whole conversation of a scripted episode: the opening messages, the assistant messages, and the real
    results of the tools.

    `messages` are the assistant's messages; the default is the environment's own `demonstrate(task)`. The last message
    is an answer, or makes the call at which the environment ends the episode (`is_done`). Raises DataError if a
    scripted call fails, because a demonstration of an error teaches errors. Also raises DataError if the script and the
    episode do not end together.
    """
    return list(record_segments(environment_class, task, messages)[-1].messages)


def record_segments(
    environment_class: Callable[[], Environment], task: Task, messages: Sequence[Message] | None = None
) -> list[Segment]:
    """Return the conversation of `record_demonstration`, divided where the available tools change, because the policy
    gets a different prompt from that point on. The last segment has all messages. Raises the same errors."""
    playing = _play(environment_class(), task, messages)
    if not _is_in_event_loop():
        # The factory keeps the thread's own event loop, which `asyncio.run` would replace by None.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(playing)
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, playing).result()


def _is_in_event_loop() -> bool:
    """Return whether the caller runs inside an event loop, for example in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def expert_script(make_environment: Callable[[], Environment], task: Task) -> list[Message]:
    """Return the messages of the environment's scripted expert. Raises UsageError if there is no expert."""
    environment = make_environment()
    async with opened(environment, task):
        await reset(environment, task)
        return list(environment.demonstrate(task))


async def _play(environment: Environment, task: Task, script: Sequence[Message] | None) -> list[Segment]:
    async with opened(environment, task):
        messages = await reset(environment, task)
        tools, first = available_schemas(environment), 0
        segments: list[Segment] = []
        for turn, message in enumerate(environment.demonstrate(task) if script is None else script):
            if messages[-1]["role"] == "tool" and environment.is_done:
                raise DataError(
                    f"Task {task.id}: the environment ends the episode after message {turn} of the demonstration, so a policy "
                    "would not get another turn; end the script there."
                )
            if turn and (now := available_schemas(environment)) != tools:
                last = max(index for index, one in enumerate(messages) if one["role"] == "assistant")
                segments.append(Segment(tuple(messages[: last + 1]), tools, first))
                tools, first = now, len(messages)
            # These are the ids that sessions assign, so recorded and sampled conversations look the same.
            calls = [{**call, "id": f"call_{turn}_{index}"} for index, call in enumerate(message.get("tool_calls", ()))]
            messages.append({**message, "tool_calls": calls} if calls else message)
            for call in calls:
                function = call["function"]
                result = await execute(environment, function["name"], function["arguments"])
                if result.error is not None:
                    raise DataError(
                        f"Task {task.id}: the demonstration makes an invalid call of {function['name']} ({result.content}); "
                        "correct the script, or the tool."
                    )
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.content})
        if messages[-1]["role"] == "tool" and not environment.is_done:
            raise DataError(
                f"Task {task.id}: the demonstration ends with a call, but the environment continues; end the script with an "
                "answer, or with the call at which the environment ends the episode."
            )
        return [*segments, Segment(tuple(messages), tools, first)]
