"""Anthropic's Messages API (https://docs.anthropic.com/en/api/messages).

Content is a list of blocks. Calls and their results are also blocks, whereas sessions use separate messages for them.
Thinking blocks that a client sends back are dropped, because the session has the exact tokens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, final

import pydantic

from sparring.chat.messages import read_json
from sparring.gateway.dialects.events import named_event
from sparring.gateway.dialects.history import joined, text_of, tool_call
from sparring.gateway.dialects.validation import (
    MOST_MESSAGES,
    Count,
    Items,
    JsonSchema,
    Lenient,
    Parameters,
    StopText,
    Strict,
    ToolChoice,
    not_read,
    remembered,
    request_schema,
    validated,
)
from sparring.gateway.request import ApiError, Asked, Begin, End, FormatFields, Head, Part, Text
from sparring.types import AnswerFormat, Json, Message, StopReason, Turn

_ONLY: Mapping[str, tuple[Json, ...]] = {
    "compaction": (None,),
    "container": (None,),
    "fallbacks": (None, [], "default"),
    "mcp_servers": (None, []),
    "top_k": (None,),
}
"""Fields that are accepted only with these values, which change nothing."""

_INERT = frozenset(
    {
        "betas",
        "billing_policy",
        "cache_control",
        "diagnostics",
        "fallback_credit_token",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Fields that do not affect what is sampled."""

_TOOL_CHOICES: Mapping[str, ToolChoice] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}
"""Anthropic's tool choices with OpenAI's names."""

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
"""Error types by status (https://docs.anthropic.com/en/api/errors). Other statuses are invalid_request_error, or
api_error from 500 on."""


class _TextBlock(Lenient):
    type: Literal["text"]
    text: str


class _ToolUse(Lenient):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]

    @property
    def call(self) -> dict[str, Json]:
        return tool_call(self.id, self.name, json.dumps(self.input, ensure_ascii=False))


class _ToolResult(Lenient):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Items[_TextBlock] | None = None
    is_error: bool | None = None

    @property
    def message(self) -> Message:
        """Return the result as a message. An error is marked in the text, because the policy sees only the text."""
        text = text_of(self.content)
        is_unmarked = self.is_error and "error" not in text.lower()
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": f"Error: {text}" if is_unmarked else text}


class _Thinking(Lenient):
    type: Literal["thinking", "redacted_thinking"]


_UserBlock: TypeAlias = Annotated[_TextBlock | _ToolResult, pydantic.Field(discriminator="type")]
_AssistantBlock: TypeAlias = Annotated[_TextBlock | _ToolUse | _Thinking, pydantic.Field(discriminator="type")]


class _UserMessage(Lenient):
    role: Literal["user"]
    content: str | Annotated[Items[_UserBlock], pydantic.Field(min_length=1)]

    @property
    def messages(self) -> list[Message]:
        """Return the tool results as messages, then the user's other content."""
        if isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        results = [block.message for block in self.content if isinstance(block, _ToolResult)]
        texts = [block for block in self.content if isinstance(block, _TextBlock)]
        return [*results, {"role": "user", "content": text_of(texts)}] if texts else results


