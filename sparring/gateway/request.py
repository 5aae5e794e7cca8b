"""What a client asks and what it is answered, apart from the dialect it speaks."""

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


class ApiError(Exception):
    """An answer that is an error; each dialect has an object of its own for it."""

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
        """`retry_after`: seconds after which the same request may work; without it clients are asked not to repeat. `given`
        is the field or the value that was refused; `is_type`: it is an unknown type or role."""
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after
        self.given, self.is_type = given, is_type

    @property
    def headers(self) -> dict[str, str]:
        if self.retry_after is None:
            return {"x-should-retry": "false"}
        return {"x-should-retry": "true", "retry-after": str(self.retry_after)}


def error_of(failure: SparringError) -> ApiError:
    """How a failure of a turn is told to a client."""
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
    """The fields in which a dialect asks for the form of an answer."""

    form: str
    schema: str
    arguments: str
    """The parameters of a tool, `{}` in the place of its number."""
    parallel: str
    tool_choice: str = "tool_choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What an answer can be gone on from with."""

    messages: tuple[Message, ...]
    """The conversation without instructions, the answer included."""
    instructions: str | None
    tools: Sequence[ToolSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as sessions can play it. None leaves a choice to the session."""

    model: str
    messages: Sequence[Message]
    answer_format: AnswerFormat
    format_fields: FormatFields
    tools: Sequence[ToolSchema] = ()
    instructions: str | None = None
    """A system message for this request alone: it stands before the conversation and is not remembered with it."""
    item_ids: Sequence[str] = ()
    """Of items of earlier answers that are named and not sent: then `with_items` gives the messages."""
    with_items: Callable[[Mapping[str, Kept]], Sequence[Message]] | None = None
    """The messages with those items in place, from what is kept by the ids of answers. Raises ApiError for unknown
    ids."""
    previous: str | None = None
    """The id of an answer whose conversation goes on here."""
    previous_field: str = "previous_response_id"
    is_thread: bool = False
    """Whether tools and instructions are those of that answer's request too, where this one has none."""
    is_kept: bool = False
    """Whether the answer may be gone on from by its id."""
    num_answers: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    wants_logprobs: bool = False
    stream: bool = False
    not_read: tuple[str, ...] = ()
    """Fields of the request that were accepted and are not read."""
    episode: str | None = None
    """The name that the path or MTRL's header gives."""
    request: Any = None
    """What the dialect read, for what it must echo."""

    def refused(self, refusal: ConstraintError) -> ApiError:
        """A form that the answer cannot be held to, with the field that asked for it."""
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
    """What every answer says of itself."""

    id: str
    model: str
    created: int
    """Seconds since 1970."""


# The parts of an answer while it is played; `index` counts the answers of one request.


@dataclass(frozen=True, slots=True)
class Begin:
    """The first token was sampled."""

    index: int


@dataclass(frozen=True, slots=True)
class Text:
    """More of the content."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reasoning: all that comes before the content which follows it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, whole, in the OpenAI shape; `number` counts the calls of the answer."""

    index: int
    number: int
    call: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class End:
    """The answer is over and recorded."""

    index: int
    turn: Turn


Part: TypeAlias = Begin | Text | Reasoning | Call | End


class Dialect(Protocol):
    """How one API spells requests, answers, streams and errors."""

    @property
    def id_prefix(self) -> str:
        """Of the ids of answers."""
        ...

    def read(self, body: Json) -> Asked:
        """Check a decoded body. Raises ApiError 400 that names the field."""
        ...

    def request_schema(self, prefix: str) -> dict[str, Json]:
        """What `read` takes, as `validation.request_schema` spells it."""
        ...

    def whole(self, asked: Asked, turns: Sequence[Turn], head: Head) -> Mapping[str, Json]:
        """The answer to a request without streaming: one turn for each answer."""
        ...

    def stream(self, asked: Asked, parts: AsyncIterator[Part], head: Head) -> AsyncIterator[bytes]:
        """The events of a stream, one by one. What `parts` raises passes."""
        ...

    def error(self, error: ApiError) -> Mapping[str, Json]:
        """An error as the body of an answer."""
        ...

    def error_event(self, error: ApiError, num_sent: int) -> bytes:
        """An error in the middle of a stream, after so many events."""
        ...
