"""OpenAI's chat completions, in and out: requests checked field by field, answers and errors in its shape.

A field that would change what is sampled and that we cannot honor is refused with 400 and its name, never ignored
(https://platform.openai.com/docs/api-reference/chat).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from sparring.errors import ContextOverflow, DataError, InfrastructureError, PolicyTimeout, SparringError
from sparring.types import Json, Message, StopReason, Turn

_ONLY: Mapping[str, tuple[Json, ...]] = {
    "frequency_penalty": (None, 0),
    "function_call": (None,),
    "functions": (None,),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "parallel_tool_calls": (None, True),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "stop": (None, []),
    "tool_choice": (None, "auto"),
    "top_k": (None,),
    "top_logprobs": (None, 0),
}
"""Fields that we accept with these values alone, which change nothing."""

_INERT = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"})
"""Fields without any bearing on what is sampled."""


class ApiError(Exception):
    """An answer that is an error object."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class _Lenient(pydantic.BaseModel):
    """What clients send back of our own messages holds more keys than we need."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore")


class _Function(_Lenient):
    name: str
    arguments: str = ""


class _ToolCall(_Lenient):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Function


class _TextPart(_Lenient):
    type: Literal["text"]
    text: str


class _Message(_Lenient):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None


class _ToolFunction(_Lenient):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_Lenient):
    type: Literal["function"]
    function: _ToolFunction


class _StreamOptions(_Lenient):
    include_usage: bool = False


class ChatRequest(pydantic.BaseModel):
    """What we read of a request; `max_completion_tokens` and `max_tokens` mean the same."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    model: str
    messages: list[_Message] = pydantic.Field(min_length=1)
    tools: list[_Tool] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    max_completion_tokens: int | None = pydantic.Field(default=None, ge=1)
    temperature: float | None = pydantic.Field(default=None, ge=0, le=2)
    top_p: float | None = pydantic.Field(default=None, gt=0, le=1)
    seed: int | None = None

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def plain_messages(self) -> list[Message]:
        """As sessions take them; a developer is a system."""
        dumped = [message.model_dump(exclude_none=True) for message in self.messages]
        return [{**each, "role": "system"} if each["role"] == "developer" else each for each in dumped]

    @property
    def plain_tools(self) -> list[dict[str, Json]]:
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]


def parse_request(body: Json) -> ChatRequest:
    """Check a decoded body. Raises ApiError 400 that names the field."""
    if not isinstance(body, dict):
        raise ApiError(400, f"The body is JSON of type {type(body).__name__}; send an object.")
    for field, allowed in _ONLY.items():
        if body.get(field) not in allowed:
            choices = " or ".join(f"{field}={value!r}" for value in allowed[1:])
            raise ApiError(
                400,
                f"{field}={body[field]!r} is not supported here and would change what is sampled; "
                f"leave it out{f' or send {choices}' if choices else ''}.",
                code="unsupported_parameter",
                param=field,
            )
    read = {field: value for field, value in body.items() if field not in _ONLY and field not in _INERT}
    try:
        return ChatRequest.model_validate(read)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        code = "unknown_parameter" if problem["type"] == "extra_forbidden" else "invalid_value"
        raise ApiError(400, f"{where}: {problem['msg']}.", code=code, param=where) from error


def error_of(failure: SparringError) -> ApiError:
    """How a failure of a turn is told to a client."""
    match failure:
        case ContextOverflow():
            return ApiError(400, str(failure), code="context_length_exceeded", param="messages")
        case DataError():
            return ApiError(400, str(failure), code="invalid_value", param="messages")
        case PolicyTimeout():
            return ApiError(504, str(failure), code="policy_timeout")
        case InfrastructureError():
            return ApiError(503, str(failure), code="infrastructure_error")
    return ApiError(500, str(failure), code="internal_error")


def finish_reason(turn: Turn) -> str:
    if turn.stop_reason is StopReason.LENGTH:
        return "length"
    return "tool_calls" if turn.message.get("tool_calls") else "stop"


def usage(turn: Turn) -> dict[str, Json]:
    prompt, completion = len(turn.prompt_ids), len(turn.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def assistant_message(message: Message) -> dict[str, Json]:
    """As OpenAI spells it: content null beside tool calls; malformed calls are text of the content."""
    told = {key: value for key, value in message.items() if key != "malformed_tool_calls"}
    return {**told, "content": message["content"] or None} if message.get("tool_calls") else told


def completion(turn: Turn, *, id: str, model: str, created: int) -> dict[str, Json]:
    """The whole answer to a request without streaming."""
    choice = {
        "index": 0,
        "message": assistant_message(turn.message),
        "finish_reason": finish_reason(turn),
        "logprobs": None,
    }
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": usage(turn),
    }


def chunk(
    delta: Mapping[str, Json] | None, *, id: str, model: str, created: int, finish: str | None = None, **more: Json
) -> dict[str, Json]:
    """One event of a stream; `delta` None is the usage event, which has no choices."""
    choices = [] if delta is None else [{"index": 0, "delta": dict(delta), "finish_reason": finish, "logprobs": None}]
    head = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
    return {**head, "choices": choices, **more}
