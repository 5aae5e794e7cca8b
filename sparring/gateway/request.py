"""The gateway's requests and answers, independent of the dialect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from sparring.errors import (
    ConstraintError,
    ContextOverflow,
    DataError,
    InfrastructureError,
    PolicyTimeout,
    ServiceError,
    SparringError,
    TokenLimit,
    TurnLimit,
)
from sparring.types import AnswerFormat, Json, Message, ToolSchema, Turn

CONVERSATION = "x-session-id"
"""The header with which a client may name its conversation."""


class ApiError(Exception):
    """An error response. Each dialect has its own error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        given: Json = None,
        is_type: bool = False,
    ) -> None:
        """Create an error. `retry_after` is the number of seconds after which the same request may succeed. Without it,
        clients are instructed not to repeat the request. `given` is the refused field or value. `is_type` marks an unknown
        type or role."""
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after
        self.given, self.is_type = given, is_type

    @property
    def headers(self) -> dict[str, str]:
        if self.retry_after is None:
            return {"x-should-retry": "false"}
        # Clients wait for at most a minute; if they must wait longer, they would only repeat the request in vain.
        should_retry = "true" if self.retry_after <= 60 else "false"
        return {"x-should-retry": should_retry, "retry-after": str(self.retry_after)}


def error_of(failure: SparringError) -> ApiError:
    """Return the error that a client gets for a failure of a turn."""
    match failure:
        case ContextOverflow():
            return ApiError(400, str(failure), code="context_length_exceeded", param="messages")
        case DataError():
            return ApiError(400, str(failure), code="invalid_value", param="messages")
        case TurnLimit():
            return ApiError(400, str(failure), code="max_turns_exceeded")
        case TokenLimit():
            return ApiError(400, str(failure), code="max_tokens_exceeded")
        case PolicyTimeout():
            return ApiError(504, str(failure), code="policy_timeout")
        case InfrastructureError():
            return ApiError(503, str(failure), code="infrastructure_error")
        case ServiceError():
            return ApiError(502, str(failure), code="service_error")
    return ApiError(500, str(failure), code="internal_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFields:
    """The names of the fields by which a dialect sets the form of an answer."""

    form: str
    schema: str
    arguments: str
    """The field of a tool's parameters, with `{}` in place of the tool's index."""
    parallel: str
    tool_choice: str = "tool_choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The values that are needed to continue an answer in a later request."""

    messages: tuple[Message, ...]
    """The conversation without instructions, including the answer."""
    instructions: str | None
    tools: Sequence[ToolSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request in the form that sessions use. A value of None leaves the choice to the session."""

    model: str
    messages: Sequence[Message]
    answer_format: AnswerFormat
    format_fields: FormatFields
    tools: Sequence[ToolSchema] = ()
    instructions: str | None = None
    """A system message for this request only. It precedes the conversation and is not stored with it."""
    item_ids: Sequence[str] = ()
    """The ids of items of earlier answers to which the request refers. `with_items` then returns the messages."""
    with_items: Callable[[Mapping[str, Kept]], Sequence[Message]] | None = None
    """A function that returns the messages with these items, from the stored conversations by answer id. It raises ApiError
    for unknown ids."""
    previous: str | None = None
    """The id of an answer whose conversation this request continues."""
    previous_field: str = "previous_response_id"
    is_thread: bool = False
    """Whether the tools and instructions of that answer's request apply if this request has none."""
    is_kept: bool = False
    """Whether later requests may continue the answer by its id."""
    num_answers: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    wants_logprobs: bool = False
    stream: bool = False
    not_read: tuple[str, ...] = ()
    """The accepted fields of the request that are ignored."""
    episode: str | None = None
    """The name of the episode in the path or in MTRL's header."""
    conversation: str | None = None
    """The client's name for the conversation, from the header `CONVERSATION`."""
    request: Any = None
    """The parsed request of the dialect, for the fields that the answer must repeat."""

    def refused(self, refusal: ConstraintError) -> ApiError:
        """Return the error for an answer format that cannot be enforced. The error specifies the field that set the
        format."""
        wanted, fields = self.answer_format, self.format_fields
        match (refusal.schema or "").split("_"):
            case ["content"]:
                field = fields.schema
            case ["arguments", number]:
                field = fields.arguments.format(number)
            case _ if wanted.tool_choice != "auto":
                field = fields.tool_choice
            case _ if wanted.schema is not None:
                field = fields.form
            case _:
                field = fields.parallel
        return ApiError(
            400, f"{field}: {refusal}", code="unsupported_value", param=field, given=[wanted.tool_name, wanted.schema]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The values that are part of every answer."""

    id: str
    model: str
    created: int
    """Seconds since 1970."""


# These are the parts of an answer while it is sampled. `index` counts the answers to one request.


@dataclass(frozen=True, slots=True)
class Begin:
    """The event that is sent when the first token has been sampled."""

    index: int


@dataclass(frozen=True, slots=True)
class Text:
    """A further piece of the content."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A further piece of the reasoning, which precedes the content."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A complete tool call in OpenAI's format. `number` counts the calls of the answer."""

    index: int
    number: int
    call: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class End:
    """The event that is sent when the answer is complete and recorded."""

    index: int
    turn: Turn


Part: TypeAlias = Begin | Text | Reasoning | ToolCallPart | End


class Dialect(Protocol):
    """The format of one API for requests, answers, streams and errors."""

    @property
    def id_prefix(self) -> str:
        """The prefix of answer ids."""
        ...

    def read(self, body: Json) -> Asked:
        """Check and parse a decoded body. Raises ApiError 400, which names the invalid field."""
        ...

    def request_schema(self, prefix: str) -> dict[str, Json]:
        """Return the JSON schema of the bodies that `read` accepts, in the form of `validation.request_schema`."""
        ...

    def whole(self, asked: Asked, turns: Sequence[Turn], head: Head) -> Mapping[str, Json]:
        """Return the body of a whole response, with one turn for each answer."""
        ...

    def stream(self, asked: Asked, parts: AsyncIterator[Part], head: Head) -> AsyncIterator[bytes]:
        """Yield the events of a stream. Exceptions raised by `parts` are re-raised."""
        ...

    def error(self, error: ApiError) -> Mapping[str, Json]:
        """Return an error as the body of a response."""
        ...

    def error_event(self, error: ApiError, num_sent: int) -> bytes:
        """Return an error as an event in a stream, after `num_sent` events."""
        ...
