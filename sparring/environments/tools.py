"""Tools from typed methods: their schemas for the model, and the checks of their arguments."""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from sparring.errors import UsageError
from sparring.types import Json, ToolSchema

Method = TypeVar("Method", bound=Callable[..., Any])

MOST_REPEATED = 200
"""The maximum number of characters of an invalid argument that are repeated to the policy."""
_MARK = "_sparring_tool"
_SCALARS: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_SUPPORTED = (
    "str, int, float, bool, Literal, list[...], dict[str, ...], one of these with `| None`, "
    "or Annotated[..., Bounded(...)]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Inclusive bounds of an argument, such as `Annotated[int, Bounded(ge=0, le=100)]`.

    `ge` and `le` limit numbers, `max_items` limits the items of lists, and `max_length` limits the characters of texts.
    Raises UsageError if no value can be within the bounds.
    """

    ge: float | None = None
    le: float | None = None
    max_items: int | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        if not self.schema:
            raise UsageError("Bounded() sets no bounds; pass ge, le, max_items or max_length, or remove it.")
        if self.ge is not None and self.le is not None and self.ge > self.le:
            raise UsageError(f"{self}: no value is at least {self.ge} and at most {self.le}; change one of them.")
        if any(most is not None and most < 0 for most in (self.max_items, self.max_length)):
            raise UsageError(f"{self}: no value has fewer than 0 items or characters; pass 0 or more.")

    @property
    def schema(self) -> dict[str, Json]:
        """The keywords of JSON Schema."""
        keywords = {"minimum": self.ge, "maximum": self.le, "maxItems": self.max_items, "maxLength": self.max_length}
        return {keyword: bound for keyword, bound in keywords.items() if bound is not None}

    @property
    def described(self) -> str:
        """The bounds in words. They follow the description of the type."""
        words = {"at least {}": self.ge, "at most {}": self.le}
        words |= {"at most {} items": self.max_items, "at most {} characters": self.max_length}
        return " and ".join(text.format(bound) for text, bound in words.items() if bound is not None)

    def applies_to(self, kinds: frozenset[str]) -> bool:
        """Return whether each bound applies to one of these types of JSON Schema."""
        is_number = self.ge is not None or self.le is not None
        needed = [(is_number, {"integer", "number"}), (self.max_items is not None, {"array"})]
        needed.append((self.max_length is not None, {"string"}))
        return all(kinds & types for is_set, types in needed if is_set)

    def holds(self, value: Json) -> bool:
        """Return whether a value is within the bounds. As in JSON Schema, a bound does not apply to values of other
        types."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return (self.ge is None or value >= self.ge) and (self.le is None or value <= self.le)
        if isinstance(value, list):
            return self.max_items is None or len(value) <= self.max_items
        return not isinstance(value, str) or self.max_length is None or len(value) <= self.max_length


def tool(method: Method) -> Method:
    """Mark a method of an environment as a tool that the policy may call.

    The method's name, first docstring line, type hints, defaults and Google-style `Args:` become the tool's JSON
    schema.
    """
    setattr(method, _MARK, True)
    return method


class ToolLike(Protocol):
    """A tool, with its schema for the model and the check of its arguments."""

    @property
    def schema(self) -> ToolSchema: ...

    def problem_with(self, arguments: Mapping[str, Json]) -> str | None:
        """Return a one-line description of the problem with these arguments, for the model, or None if they match."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that is defined by a method. `hints` contains the type hint of each parameter."""

    name: str
    schema: ToolSchema
    hints: Mapping[str, Any]
    required: frozenset[str]

    @property
    def defaults(self) -> dict[str, Json]:
        """The default values of the arguments that a call may omit."""
        properties = self.schema["function"]["parameters"]["properties"]
        return {name: one["default"] for name, one in properties.items() if "default" in one}

    def problem_with(self, arguments: Mapping[str, Json]) -> str | None:
        """Return a one-line description of the problem with these arguments, for the model, or None if they match."""
        for name, value in arguments.items():
            if name not in self.hints:
                return f"{self.name} has no argument {name!r}; it takes {', '.join(self.hints) or 'none'}"
            if not fits(value, self.hints[name]):
                got = json.dumps(value)
                got = got if len(got) <= MOST_REPEATED else f"{got[:MOST_REPEATED]}..."
                return f"{self.name}: argument {name!r} must be {_described(self.hints[name])}, got {got}"
        missing = [name for name in self.hints if name in self.required and name not in arguments]
        return f"{self.name}: argument {missing[0]!r} is missing" if missing else None


@functools.cache
def tools_of(environment_class: type) -> Mapping[str, Tool]:
    """Return the tools of a class, keyed by name, in order of definition.

    Raises UsageError, which identifies the method and the parameter, if a signature cannot become a schema.
    """
    names: dict[str, None] = {}
    for base in reversed(environment_class.__mro__):
        names.update(dict.fromkeys(vars(base)))
    methods = {name: inspect.getattr_static(environment_class, name) for name in names}
    return types.MappingProxyType(
        {
            name: _read_tool(environment_class, name, method)
            for name, method in methods.items()
            if getattr(method, _MARK, False)
        }
    )


def _read_tool(environment_class: type, name: str, method: Callable[..., Any]) -> Tool:
    where = f"Tool {environment_class.__name__}.{name}"
    try:
        hints = get_type_hints(method, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{where}: a type hint cannot be resolved ({error}); import the name in the module that defines the tool."
        ) from error
    descriptions = _argument_descriptions(inspect.getdoc(method) or "")
    properties: dict[str, Json] = {}
    required: list[str] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        place = f"{where}, parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(
                f"{place}: {parameter.kind.description} parameters have no JSON schema; declare each parameter separately."
            )
        if parameter.name not in hints:
            raise UsageError(f"{place} has no type hint, so the model cannot know its type; use {_SUPPORTED}.")
        properties[parameter.name] = _property(parameter, hints[parameter.name], place)
        if parameter.name in descriptions:
            properties[parameter.name]["description"] = descriptions[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return Tool(
        name=name,
        schema={
            "type": "function",
            "function": {
                "name": name,
                "description": (inspect.getdoc(method) or "").partition("\n")[0],
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": False,
                },
            },
        },
        hints={parameter: hints[parameter] for parameter in properties},
        required=frozenset(required),
    )