class _AssistantMessage(Lenient):
    role: Literal["assistant"]
    content: str | Items[_AssistantBlock]

    @property
    def messages(self) -> list[Message]:
        if isinstance(self.content, str):
            return [{"role": "assistant", "content": self.content}]
        text = text_of([block for block in self.content if isinstance(block, _TextBlock)])
        calls = [block.call for block in self.content if isinstance(block, _ToolUse)]
        return [{"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}]


class _SystemMessage(Lenient):
    role: Literal["system"]
    content: str | Items[_TextBlock]
    output_config: None = None

    @property
    def messages(self) -> list[Message]:
        return [{"role": "system", "content": text_of(self.content)}]


_AnyMessage: TypeAlias = Annotated[
    _UserMessage | _AssistantMessage | _SystemMessage, pydantic.Field(discriminator="role"), remembered()
]


class _Tool(Lenient):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: Parameters

    @property
    def plain(self) -> dict[str, Json]:
        """Return the tool in the format of chat completions."""
        about = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": {key: value for key, value in about.items() if value is not None}}


class _AnyTool(Strict):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class _ChosenTool(Strict):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


_ToolChoice: TypeAlias = Annotated[_AnyTool | _ChosenTool, pydantic.Field(discriminator="type")]


class _JsonSchema(Strict):
    type: Literal["json_schema"]
    schema_: JsonSchema = pydantic.Field(alias="schema")


class _OutputConfig(Strict):
    """The output options. The effort "high" is the default of Anthropic's models."""

    effort: Literal["high"] | None = None
    format: _JsonSchema | None = None
    task_budget: None = None


class _NoThinking(Strict):
    type: Literal["disabled"]


class _AdaptiveThinking(Strict):
    """Adaptive thinking, in which the model decides whether to think, as policies do here. The other fields apply to
    thinking blocks, which the gateway's answers do not contain."""

    type: Literal["adaptive"]
    display: str | None = None
    block_binding: Any = None


class _ClearThinking(Strict):
    """An edit that removes earlier thinking from the context. The edit has no effect, because earlier thinking is never
    read."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class _ContextManagement(Strict):
    edits: Items[_ClearThinking] | None = None


class _NewThread(Strict):
    type: Literal["create"]


class _ContinuedThread(Strict):
    type: Literal["continue"]
    previous_message_id: str


class _Request(Strict):
    """The request fields that the gateway reads."""

    model: str
    max_tokens: Count
    messages: Items[_AnyMessage] = pydantic.Field(
        min_length=1, max_length=MOST_MESSAGES, description="The last message has the role user."
    )
    system: str | Items[_TextBlock] | None = None
    tools: Items[_Tool] | None = None
    stop_sequences: Annotated[Items[StopText], pydantic.Field(max_length=16)] | None = None
    temperature: float | None = pydantic.Field(default=None, ge=0, le=1)
    top_p: float | None = pydantic.Field(default=None, gt=0, le=1)
    stream: bool | None = None
    tool_choice: _ToolChoice | None = None
    output_config: _OutputConfig | None = None
    thinking: Annotated[_NoThinking | _AdaptiveThinking, pydantic.Field(discriminator="type")] | None = None
    context_management: _ContextManagement | None = None
    thread: Annotated[_NewThread | _ContinuedThread, pydantic.Field(discriminator="type")] | None = pydantic.Field(
        default=None, description="Continues an answer of this episode that was requested with a thread."
    )

    @property
    def not_read(self) -> tuple[str, ...]:
        """Return the names of ignored fields, which were checked and cannot change the answer."""
        effort = self.output_config and self.output_config.effort
        given = {
            "thinking": isinstance(self.thinking, _AdaptiveThinking),
            "context_management": self.context_management,
            "output_config.effort": effort,
        }
        return tuple(field for field, is_given in given.items() if is_given)

    @property
    def answer_format(self) -> AnswerFormat:
        output = self.output_config and self.output_config.format
        # Anthropic's format has no name for the schema, and cannot request a schema that is not strict.
        named = {"name": "answer", "schema": output.schema_, "strict": True} if output else None
        choice = self.tool_choice
        return AnswerFormat(
            tool_choice="auto" if choice is None else _TOOL_CHOICES[choice.type],
            tool_name=choice.name if isinstance(choice, _ChosenTool) else None,
            parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
            response_format={"type": "json_schema", "json_schema": named} if named else None,
        )

    @property
    def plain_messages(self) -> list[Message]:
        """Return the messages in the form that sessions expect."""
        return joined(plain for message in self.messages for plain in message.messages)


_FORMAT_FIELDS = FormatFields(
    form="output_config.format",
    schema="output_config.format.schema",
    arguments="tools.{}.input_schema",
    parallel="tool_choice",
)


@final
class Messages:
    """Anthropic's Messages."""

    id_prefix = "msg_"

    def read(self, body: Json) -> Asked:
        request = validated(body, _Request, only=_ONLY, inert=_INERT)
        if request.messages[-1].role == "assistant":
            where = f"messages.{len(request.messages) - 1}.role"
            raise ApiError(
                400,
                f"{where}: the last message is the assistant's, but the policy cannot continue a partial answer; end with a "
                "user message.",
                code="invalid_value",
                param=where,
            )
        return Asked(
            model=request.model,
            messages=request.plain_messages,
            tools=[tool.plain for tool in request.tools or ()],
            instructions=text_of(request.system) or None,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            stop=tuple(request.stop_sequences or ()),
            answer_format=request.answer_format,
            format_fields=_FORMAT_FIELDS,
            stream=bool(request.stream),
            previous=request.thread.previous_message_id if isinstance(request.thread, _ContinuedThread) else None,
            previous_field="thread.previous_message_id",
            is_kept=request.thread is not None,
            is_thread=True,
            not_read=(*not_read(body, _Request, only=_ONLY, inert=_INERT), *request.not_read),
        )

    def request_schema(self, prefix: str) -> dict[str, Json]:
        return request_schema(_Request, prefix, only=_ONLY, inert=_INERT)

    def whole(self, asked: Asked, turns: Sequence[Turn], head: Head) -> Mapping[str, Json]:
        turn = turns[0]
        message = turn.message
        calls = message.get("tool_calls", ())
        content = [_text_block(message["content"])] if message["content"] or not calls else []
        content += [{**_tool_use_block(call), "input": _input(call)} for call in calls]
        return {**_message(head), "content": content, **_stop(turn), "usage": _usage(turn)}

    async def stream(self, asked: Asked, parts: AsyncIterator[Part], head: Head) -> AsyncIterator[bytes]:
        stream = _Stream(head)
        async for part in parts:
            for event in stream.events(part):
                yield event

    def error(self, error: ApiError) -> Mapping[str, Json]:
        kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(error)}}

    def error_event(self, error: ApiError, num_sent: int) -> bytes:
        return named_event(self.error(error))


