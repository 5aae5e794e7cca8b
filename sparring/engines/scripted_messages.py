"""An engine that answers with messages from a script, for dry runs, constant policies, baselines and scripted
experts."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, final

from sparring.errors import ConstraintError, DataError, SparringError, UsageError
from sparring.protocols import DeltaCallback
from sparring.runtime.plugins import call
from sparring.types import AnswerFormat, EngineCapabilities, Message, MessageAnswer, MessageRequest, StopReason, Task

MessageScript: TypeAlias = Callable[[Sequence[Message]], Message | str | Awaitable[Message | str]]
"""A function from the messages so far to the assistant's next message, or to its text."""


@final
class ScriptedMessages:
    """Implements `protocols.MessageEngine` with a function, or with fixed messages.

    With fixed messages, the n-th message is the assistant's n-th answer. After the last message, that message is
    repeated.

        engine = ScriptedMessages([tool_call("get", key="b"), "done"], name="constant")
    """

    def __init__(self, script: MessageScript | Sequence[Message | str], *, name: str) -> None:
        """Create an engine. `name` appears in evaluations. Raises DataError for an empty list, and for a message whose
        content is not text."""
        if not callable(script):
            if not script:
                raise DataError(f"The script {name} contains no message; provide at least one.")
            for place, message in enumerate(script, start=1):
                if problem := _no_text(message):
                    raise DataError(f"The script {name}, message {place}: {problem}")
        self._script = script
        self._name = name

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities()

    @property
    def fingerprint(self) -> str:
        return f"scripted:{self._name}"

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        """Return the next message of the script. Raises UsageError if the function fails or does not return an
        assistant message, and ConstraintError for an answer format, which a script cannot apply."""
        if request.answer_format != AnswerFormat():
            raise ConstraintError("A script cannot apply an answer format; remove tool_choice and the format.")
        written = await self._next_message(request.messages)
        message = {"role": "assistant", "content": written} if isinstance(written, str) else written
        if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
            raise UsageError(
                f"The script {self._name} returned {message!r}; it must return an assistant message or a text."
            )
        if problem := _no_text(message):
            raise UsageError(f"The script {self._name} returned {message!r}: {problem}")
        whole = {**message, "role": "assistant", "content": message.get("content") or ""}
        if whole.get("tool_calls"):
            try:
                whole["tool_calls"] = [_spelt_out(one) for one in whole["tool_calls"]]
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise UsageError(
                    f"The script {self._name} returned {message!r}, with tool calls that cannot be read ({error!r}); a call is "
                    '{"function": {"name": ..., "arguments": {...}}}.'
                ) from error
        if on_delta is not None:
            on_delta({key: whole[key] for key in ("reasoning_content", "content") if whole.get(key)})
        return MessageAnswer(message=whole, stop_reason=StopReason.STOP)

    async def close(self) -> None:
        """Do nothing: a script has no resources."""

    async def _next_message(self, messages: Sequence[Message]) -> Message | str:
        if not callable(self._script):
            num_written = sum(message.get("role") == "assistant" for message in messages)
            return self._script[min(num_written, len(self._script) - 1)]
        try:
            return await call(self._script, copy.deepcopy(list(messages)))
        except SparringError:
            raise
        except Exception as error:
            raise UsageError(f"The script {self._name} raised {error!r}; correct it.") from error


@final
class ScriptedEpisodes:
    """Implements `protocols.MessageEngine` with one script per episode, such as the script of an expert that knows the
    task.

    `introduce` must be called before the episode's first turn. When the script is exhausted, answers are empty.
    """

    def __init__(self, script_of: Callable[[Task], Awaitable[Sequence[Message]]], *, name: str) -> None:
        self._script_of = script_of
        self._name = name
        self._scripts: dict[str, ScriptedMessages] = {}

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities()

    @property
    def fingerprint(self) -> str:
        return f"scripted:{self._name}"

    async def introduce(self, task: Task, session_id: str) -> None:
        """Use the script of a task in a session. Raises any error that `script_of` raises."""
        self._scripts[session_id] = ScriptedMessages([*await self._script_of(task), ""], name=self._name)

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        """Return the next message of the episode's script. Raises the same errors as `ScriptedMessages.answer`."""
        return await self._scripts[request.session_id].answer(request, on_delta)

    async def close(self) -> None:
        """Do nothing: a script has no resources."""


def read_script(path: Path) -> list[Message]:
    """Return the assistant's messages from a .jsonl file, one per line. Raises DataError, which gives the number of the
    invalid line."""
    if not path.is_file():
        raise DataError(f"engine.script: {path} does not exist; specify a .jsonl file with one message per line.")
    messages = []
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Provide a text file with one message as JSON per line."
        ) from error
    for row, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {row}: {error}; every line must be a message in JSON.") from error
        if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
            raise DataError(
                f"{path}, line {row}: {line[:80]} is not an assistant message; a script contains only assistant messages."
            )
        if problem := _no_text(message):
            raise DataError(f"{path}, line {row}: {problem}")
        messages.append(message)
    return messages


def _no_text(message: Message | str) -> str | None:
    """Return a description of a field that must be text but is not, with advice, or None if there is no such field."""
    fields = message if isinstance(message, dict) else {}
    for key in ("content", "reasoning_content"):
        if not isinstance(fields.get(key), str | None):
            return f"its {key} is {fields[key]!r}; write text (also for JSON), or remove the key."
    return None


def _spelt_out(call: Message) -> Message:
    """Return a call in the format of endpoints, with arguments as JSON text. The id is left out, because a script
    repeats its calls."""
    arguments = call["function"].get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "function": {"name": str(call["function"]["name"]), "arguments": text}}
