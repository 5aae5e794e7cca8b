"""Tools of environment and production are compared by the arguments that they take, however their schemas are written."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from sparring.checks.evidence.schema_comparison import compare_schemas, resolve_references
from sparring.checks.evidence.user_inputs import read_schemas
from sparring.environments import Bounded, Environment, tool
from sparring.environments.schema_tools import SchemaTool
from sparring.errors import DataError


class Desk(Environment):
    @tool
    def book(
        self,
        city: str,
        nights: Annotated[int, Bounded(ge=1, le=30)] = 1,
        room: Literal["single", "double"] = "single",
        floor: int | None = None,
        tags: list[str] | None = None,
    ) -> str:
        """Book a room."""
        return ""


HERE: dict[str, Any] = Desk.tools()["book"].schema["function"]["parameters"]
SAME: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "description": "how a room is booked",
    "properties": {
        "city": {"type": "string", "description": "as on the map"},
        "nights": {"type": "integer", "exclusiveMinimum": 0, "maximum": 30, "default": 1.0},
        "room": {"$ref": "#/$defs/Room", "default": "single"},
        "floor": {"type": "integer"},
        "tags": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}], "default": None},
    },
    "required": ["city"],
    "$defs": {"Room": {"title": "Room", "type": "string", "enum": ["double", "single"]}},
}


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(content))
    return path


def openai(parameters: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "book", "description": "Book.", "parameters": parameters}}]


def compared(tmp_path: Path, production: Any, here: Any = HERE) -> list[str]:
    """What is reported where production's file lists one tool."""
    (there,) = read_schemas(written(tmp_path, production)).values()
    return [one.what for one in compare_schemas(resolve_references(here, "here"), there["function"]["parameters"])]


@pytest.mark.parametrize(
    "production",
    [
        openai(SAME),
        {"tools": openai(SAME)},
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "book", "inputSchema": SAME}]}},
        {"toolConfig": {"tools": [{"toolSpec": {"name": "book", "inputSchema": {"json": SAME}}}]}},
        [{"name": "book", "description": "Book.", "input_schema": SAME}],
    ],
    ids=["openai", "request", "mcp", "bedrock", "anthropic"],
)
def test_the_same_arguments_in_another_notation_are_no_difference(tmp_path: Path, production: Any) -> None:
    assert compared(tmp_path, production) == []


@pytest.mark.parametrize(
    ("argument", "production", "what"),
    [
        ("nights", {"type": "integer", "minimum": 1, "maximum": 14}, "takes values that production refuses"),
        ("nights", {"type": "integer", "minimum": 0, "maximum": 30}, "refuses values that production takes"),
        ("nights", {"type": "integer", "minimum": 2, "maximum": 40}, "takes other values than production"),
        (
            "nights",
            {"type": "integer", "minimum": 1, "maximum": 30, "default": 2},
            "has a different default than in production",
        ),
        (
            "nights",
            {"type": ["integer", "string"], "minimum": 1, "maximum": 30},
            "refuses values that production takes",
        ),
        ("nights", {"type": "string"}, "takes other values than production"),
        ("city", {"type": "string", "pattern": "^[A-Z]"}, "takes values that production refuses"),
        ("city", {"type": "string", "format": "uuid"}, "takes values that production refuses"),
        ("city", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "refuses values that production takes"),
        ("city", {"$ref": "#/$defs/City"}, "takes values that production refuses"),
        ("room", {"enum": ["single", "double", "suite"]}, "refuses values that production takes"),
        ("room", {"type": "string"}, "refuses values that production takes"),
        ("tags", {"type": "array", "items": {"type": "integer"}}, "is described differently than in production"),
        ("tags", {"type": "array", "items": {"type": "string"}, "maxItems": 3}, "takes values that production refuses"),
    ],
)
def test_a_difference_of_an_argument_is_named(tmp_path: Path, argument: str, production: Any, what: str) -> None:
    schema = {**SAME, "properties": {**SAME["properties"], argument: production}}
    schema["$defs"] = {**SAME["$defs"], "City": {"type": "string", "minLength": 1}}
    assert compared(tmp_path, openai(schema)) == [f"the argument {argument!r} {what}"]


def test_numbers_and_their_texts_are_different_choices(tmp_path: Path) -> None:
    def listed(choices: list[Any]) -> dict[str, Any]:
        return {"type": "object", "properties": {"floor": {"enum": choices}}}

    found = compared(tmp_path, openai(listed(["1", "2"])), here=listed([1, 2]))
    assert found == ["the argument 'floor' takes other values than production"]
    assert compared(tmp_path, openai(listed([2.0, 1])), here=listed([1, 2])) == []