@final
class _Stream:
    """The events of one answer. Each block has events that open it, fill it and close it."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._num_blocks = 0

    def events(self, part: Part) -> Iterator[bytes]:
        """Yield the events of a part. Calls are sent at the end of the answer."""
        match part:
            case Begin():
                # The number of prompt tokens is sent when the answer ends.
                usage = {"input_tokens": 0, "output_tokens": 0}
                message = {**_message(self._head), "content": [], "stop_reason": None, "stop_sequence": None}
                yield named_event({"type": "message_start", "message": {**message, "usage": usage}})
            case Text(_, text):
                if self._num_blocks == 0:
                    yield self._opened(_text_block(""))
                yield self._delta({"type": "text_delta", "text": text})
            case End(_, turn):
                yield from self._end(turn)

    def _opened(self, block: Mapping[str, Json]) -> bytes:
        self._num_blocks += 1
        return named_event({"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block})

    def _delta(self, delta: Mapping[str, Json]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._num_blocks - 1, "delta": delta})

    def _closed(self) -> bytes:
        return named_event({"type": "content_block_stop", "index": self._num_blocks - 1})

    def _end(self, turn: Turn) -> Iterator[bytes]:
        calls = turn.message.get("tool_calls", ())
        if self._num_blocks == 0 and not calls:
            yield self._opened(_text_block(""))
        if self._num_blocks > 0:
            yield self._closed()
        for call in calls:
            yield self._opened({**_tool_use_block(call), "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": json.dumps(_input(call))})
            yield self._closed()
        yield named_event({"type": "message_delta", "delta": _stop(turn), "usage": _usage(turn)})
        yield named_event({"type": "message_stop"})


def _message(head: Head) -> dict[str, Json]:
    return {"id": head.id, "type": "message", "role": "assistant", "model": head.model}


def _text_block(text: str) -> dict[str, Json]:
    return {"type": "text", "text": text}


def _tool_use_block(call: Mapping[str, Json]) -> dict[str, Json]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}


def _input(call: Mapping[str, Json]) -> Json:
    """Return the arguments of a call. An upstream endpoint may send arguments that are not a JSON object, such as a
    number too large for a float. Such arguments are returned as one string."""
    arguments = call["function"]["arguments"]
    try:
        value = read_json(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _stop(turn: Turn) -> dict[str, Json]:
    reason, stop_text = "end_turn", None
    if turn.stop_reason is StopReason.LENGTH:
        reason = "max_tokens"
    elif turn.message.get("tool_calls"):
        reason = "tool_use"
    elif turn.stop_text is not None:
        reason, stop_text = "stop_sequence", turn.stop_text
    return {"stop_reason": reason, "stop_sequence": stop_text}


def _usage(turn: Turn) -> dict[str, Json]:
    return {"input_tokens": turn.num_prompt_tokens, "output_tokens": turn.num_sampled_tokens}
