"""Tools with their own JSON schema, as servers and other libraries describe tools at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from sparring.errors import UsageError
from sparring.types import Json, ToolSchema

_LONGEST_PROBLEM = 300
"""The maximum length, in characters, of a problem description for the model. The description may repeat a whole
argument."""


def _is_integer(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_Validator: Any = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


@final
@dataclass(frozen=True)
class SchemaTool:
    """A tool that is described by a JSON schema (https://json-schema.org/draft/2020-12).

    Types are checked as strictly as for typed methods: `true` and `2.0` are not integers. Raises UsageError for a
    schema that does not describe an object, or that refers to anything outside itself.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    """The schema of the arguments, which are an object."""

    def __post_init__(self) -> None:
        problem = _problem_of(self.parameters)
        if problem is not None:
            raise UsageError(
                f"tool {self.name!r} has no usable JSON schema for its arguments: {problem}. Correct the schema at its "
                "source, or remove the tool."
            )

    @property
    def schema(self) -> ToolSchema:
        """The tool in OpenAI's format."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def problem_with(self, arguments: Mapping[str, Json]) -> str | None:
        """Return a one-line description of the problem with these arguments, for the model, or None if they match the
        schema."""
        error = best_match(self._validator.iter_errors(dict(arguments)))
        if error is None:
            return None
        place = f"argument {error.json_path.removeprefix('$.')}: " if error.absolute_path else ""
        return f"{self.name}: {place}{error.message}"[:_LONGEST_PROBLEM]

    @cached_property
    def _validator(self) -> Any:
        # The registry is empty, so that no schema is downloaded.
        return _Validator(dict(self.parameters), registry=Registry())


def _problem_of(parameters: Mapping[str, Json]) -> str | None:
    try:
        _Validator.check_schema(dict(parameters))
    except SchemaError as error:
        return f"at {error.json_path}, {error.message}"
    if parameters.get("type") != "object":
        return f"its type is {parameters.get('type')!r}, not 'object'"
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(dict(parameters)))
    for reference in _references(parameters):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return f"it refers to {reference!r}, which it does not contain"
    return None


def _references(schema: Json) -> Iterator[str]:
    """Yield every `$ref` in a schema."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from _references(part)