def test_further_arguments_are_compared_where_production_describes_them(tmp_path: Path) -> None:
    open_ = {name: one for name, one in HERE.items() if name != "additionalProperties"}
    strict, free = {**SAME, "additionalProperties": False}, {**SAME, "additionalProperties": {"type": "string"}}
    assert compared(tmp_path, openai(strict)) == []
    assert compared(tmp_path, openai(strict), here=open_) == [
        "other arguments: the tool takes values that production refuses"
    ]
    assert compared(tmp_path, openai(free)) == ["other arguments: the tool refuses values that production takes"]
    assert compared(tmp_path, openai(SAME), here=open_) == []


def test_what_holds_of_the_arguments_together_is_compared(tmp_path: Path) -> None:
    one_of_both = {**SAME, "anyOf": [{"required": ["floor"]}, {"required": ["tags"]}]}
    assert compared(tmp_path, openai(one_of_both)) == [
        "all arguments together: the tool takes values that production refuses"
    ]
    parts = {
        "allOf": [{"type": "object", "properties": SAME["properties"]}, {"required": ["city"]}],
        "$defs": SAME["$defs"],
    }
    assert compared(tmp_path, openai(parts)) == []


def test_a_recursive_schema_is_compared(tmp_path: Path) -> None:
    def menu(item: Any) -> dict[str, Any]:
        entry = {
            "type": "object",
            "properties": {"name": item, "inside": {"type": "array", "items": {"$ref": "#/$defs/Entry"}}},
        }
        return {"type": "object", "properties": {"menu": {"$ref": "#/$defs/Entry"}}, "$defs": {"Entry": entry}}

    assert compared(tmp_path, openai(menu({"type": "string"})), here=menu({"type": "string"})) == []
    assert len(compared(tmp_path, openai(menu({"type": "string"})), here=menu({"type": "integer"}))) == 1


def test_an_operation_has_the_arguments_of_its_parameters_and_its_body(tmp_path: Path) -> None:
    document = {
        "openapi": "3.0.3",
        "paths": {
            "/rooms/{city}": {
                "parameters": [{"$ref": "#/components/parameters/City"}],
                "post": {
                    "operationId": "book",
                    "requestBody": {
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Booking"}}}
                    },
                },
            }
        },
        "components": {
            "parameters": {"City": {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}}},
            "schemas": {
                "Booking": {
                    "type": "object",
                    "properties": {
                        "nights": {
                            "type": "integer",
                            "minimum": 0,
                            "exclusiveMinimum": True,
                            "maximum": 30,
                            "default": 1,
                        },
                        "room": {"$ref": "#/components/schemas/Room"},
                        "floor": {"type": "integer", "nullable": True},
                        "tags": {"type": "array", "items": {"$ref": "#/components/schemas/Tag"}},
                    },
                },
                "Room": {"type": "string", "enum": ["single", "double"]},
                "Tag": {"type": "string"},
            },
        },
    }
    assert compared(tmp_path, document) == []
    document["components"]["schemas"]["Tag"] = {"type": "integer"}
    assert compared(tmp_path, document) == ["the argument 'tags' is described differently than in production"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (openai({"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}}), "tool 'book': .*/.defs/City"),
        (
            openai({"type": "object", "properties": {"city": {"$ref": "https://example.com/c"}}}),
            "everything that it refers to",
        ),
        (openai({"type": "object", "properties": {"city": {"type": "text"}}}), "tool 'book': .*\"text\" is not valid"),
        (openai(SAME) * 2, "has the tool 'book' more than once"),
        ({"swagger": "2.0", "paths": {}}, r"is Swagger 2.0; convert it to OpenAPI 3"),
        ({"toolConfig": {"tools": []}}, "contains no tools"),
    ],
)
def test_schemas_that_cannot_be_compared_are_an_error_of_their_file(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_schemas(written(tmp_path, content))


def test_an_environment_may_take_the_schemas_of_production_as_they_are(tmp_path: Path) -> None:
    production = {
        "type": "object",
        "properties": {
            "filter": {"type": "object", "properties": {"stars": {"type": "integer"}}, "required": ["stars"]}
        },
    }

    class Hotels(Environment):
        @classmethod
        def tools(cls) -> dict[str, SchemaTool]:
            return {"search": SchemaTool("search", "Hotels.", production)}

        def search(self, filter: dict[str, Any]) -> list[str]:
            return ["Grand"] * filter["stars"]

    here = Hotels.tools()["search"].schema["function"]["parameters"]
    assert compared(tmp_path, [{"name": "search", "inputSchema": production}], here=here) == []
