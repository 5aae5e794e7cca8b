"""OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses).

An answer is a list of items: reasoning, a message, and calls. Clients send the items back, and the gateway joins them
into one message, as the session stores it. Reasoning items are dropped, because the session has the exact tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias, final

import pydantic

from sparring.gateway.dialects.chat_completions import ChatCompletions
from sparring.gateway.dialects.events import named_event
from sparring.gateway.dialects.history import joined, text_of, tool_call
from sparring.gateway.dialects.validation import (
    MOST_MESSAGES,
    Count,
    Items,
    JsonSchema,
    Lenient,
    Parameters,
    Strict,
    ToolChoice,
    not_read,
    remembered,
    request_schema,
    validated,
)
from sparring.gateway.request import ApiError, Asked, Begin, End, FormatFields, Head, Kept, Part, Reasoning, Text
from sparring.types import AnswerFormat, Json, Message, StopReason, Turn

_ONLY: Mapping[str, tuple[Json, ...]] = {
    "access_programs": (None,),
    "background": (None, False),
    "context_management": (None, []),
    "conversation": (None,),
    "image": (None,),
    "moderation": (None,),
    "prompt": (None,),
    "top_logprobs": (None, 0),
    "truncation": (None, "disabled"),
}
"""Fields that are accepted only with these values, which change nothing."""

_INERT = frozenset(
    {
        "background_options",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream_options",
    }
)
"""Fields that do not affect what is sampled. `max_tool_calls` counts calls of OpenAI's own tools, which do not exist
here."""


class _TextPart(Lenient):
    type: Literal["input_text", "output_text"]
    text: str


class _MessageItem(Lenient):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Items[_TextPart]

    @property
    def message(self) -> Message:
        """Return the item as a message. The role `developer` becomes `system`."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text_of(self.content)}


class _CallItem(Lenient):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    @property
    def message(self) -> Message:
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [tool_call(self.call_id, self.name, self.arguments)],
        }


class _ResultItem(Lenient):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Items[_TextPart]

    @property
    def message(self) -> Message:
        return {"role": "tool", "tool_call_id": self.call_id, "content": text_of(self.output)}


class _ReasoningItem(Lenient):
    type: Literal["reasoning"]


class _ReferenceItem(Lenient):
    """A reference to an item of an earlier answer, by id."""

    type: Literal["item_reference"]
    id: str

    def message(self, kept: Mapping[str, Kept], index: int) -> Message | None:
        """Return the item's message, or None for reasoning. `kept` contains the stored conversations, keyed by answer
        id. Raises ApiError 404 if none of them contains the item."""
        kind, _, place = self.id.partition("_")
        before, _, number = place.rpartition("-")
        if kind == "fc" or (kind == "rs" and f"{Responses.id_prefix}{place}" not in kept):
            place = before
        found = kept.get(f"{Responses.id_prefix}{place}")
        match kind, found and found.messages:
            case "msg", [*_, answer]:
                return {"role": "assistant", "content": answer["content"]}
            case "fc", [*_, {"tool_calls": calls}] if number.isdecimal() and int(number) < len(calls):
                return {"role": "assistant", "content": "", "tool_calls": [calls[int(number)]]}
            case "rs", [*_, {"reasoning_content": str()}]:
                return None
        raise ApiError(
            404,
            f"input.{index}.id: the item {self.id[:80]!r} is not stored here: it belongs to another episode or server, "
            "its answer was requested without storage, or it has expired. Send the item itself instead.",
            code="item_not_found",
            param=f"input.{index}.id",
            given=self.id,
        )


_Item: TypeAlias = Annotated[
    _MessageItem | _CallItem | _ResultItem | _ReasoningItem | _ReferenceItem,
    pydantic.Field(discriminator="type"),
    remembered(),
]


_Items: TypeAlias = Annotated[Items[_Item], pydantic.Field(min_length=1, max_length=MOST_MESSAGES)]


class _Tool(Lenient):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    @property
    def plain(self) -> dict[str, Json]:
        """Return the tool in the format of chat completions."""
        return {"type": "function", "function": self.model_dump(exclude_none=True, exclude={"type", "strict"})}


