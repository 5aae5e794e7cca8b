"""Checks request bodies, field by field. An error names the invalid field.

A field that could change the answer, but that the gateway cannot honor, is rejected and named in the error. It is never
ignored. An unknown field could also change the answer. It is accepted only if its value requests nothing (null, false
or empty), or if its name shows that no answer depends on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import pydantic
from pydantic_core import ErrorDetails, PydanticCustomError

from sparring.chat.messages import json_bytes
from sparring.gateway.request import ApiError
from sparring.runtime.json_values import depth
from sparring.types import Json

LENIENT = pydantic.ConfigDict(strict=True, extra="ignore")


MOST_MESSAGES = 4096
"""The maximum number of messages of a request. Matching them with earlier turns takes time for each."""


class Strict(pydantic.BaseModel):
    """A model that rejects unknown fields and values of incorrect types."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")


class Lenient(pydantic.BaseModel):
    """A model that ignores unknown fields. Clients send the gateway's own messages back with more fields than are
    needed."""

    model_config = LENIENT


_MAX_REMEMBERED = 4096
_MAX_REMEMBERED_BYTES = 8192
"""The maximum size of a remembered value, in bytes of its JSON. Larger values are parsed each time."""


def remembered(then: Callable[[Any], Any] = lambda read: read) -> pydantic.WrapValidator:
    """Return a validator for a part of the history, which clients send in full with every turn. A part that was already
    read is recognized by its JSON, and the same object is returned. `then` converts the validated value."""
    known: dict[bytes, Any] = {}

    def read(value: Json, validate: pydantic.ValidatorFunctionWrapHandler) -> Any:
        text = json_bytes(value)
        if (answer := known.get(text)) is None:
            answer = then(validate(value))
            if len(text) > _MAX_REMEMBERED_BYTES:
                return answer
            if len(known) >= _MAX_REMEMBERED:
                known.clear()
            known[text] = answer
        return answer

    return pydantic.WrapValidator(read)


MOST_SCHEMA_LEVELS = 64
"""The maximum nesting depth of a JSON schema, in levels of objects and lists. An object within an object takes two. The
grammar library reads at most 127."""


def _shallow(schema: dict[str, Any]) -> dict[str, Any]:
    if depth(schema) > MOST_SCHEMA_LEVELS:
        raise PydanticCustomError(
            "invalid_schema",
            "the schema is nested deeper than {levels} levels; flatten it",
            {"levels": MOST_SCHEMA_LEVELS},
        )
    return schema


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(one, dict) for one in properties.values()):
        raise PydanticCustomError("invalid_schema", "properties must be an object with one JSON schema per parameter")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise PydanticCustomError("invalid_schema", "required must be a list of parameter names")
    return schema


_PARAMETERS = {
    "type": "object",
    "properties": {
        "properties": {"type": "object", "additionalProperties": {"type": "object"}},
        "required": {"type": "array", "items": {"type": "string"}},
    },
}
"""The JSON schema of the values that `_parameters` accepts."""

JsonSchema = Annotated[dict[str, Any], pydantic.AfterValidator(_shallow)]
"""The schema that an answer must follow. The engine determines whether it can apply the schema."""

Parameters = Annotated[JsonSchema, pydantic.AfterValidator(_parameters), pydantic.WithJsonSchema(_PARAMETERS)]
"""A tool's JSON schema. Only the parts from which prompts are rendered are checked."""

ToolChoice = Literal["auto", "none", "required"]
"""OpenAI's names of tool choices. A single tool is chosen by an object."""


def _whole(number: Json) -> Json:
    return int(number) if isinstance(number, float) and number.is_integer() else number


WHOLE = pydantic.BeforeValidator(_whole)
"""Makes an int accept 2.0, which is also a whole number in JSON."""

Count: TypeAlias = Annotated[int, pydantic.Field(ge=1, lt=2**63), WHOLE]

StopText = Annotated[str, pydantic.Field(min_length=1, max_length=200)]

Model = TypeVar("Model", bound=pydantic.BaseModel)
Item = TypeVar("Item")

Items: TypeAlias = Annotated[list[Item], pydantic.Field(fail_fast=True)]
"""A list of which the first invalid item ends the validation. Otherwise, each item would add an error, which takes time
and memory."""

_INERT_WORDS = frozenset({"billing", "cache", "diagnostics", "metadata", "telemetry", "tier", "trace", "tracing"})
"""Words in the names of fields that describe, route, price or observe a request. In none of the APIs does a field with
such a name change what is sampled."""


def _is_inert(field: str, given: Json) -> bool:
    """Return whether an unknown field can be ignored."""
    return given is None or given is False or given in ([], {}) or not _INERT_WORDS.isdisjoint(field.split("_"))


