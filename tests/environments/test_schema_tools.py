"""Tools with a JSON schema of their own: what is refused as a schema, and what as arguments."""

from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="jsonschema is not installed (the extras of the adapters bring it)")

from sparring.environments.schema_tools import SchemaTool
from sparring.errors import UsageError

BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 10},
        "floor": {"$ref": "#/$defs/floor"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title"],
    "additionalProperties": False,
    "$defs": {"floor": {"type": "integer", "minimum": 0, "maximum": 3}},
}


def find_problem(**arguments: Any) -> str | None:
    return SchemaTool("find", "Shelf of a book.", BOOK).problem_with(arguments)


def test_the_schema_is_passed_on_as_it_is() -> None:
    assert SchemaTool("find", "Shelf of a book.", BOOK).schema == {
        "type": "function",
        "function": {"name": "find", "description": "Shelf of a book.", "parameters": BOOK},
    }


def test_arguments_that_fit_have_no_problem() -> None:
    assert find_problem(title="Emma", floor=3, tags=["a", "b"]) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "find: 'title' is a required property"),
        ({"title": "Emma", "floor": 4}, "find: argument floor: 4 is greater than the maximum of 3"),
        ({"title": "Emma", "floor": True}, "find: argument floor: True is not of type 'integer'"),
        ({"title": "Emma", "floor": 2.0}, "find: argument floor: 2.0 is not of type 'integer'"),
        ({"title": "Emma", "tags": ["a", 1]}, "find: argument tags[1]: 1 is not of type 'string'"),
        ({"title": "Emma", "shelf": "A"}, "'shelf' was unexpected"),
        ({"title": None}, "None is not of type 'string'"),
    ],
)
def test_arguments_that_do_not_fit_are_reported_with_their_place(arguments: dict[str, Any], words: str) -> None:
    message = find_problem(**arguments)
    assert message is not None
    assert words in message


def test_a_long_argument_is_not_repeated_whole() -> None:
    message = find_problem(title="x" * 5000)
    assert message is not None
    assert len(message) == 300


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "objekt"}, "'objekt' is not valid"),
        ({"type": "object", "properties": {"a": {"type": "integer", "minimum": "low"}}}, "'low' is not of type"),
        ({"type": "string"}, "its type is 'string', not 'object'"),
        ({}, "its type is None"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}}, "'#/$defs/no', which it does not contain"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}, "which it does not contain"),
    ],
)
def test_what_is_no_schema_of_an_object_is_refused_by_the_tool_s_name(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="tool 'broken' has no usable JSON schema") as caught:
        SchemaTool("broken", "", parameters)
    assert words in str(caught.value)