class _ChosenTool(Strict):
    type: Literal["function"]
    name: str


class _PlainText(Strict):
    type: Literal["text"]


class _JsonObject(Strict):
    type: Literal["json_object"]


class _JsonSchema(Strict):
    """A JSON schema for the answer. A policy that is sampled in this process follows a schema strictly. For other
    policies, the meaning of `strict` depends on the endpoint."""

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: JsonSchema = pydantic.Field(alias="schema")
    strict: bool | None = None


_Format: TypeAlias = Annotated[_PlainText | _JsonObject | _JsonSchema, pydantic.Field(discriminator="type")]


class _TextOptions(Strict):
    format: _Format | None = None
    verbosity: Literal["medium"] | None = None


class _ReasoningOptions(Strict):
    context: Literal["auto"] | None = None
    effort: None = None
    generate_summary: str | None = None
    mode: Literal["standard"] | None = None
    summary: str | None = None


_Included = Literal[
    "reasoning.encrypted_content",
    # These values concern calls of OpenAI's own tools and images, which do not exist here.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class _Request(Strict):
    """The request fields that the gateway reads."""

    model: str
    input: _Items = pydantic.Field(description="Text, or items of which at least one is not reasoning.")
    instructions: str | None = None
    previous_response_id: str | None = pydantic.Field(
        default=None, description="The id of a stored answer of this episode."
    )
    store: bool | None = None
    tools: Items[_Tool] | None = None
    stream: bool | None = None
    max_output_tokens: Count | None = None
    temperature: float | None = pydantic.Field(default=None, ge=0, le=2)
    top_p: float | None = pydantic.Field(default=None, gt=0, le=1)
    include: Items[_Included] | None = None
    reasoning: _ReasoningOptions | None = None
    text: _TextOptions | None = None
    tool_choice: ToolChoice | _ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    @pydantic.field_validator("input", mode="before", json_schema_input_type=str | _Items)
    @classmethod
    def _items(cls, given: Json) -> Json:
        """Convert text to a user message. Add a type to each item without one: `item_reference` if the item has only an
        id, otherwise `message`."""
        if isinstance(given, str):
            return [{"type": "message", "role": "user", "content": given}]
        if not isinstance(given, list):
            return given
        return [{"type": _type(item), **item} if isinstance(item, dict) else item for item in given]

    @property
    def format(self) -> _PlainText | _JsonObject | _JsonSchema:
        """The requested format of the answer's text."""
        return (self.text and self.text.format) or _PlainText(type="text")

    @property
    def answer_format(self) -> AnswerFormat:
        name, response_format = None, None
        match self.format:
            case _JsonObject():
                response_format = {"type": "json_object"}
            case _JsonSchema() as form:
                named = form.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
                response_format = {"type": "json_schema", "json_schema": named}
        match self.tool_choice:
            case _ChosenTool(name=name):
                choice = "required"
            case choice:
                pass
        return AnswerFormat(
            tool_choice=choice or "auto",
            tool_name=name,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            response_format=response_format,
        )

    @property
    def item_ids(self) -> tuple[str, ...]:
        """The ids of the items that the request refers to but does not contain."""
        return tuple(item.id for item in self.input if isinstance(item, _ReferenceItem))

    def messages(self, kept: Mapping[str, Kept]) -> list[Message]:
        """Return the messages, with references replaced by the items in `kept`. Raises ApiError if no messages remain,
        and for unknown ids."""
        items: list[Message | None] = []
        for index, item in enumerate(self.input):
            match item:
                case _ReferenceItem():
                    items.append(item.message(kept, index))
                case _MessageItem() | _CallItem() | _ResultItem():
                    items.append(item.message)
        messages = joined(message for message in items if message is not None)
        if not messages:
            raise ApiError(
                400,
                "input: it contains only reasoning; add a message or a tool result for the policy to answer.",
                code="invalid_value",
                param="input",
            )
        return messages


_FORMAT_FIELDS = FormatFields(
    form="text.format", schema="text.format.schema", arguments="tools.{}.parameters", parallel="parallel_tool_calls"
)


@final
class Responses:
    """OpenAI's Responses."""

    id_prefix = "resp_"

    def read(self, body: Json) -> Asked:
        request = validated(body, _Request, only=_ONLY, inert=_INERT)
        return Asked(
            model=request.model,
            messages=() if request.item_ids else request.messages({}),
            item_ids=request.item_ids,
            with_items=request.messages,
            tools=[tool.plain for tool in request.tools or ()],
            instructions=request.instructions or None,
            previous=request.previous_response_id,
            is_kept=request.store is not False,
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            answer_format=request.answer_format,
            format_fields=_FORMAT_FIELDS,
            stream=bool(request.stream),
            not_read=not_read(body, _Request, only=_ONLY, inert=_INERT),
            request=request,
        )

    def request_schema(self, prefix: str) -> dict[str, Json]:
        return request_schema(_Request, prefix, only=_ONLY, inert=_INERT)

    def whole(self, asked: Asked, turns: Sequence[Turn], head: Head) -> Mapping[str, Json]:
        return _response(asked, head, turns[0], _output(turns[0], head))

    async def stream(self, asked: Asked, parts: AsyncIterator[Part], head: Head) -> AsyncIterator[bytes]:
        stream = _Stream(asked, head)
        async for part in parts:
            for event in stream.events(part):
                yield event

    def error(self, error: ApiError) -> Mapping[str, Json]:
        """Return the error of chat completions, with the field `input` in place of `messages`."""
        fields = ChatCompletions().error(error)["error"]
        is_conversation = error.param == "messages" and error.code != "unknown_parameter"
        return {"error": {**fields, "param": "input" if is_conversation else error.param}}

    def error_event(self, error: ApiError, num_sent: int) -> bytes:
        """Return the event. In addition to the documented fields, it has an object "error", which makes OpenAI's
        clients raise an exception."""
        whole = self.error(error)["error"]
        fields = {key: whole[key] for key in ("code", "message", "param")}
        return named_event({"type": "error", "sequence_number": num_sent, **fields, "error": whole})


@final
class _Stream:
    """The events of one answer. Events are numbered. Each item has events that open it, fill it and close it."""

    def __init__(self, asked: Asked, head: Head) -> None:
        self._asked = asked
        self._head = head
        self._numbers = itertools.count()
        self._output: list[Json] = []
        self._message_at: int | None = None

    def events(self, part: Part) -> Iterator[bytes]:
        """Yield the events of a part. Calls are sent at the end of the answer."""
        match part:
            case Begin():
                response = _response(self._asked, self._head)
                yield self._event("response.created", response=response)
                yield self._event("response.in_progress", response=response)
            case Reasoning(_, text):
                yield from self._reasoning(text)
            case Text(_, delta):
                yield from self._text(delta)
            case End(_, turn):
                yield from self._end(turn)

    def _event(self, kind: str, **fields: Json) -> bytes:
        return named_event({"type": kind, "sequence_number": next(self._numbers), **fields})

    def _opened(self, item: Mapping[str, Json]) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _closed(self, index: int, item: Mapping[str, Json]) -> bytes:
        self._output[index] = item
        return self._event("response.output_item.done", output_index=index, item=item)

    def _reasoning(self, text: str) -> Iterator[bytes]:
        """Yield the events of a reasoning item for one piece of reasoning. Each piece gets its own item, because the
        earlier items are already closed or are the message."""
        item = _reasoning_item(self._head, text, number=sum(one["type"] == "reasoning" for one in self._output))
        yield self._opened({**item, "content": [], "status": "in_progress"})
        index = len(self._output) - 1
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        part = item["content"][0]
        yield self._event("response.content_part.added", **place, part={**part, "text": ""})
        yield self._event("response.reasoning_text.delta", **place, delta=text)
        yield self._event("response.reasoning_text.done", **place, text=text)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._closed(index, item)

    def _text(self, delta: str) -> Iterator[bytes]:
        item = _message_item(self._head, "", "in_progress")
        if self._message_at is None:
            self._message_at = len(self._output)
            yield self._opened({**item, "content": []})
            yield self._event("response.content_part.added", **self._place(item), part=item["content"][0])
        if delta:
            yield self._event("response.output_text.delta", **self._place(item), delta=delta, logprobs=[])

    def _place(self, message_item: Mapping[str, Json]) -> dict[str, Json]:
        return {"item_id": message_item["id"], "output_index": self._message_at, "content_index": 0}

    def _end(self, turn: Turn) -> Iterator[bytes]:
        for item in _output(turn, self._head, has_message=self._message_at is not None):
            match item["type"]:
                case "message":
                    yield from self._message(item)
                case "function_call":
                    yield from self._call(item)
        response = _response(self._asked, self._head, turn, self._output)
        yield self._event(f"response.{response['status']}", response=response)

    def _message(self, item: Mapping[str, Json]) -> Iterator[bytes]:
        yield from self._text("")
        part = item["content"][0]
        yield self._event("response.output_text.done", **self._place(item), text=part["text"], logprobs=[])
        yield self._event("response.content_part.done", **self._place(item), part=part)
        assert self._message_at is not None, "a message is opened before it is closed"
        yield self._closed(self._message_at, item)

    def _call(self, item: Mapping[str, Json]) -> Iterator[bytes]:
        yield self._opened({**item, "arguments": "", "status": "in_progress"})
        index = len(self._output) - 1
        place = {"item_id": item["id"], "output_index": index}
        yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield self._event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        yield self._closed(index, item)


def _type(item: Mapping[str, Json]) -> str:
    """Return the type of an item that does not state its type."""
    return "item_reference" if item.keys() == {"id"} else "message"


def _output(turn: Turn, head: Head, *, has_message: bool = False) -> list[Mapping[str, Json]]:
    """Return the items of an answer. An answer with only tool calls has no message item, unless one was already
    opened."""
    message, output = turn.message, []
    calls = message.get("tool_calls", ())
    if reasoning := message.get("reasoning_content"):
        output.append(_reasoning_item(head, reasoning))
    if message["content"] or not calls or has_message:
        output.append(_message_item(head, message["content"], _status(turn)))
    return [*output, *(_call_item(head, number, call) for number, call in enumerate(calls))]


def _status(turn: Turn) -> str:
    return "incomplete" if turn.stop_reason is StopReason.LENGTH else "completed"


def _reasoning_item(head: Head, text: str, *, number: int = 0) -> dict[str, Json]:
    content = [{"type": "reasoning_text", "text": text}]
    item_id = f"{_item_id('rs', head)}-{number}" if number else _item_id("rs", head)
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": "completed"}


def _message_item(head: Head, text: str, status: str) -> dict[str, Json]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": _item_id("msg", head), "type": "message", "role": "assistant", "status": status, "content": content}


def _call_item(head: Head, number: int, call: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "id": f"{_item_id('fc', head)}-{number}",
        "type": "function_call",
        "call_id": call["id"],
        **call["function"],
        "status": "completed",
    }


def _item_id(kind: str, head: Head) -> str:
    return f"{kind}_{head.id.removeprefix(Responses.id_prefix)}"


def _response(
    asked: Asked, head: Head, turn: Turn | None = None, output: Sequence[Mapping[str, Json]] = ()
) -> dict[str, Json]:
    """Return a Response object that repeats the fields of the request. Without a turn, its status is `in_progress`."""
    request: _Request = asked.request
    status = "in_progress" if turn is None else _status(turn)
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": head.model,
        "output": list(output),
        "parallel_tool_calls": asked.answer_format.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": asked.is_kept,
        "temperature": request.temperature,
        "text": {"format": request.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": _tool_choice(request),
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None if turn is None else _usage(turn),
        "user": request.user,
    }


def _tool_choice(request: _Request) -> Json:
    chosen = request.tool_choice
    return chosen.model_dump() if isinstance(chosen, _ChosenTool) else chosen or "auto"


def _usage(turn: Turn) -> dict[str, Json]:
    """Return the token usage. Cached tokens and reasoning tokens are not counted separately."""
    prompt, answer = turn.num_prompt_tokens, turn.num_sampled_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + answer,
    }
