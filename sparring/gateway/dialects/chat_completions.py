"""OpenAI's chat completions. Requests are checked field by field, and answers and errors have OpenAI's format.

A field that would change what is sampled, but that the gateway cannot honor, is rejected with status 400, and the error
names the field. Such a field is never ignored (https://platform.openai.com/docs/api-reference/chat).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Literal, NotRequired, TypeAlias, final

import pydantic
from typing_extensions import TypedDict

from sparring.gateway.dialects.events import unnamed_event
from sparring.gateway.dialects.validation import (
    LENIENT,
    MOST_MESSAGES,
    WHOLE,
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
from sparring.gateway.request import (
    ApiError,
    Asked,
    Begin,
    End,
    FormatFields,
    Head,
    Part,
    Reasoning,
    Text,
    ToolCallPart,
)
from sparring.types import AnswerFormat, Json, Message, StopReason, ToolSchema, Turn

_ONLY: Mapping[str, tuple[Json, ...]] = {
    "audio": (None,),
    "frequency_penalty": (None, 0),
    "function_call": (None,),
    "functions": (None,),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "top_k": (None,),
    "top_logprobs": (None, 0),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Fields that are accepted only with these values, which change nothing."""

_INERT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that do not affect what is sampled."""


# These types are plain dictionaries, since sessions take messages in this form and histories are read again with every
# turn.


@pydantic.with_config(LENIENT)
class _Function(TypedDict):
    name: str
    arguments: NotRequired[str]


@pydantic.with_config(LENIENT)
class _ToolCall(TypedDict):
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: _Function


@pydantic.with_config(LENIENT)
class _TextPart(TypedDict):
    type: Literal["text"]
    text: str


@pydantic.with_config(LENIENT)
class _Message(TypedDict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: NotRequired[str | Items[_TextPart] | None]
    tool_calls: NotRequired[Items[_ToolCall] | None]
    tool_call_id: NotRequired[str | None]
    name: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]


@pydantic.with_config(LENIENT)
class _ToolFunction(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[Parameters | None]


@pydantic.with_config(LENIENT)
class _Tool(TypedDict):
    type: Literal["function"]
    function: _ToolFunction


def _plain(message: _Message) -> Message:
    """Return the message in the form that sessions expect: null fields are left out, and the role `developer` becomes
    `system`."""
    plain: dict[str, Json] = {key: value for key, value in message.items() if value is not None}
    return plain | {"role": "system"} if plain["role"] == "developer" else plain


def _without_nulls(tool: _Tool) -> ToolSchema:
    return {**tool, "function": {key: value for key, value in tool["function"].items() if value is not None}}


class _ChosenFunction(Strict):
    name: str


class _ChosenTool(Strict):
    type: Literal["function"]
    function: _ChosenFunction


class _PlainText(Strict):
    type: Literal["text"]


class _JsonObject(Strict):
    type: Literal["json_object"]


class _NamedSchema(Strict):
    """A named JSON schema for the answer. A policy that is sampled in this process follows a schema strictly. For other
    policies, the meaning of `strict` depends on the endpoint."""

    name: str
    description: str | None = None
    schema_: JsonSchema = pydantic.Field(alias="schema")
    strict: bool | None = None


class _JsonSchema(Strict):
    type: Literal["json_schema"]
    json_schema: _NamedSchema


_ResponseFormat: TypeAlias = Annotated[_PlainText | _JsonObject | _JsonSchema, pydantic.Field(discriminator="type")]
_Stop: TypeAlias = Annotated[Items[StopText], pydantic.Field(max_length=16)]


class _StreamOptions(Lenient):
    include_usage: bool = False


class _Request(Strict):
    """The request fields that the gateway reads. `max_completion_tokens` and `max_tokens` have the same meaning."""

    model: str
    messages: Items[Annotated[_Message, remembered(_plain)]] = pydantic.Field(min_length=1, max_length=MOST_MESSAGES)
    tools: Items[Annotated[_Tool, remembered(_without_nulls)]] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: float | None = pydantic.Field(default=None, ge=0, le=2)
    top_p: float | None = pydantic.Field(default=None, gt=0, le=1)
    seed: Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    n: Annotated[int, pydantic.Field(ge=1, le=64), WHOLE] | None = None
    stop: _Stop | None = None
    logprobs: bool | None = None
    tool_choice: ToolChoice | _ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormat | None = None

    @pydantic.field_validator("stop", mode="before", json_schema_input_type=_Stop | StopText | None)
    @classmethod
    def _listed(cls, stop: Json) -> Json:
        return [stop] if isinstance(stop, str) else stop

    @property
    def answer_format(self) -> AnswerFormat:
        response_format, name = None, None
        match self.response_format:
            case _JsonObject() | _JsonSchema() as form:
                response_format = form.model_dump(by_alias=True, exclude_none=True)
        match self.tool_choice:
            case _ChosenTool(function=function):
                choice, name = "required", function.name
            case choice:
                pass
        return AnswerFormat(
            tool_choice=choice or "auto",
            tool_name=name,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            response_format=response_format,
        )


_FORMAT_FIELDS = FormatFields(
    form="response_format",
    schema="response_format.json_schema.schema",
    arguments="tools.{}.function.parameters",
    parallel="parallel_tool_calls",
)


@final
class ChatCompletions:
    """OpenAI's chat completions."""

    id_prefix = "chatcmpl-"

    def read(self, body: Json) -> Asked:
        request = validated(body, _Request, only=_ONLY, inert=_INERT)
        return Asked(
            model=request.model,
            messages=request.messages,
            tools=request.tools or (),
            num_answers=request.n or 1,
            max_tokens=request.max_completion_tokens or request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            stop=tuple(request.stop or ()),
            wants_logprobs=bool(request.logprobs),
            answer_format=request.answer_format,
            format_fields=_FORMAT_FIELDS,
            stream=bool(request.stream),
            not_read=not_read(body, _Request, only=_ONLY, inert=_INERT),
            request=request,
        )

    def request_schema(self, prefix: str) -> dict[str, Json]:
        return request_schema(_Request, prefix, only=_ONLY, inert=_INERT)

    def whole(self, asked: Asked, turns: Sequence[Turn], head: Head) -> Mapping[str, Json]:
        choices = [
            {
                "index": index,
                "message": _assistant_message(turn.message),
                "finish_reason": _finish_reason(turn),
                "logprobs": _logprobs(turn) if asked.wants_logprobs else None,
            }
            for index, turn in enumerate(turns)
        ]
        return {**_head(head, "chat.completion"), "choices": choices, "usage": _usage(turns)}

    async def stream(self, asked: Asked, parts: AsyncIterator[Part], head: Head) -> AsyncIterator[bytes]:
        about, turns = _head(head, "chat.completion.chunk"), []

        def chunk(index: int, delta: Mapping[str, Json], finish: str | None = None, logprobs: Json = None) -> bytes:
            choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
            return unnamed_event({**about, "choices": [choice]})

        async for part in parts:
            match part:
                case Begin(index):
                    yield chunk(index, {"role": "assistant", "content": ""})
                case Text(index, text):
                    yield chunk(index, {"content": text})
                case Reasoning(index, text):
                    yield chunk(index, {"reasoning_content": text})
                case ToolCallPart(index, number, call):
                    yield chunk(index, {"tool_calls": [{"index": number, **call}]})
                case End(index, turn):
                    turns.append(turn)
                    yield chunk(index, {}, _finish_reason(turn), _logprobs(turn) if asked.wants_logprobs else None)
        options = asked.request.stream_options
        if options is not None and options.include_usage:
            yield unnamed_event({**about, "choices": [], "usage": _usage(turns)})
        yield b"data: [DONE]\n\n"

    def error(self, error: ApiError) -> Mapping[str, Json]:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        kind = "rate_limit_error" if error.status == 429 else kind
        return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}

    def error_event(self, error: ApiError, num_sent: int) -> bytes:
        return unnamed_event(self.error(error))


def _head(head: Head, kind: str) -> dict[str, Json]:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model}


def _finish_reason(turn: Turn) -> str:
    if turn.stop_reason is StopReason.LENGTH:
        return "length"
    return "tool_calls" if turn.message.get("tool_calls") else "stop"


def _usage(turns: Sequence[Turn]) -> dict[str, Json]:
    prompt, completion = turns[0].num_prompt_tokens, sum(turn.num_sampled_tokens for turn in turns)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _logprobs(turn: Turn) -> dict[str, Json]:
    """Return the log-probabilities of the sampled tokens. Tokens are given as ids, because a token need not be valid
    text."""
    content = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(turn.token_ids, turn.sampled_logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _assistant_message(message: Message) -> dict[str, Json]:
    """Return the message in OpenAI's format. If there are tool calls, the content is null. Malformed calls are returned
    as text in the content."""
    fields = {key: value for key, value in message.items() if key != "malformed_tool_calls"}
    return {**fields, "content": message["content"] or None} if message.get("tool_calls") else fields