def _known(model: type[pydantic.BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def not_read(
    body: Mapping[str, Json], model: type[pydantic.BaseModel], *, only: Collection[str], inert: Collection[str]
) -> tuple[str, ...]:
    """Return the names under which ignored unknown fields are counted."""
    known = _known(model)
    return tuple(
        re.sub(r"[^A-Za-z0-9_.-]", "_", field)[:60]
        for field, given in body.items()
        if field not in known and field not in only and field not in inert and _is_inert(field, given)
    )


def validated(body: Json, model: type[Model], *, only: Mapping[str, tuple[Json, ...]], inert: Collection[str]) -> Model:
    """Validate a body and return it as an instance of `model`. Fields in `only` are accepted only with the values given
    there, which have no effect. `inert` fields and the fields that `not_read` returns do not affect the answer. Raises
    ApiError 400, which names the invalid field."""
    if not isinstance(body, dict):
        raise ApiError(400, f"The body is JSON of type {type(body).__name__}; send an object.")
    for field, given in body.items():
        allowed = only.get(field)
        if allowed is not None and not any(
            given == value and isinstance(given, bool) == isinstance(value, bool) for value in allowed
        ):
            choices = " or ".join(f"{field}={json.dumps(value)}" for value in allowed if value is not None)
            raise ApiError(
                400,
                f"{field}={_shown(given)} is not supported here and would change the answer; "
                f"remove it{f' or send {choices}' if choices else ''}.",
                code="unsupported_parameter",
                param=field,
                given={field: given},
            )
    known = _known(model)
    read = {
        field: given
        for field, given in body.items()
        if field in known or not (field in only or field in inert or _is_inert(field, given))
    }
    try:
        return model.model_validate(read)
    except pydantic.ValidationError as error:
        raise refusal(body, error) from error


def refusal(body: Json, error: pydantic.ValidationError) -> ApiError:
    """Return the error for an invalid body. It identifies the invalid field and, in a list, the element."""

    def progress(problem: ErrorDetails) -> tuple[int, bool]:
        """Return a sort key. Of the alternatives for a value, the intended one is the one in which validation gets
        furthest."""
        return len(_path(body, problem)), not problem["type"].endswith("_type")

    problem = max(error.errors(include_url=False), key=progress)
    where = ".".join(_path(body, problem))
    message = f"{where}: {_describe(problem)}."
    match problem["type"]:
        case "extra_forbidden":
            given = {where.rpartition(".")[2]: problem["input"]}
            return ApiError(400, message, code="unknown_parameter", param=where, given=given)
        case "union_tag_invalid":
            given = problem.get("ctx", {})["tag"]
            return ApiError(400, message, code="invalid_value", param=where, given=given, is_type=True)
        case "literal_error":
            is_type = where.rpartition(".")[2] in ("type", "role")
            return ApiError(400, message, code="invalid_value", param=where, given=problem["input"], is_type=is_type)
    return ApiError(400, message, code="invalid_value", param=where, given=problem["input"])


def request_schema(
    model: type[pydantic.BaseModel], prefix: str, *, only: Mapping[str, tuple[Json, ...]], inert: Collection[str]
) -> dict[str, Json]:
    """Return the JSON schema of the bodies that `validated` accepts. Its parts are in `$defs`, which correspond to
    OpenAPI's components. Each part has its own name after `prefix`."""
    schema = body_schema(model, prefix)
    schema["properties"] |= {field: {"enum": list(allowed)} for field, allowed in only.items()}
    schema["properties"] |= {field: {"description": "Not read."} for field in sorted(inert)}
    return schema


def body_schema(model: type[pydantic.BaseModel], prefix: str) -> dict[str, Json]:
    """Return the JSON schema of a body that is checked only by its model, with definitions as in `request_schema`."""
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    definitions = {f"{prefix}{name}": definition for name, definition in schema.pop("$defs", {}).items()}
    return {**schema, "$defs": definitions}


def _path(body: Json, problem: ErrorDetails) -> Sequence[str]:
    """Return the location of a problem in the body, without the union alternatives that pydantic adds to it."""
    path = []
    for part in problem["loc"]:
        match body, part:
            case list(), int() if part < len(body):
                body = body[part]
            case dict(), str() if part in body:
                body = body[part]
            case _:
                continue
        path.append(str(part))
    match problem["type"]:
        case "missing":
            path.append(str(problem["loc"][-1]))
        case "union_tag_invalid" | "union_tag_not_found":
            path.append(_discriminator(problem))
    return path


def _describe(problem: ErrorDetails) -> str:
    """Return the description of a problem, with the given value if it is short."""
    match problem["type"]:
        case "extra_forbidden":
            return "this field is unknown; remove it"
        case "union_tag_not_found":
            return "Field required"
        case "union_tag_invalid":
            context = problem.get("ctx", {})
            return f"Input should be one of {context['expected_tags']}, not '{context['tag'][:80]}'"
        case "missing" | "invalid_schema":
            return problem["msg"]
    given = problem["input"]
    return problem["msg"] if isinstance(given, dict | list) else f"{problem['msg']}, not {_shown(given)}"


def _discriminator(problem: ErrorDetails) -> str:
    """Return the name of the field by which pydantic distinguishes alternatives, without quotes."""
    return problem.get("ctx", {})["discriminator"].strip("'")


def _shown(given: Json) -> str:
    return json.dumps(given, ensure_ascii=False)[:80]