def _property(parameter: inspect.Parameter, hint: Any, place: str) -> dict[str, Json]:
    """Return the schema of one parameter, including its default."""
    try:
        schema = _schema(hint)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    if schema is None:
        raise UsageError(f"{place}: the type {hint!r} has no JSON schema; use {_SUPPORTED}.")
    if parameter.default is not parameter.empty:
        if not fits(parameter.default, hint):
            raise UsageError(
                f"{place}: the default {parameter.default!r} is not {_described(hint)}; change the default or the type."
            )
        schema["default"] = parameter.default
    return schema


def _schema(hint: Any) -> dict[str, Json] | None:
    """Return the JSON schema of a type hint, or None if it has none. Raises UsageError for bounds that do not fit the
    type."""
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is type(None):
        return {"type": "null"}
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        schema = _schema(arguments[0])
        return schema and schema | _bounds_schema(schema, hint)
    if origin is Literal:
        return {"enum": list(arguments)} if all(_is_json_scalar(choice) for choice in arguments) else None
    if origin in (Union, types.UnionType):
        choices = [_schema(argument) for argument in arguments]
        return None if None in choices else {"anyOf": choices}
    if origin is list:
        items = _schema(arguments[0]) if arguments else {}
        return None if items is None else {"type": "array", **({"items": items} if arguments else {})}
    if origin is dict and (not arguments or arguments[0] is str):
        values = _schema(arguments[1]) if arguments else {}
        return None if values is None else {"type": "object", **({"additionalProperties": values} if arguments else {})}
    return None


def _bounds_schema(schema: Mapping[str, Json], hint: Any) -> dict[str, Json]:
    """Return the keywords that the bounds of an annotated hint add to its schema."""
    kinds = frozenset(one.get("type") for one in schema.get("anyOf", [schema]))
    keywords: dict[str, Json] = {}
    for bounds in _bounds(hint):
        if not bounds.applies_to(kinds):
            raise UsageError(
                f"{bounds} does not fit {_described(get_args(hint)[0])}; `ge` and `le` are for numbers, `max_items` for lists, "
                "`max_length` for texts."
            )
        keywords |= bounds.schema
    return keywords


def _bounds(hint: Any) -> list[Bounded]:
    return [extra for extra in hint.__metadata__ if isinstance(extra, Bounded)]


def fits(value: Json, hint: Any) -> bool:
    """Return whether a JSON value has the hinted type and is within its bounds. A bool is not an int, but an int is a
    float, as in JSON."""
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, bool, type(None)):
        return isinstance(value, hint)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return fits(value, arguments[0]) and all(bounds.holds(value) for bounds in _bounds(hint))
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is list:
        return isinstance(value, list) and (not arguments or all(fits(item, arguments[0]) for item in value))
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return False
    return not arguments or all(fits(item, arguments[1]) for item in value.values())


def _described(hint: Any) -> str:
    """Return the description of a type in JSON terms, such as `integer`, `one of "a", "b"` or `array of string, at most
    3 items`."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Annotated:
        return ", ".join([_described(arguments[0]), *(bounds.described for bounds in _bounds(hint))])
    if origin is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_described(argument) for argument in arguments)
    if origin is list:
        return f"array of {_described(arguments[0])}" if arguments else "array"
    return "null" if hint is type(None) else "object"


def _is_json_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _argument_descriptions(docstring: str) -> dict[str, str]:
    """Return the `Args:` section of a Google-style docstring, keyed by argument name, with continuation lines
    joined."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", docstring, flags=re.MULTILINE)
    descriptions: dict[str, str] = {}
    if section is None:
        return descriptions
    lines = inspect.cleandoc("\n" + section[1]).splitlines()
    name = None
    for line in lines:
        entry = re.match(r"(\w+)(?: *\([^)]*\))?: *(.*)", line)
        if entry is not None:
            name = entry[1]
            descriptions[name] = entry[2].strip()
        elif name is not None and line.strip():
            descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
    return descriptions
