"""Schemas from typed methods, and the strictness of arguments."""

from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.environments.base import Environment
from sparring.environments.tools import Bounded, fits, tool, tools_of
from sparring.errors import UsageError


class Library(Environment):
    @tool
    def find(
        self, title: str, limit: int = 3, order: Literal["new", "old"] = "new", tags: list[str] | None = None
    ) -> str:
        """Shelves of a book.

        Args:
            title: The words on
                the cover.
            order (str): Which comes first.

        Returns:
            A shelf.
        """
        return f"{title} {limit} {order} {tags}"

    @tool
    async def rate(self, stars: float, kept: bool, notes: dict[str, int], extra: Optional[list] = None) -> None:  # noqa: UP045
        pass

    def not_a_tool(self, anything: Any) -> None:
        pass


def test_hints_and_docstring_become_the_openai_schema() -> None:
    assert Library.tool_schemas()[0] == {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Shelves of a book.",
            "parameters": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "description": "The words on the cover."},
                    "limit": {"type": "integer", "default": 3},
                    "order": {"enum": ["new", "old"], "default": "new", "description": "Which comes first."},
                    "tags": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["title"],
                "additionalProperties": False,
            },
        },
    }


def test_numbers_booleans_and_objects_have_schemas_and_an_undocumented_tool_an_empty_description() -> None:
    function = Library.tool_schemas()[1]["function"]
    assert function["description"] == ""
    assert function["parameters"]["properties"] == {
        "stars": {"type": "number"},
        "kept": {"type": "boolean"},
        "notes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "extra": {"anyOf": [{"type": "array"}, {"type": "null"}], "default": None},
    }


def test_only_marked_methods_are_tools_in_order_of_definition() -> None:
    assert list(tools_of(Library)) == ["find", "rate"]


def test_a_subclass_inherits_tools_and_may_replace_or_drop_them() -> None:
    class Small(Library):
        @tool
        def find(self, title: str) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            """By title."""
            return title

        def rate(self) -> None:  # type: ignore[override]
            pass

    assert [schema["function"]["description"] for schema in Small.tool_schemas()] == ["By title."]


def test_a_prompt_that_describes_the_tools_offers_none_to_the_template() -> None:
    class Terse(Library):
        describe_tools = "prompt"

    assert Terse.offered_tools() == ()
    assert len(Terse.tool_schemas()) == 2
    assert Library.offered_tools() == Library.tool_schemas()


@pytest.mark.parametrize(
    ("hint", "default", "words"),
    [
        (bytes, None, "bytes"),
        (tuple[int, int], None, "tuple"),
        (dict[int, str], None, "dict"),
        (list[bytes], None, "list"),
        (int | bytes, None, "int | bytes"),
        (int, "three", "the default 'three' is not integer"),
    ],
)
def test_a_type_without_schema_is_refused_with_class_method_and_parameter(hint: Any, default: Any, words: str) -> None:
    def look(self: Any, place: Any) -> None: ...

    look.__annotations__ = {"place": hint}
    look.__defaults__ = None if default is None else (default,)
    broken = type("Broken", (Environment,), {"look": tool(look)})
    with pytest.raises(UsageError, match=r"Tool Broken\.look, parameter 'place'") as caught:
        broken.tool_schemas()
    assert words in str(caught.value)


def test_a_parameter_without_hint_and_star_parameters_are_refused() -> None:
    class Unhinted(Environment):
        @tool
        def look(self, place) -> None: ...  # type: ignore[no-untyped-def]

    class Starred(Environment):
        @tool
        def look(self, *places: str) -> None: ...

    with pytest.raises(UsageError, match="parameter 'place' has no type hint"):
        Unhinted.tool_schemas()
    with pytest.raises(UsageError, match="parameter 'places': variadic positional"):
        Starred.tool_schemas()


def test_an_unresolvable_hint_names_the_tool() -> None:
    def look(self: Any, place: Any) -> None: ...

    look.__annotations__ = {"place": "Nowhere"}
    with pytest.raises(UsageError, match=r"Tool Broken\.look: .*Nowhere"):
        type("Broken", (Environment,), {"look": tool(look)}).tool_schemas()


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (True, int, False),
        (1, bool, False),
        (1, float, True),
        (True, float, False),
        (1.0, int, False),
        ("1", int, False),
        (None, str, False),
        (None, str | None, True),
        (1, Literal[1, "a"], True),
        (True, Literal[1, "a"], False),
        (["a", 1], list[str], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "1"}, dict[str, int], False),
        ([], dict, False),
    ],
)
def test_values_fit_hints_strictly(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


JSON_HINTS = st.recursive(
    st.sampled_from([(str, "a"), (int, 2), (float, 0.5), (bool, True), (None.__class__, None)]),
    lambda inner: st.one_of(
        inner.map(lambda pair: (list[pair[0]], [pair[1]])), inner.map(lambda pair: (dict[str, pair[0]], {"k": pair[1]}))
    ),
    max_leaves=4,
)


@given(JSON_HINTS)
def test_a_value_built_for_a_hint_fits_it_and_not_a_list_of_it(pair: tuple[Any, Any]) -> None:
    hint, value = pair
    assert fits(value, hint)
    assert not fits([value], hint) or hint is list


class Stock(Environment):
    @tool
    def order(
        self,
        num: Annotated[int, Bounded(ge=1, le=99)],
        price: Annotated[float, Bounded(ge=0)] = 1.5,
        labels: Annotated[list[Annotated[str, Bounded(max_length=4)]], Bounded(max_items=2)] | None = None,
    ) -> str:
        """Order."""
        return ""


def test_bounds_go_into_the_schema() -> None:
    assert Stock.tool_schemas()[0]["function"]["parameters"]["properties"] == {
        "num": {"type": "integer", "minimum": 1, "maximum": 99},
        "price": {"type": "number", "minimum": 0, "default": 1.5},
        "labels": {
            "anyOf": [{"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2}, {"type": "null"}],
            "default": None,
        },
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"num": 1}, None),
        ({"num": 99, "price": 0, "labels": ["abcd", ""]}, None),
        ({"num": 0}, "order: argument 'num' must be integer, at least 1 and at most 99, got 0"),
        ({"num": 100}, "order: argument 'num' must be integer, at least 1 and at most 99, got 100"),
        ({"num": 1, "price": -0.5}, "order: argument 'price' must be number, at least 0, got -0.5"),
        ({"num": True}, "order: argument 'num' must be integer, at least 1 and at most 99, got true"),
        (
            {"num": 1, "labels": ["a", "b", "c"]},
            "order: argument 'labels' must be array of string, at most 4 characters, at most 2 items or null, "
            'got ["a", "b", "c"]',
        ),
        (
            {"num": 1, "labels": ["abcde"]},
            "order: argument 'labels' must be array of string, at most 4 characters, at most 2 items or null, "
            'got ["abcde"]',
        ),
    ],
)
def test_bounds_are_checked_strictly(arguments: dict[str, Any], problem: str | None) -> None:
    assert tools_of(Stock)["order"].problem_with(arguments) == problem


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Annotated[str, Bounded(ge=0)], "does not fit string"),
        (Annotated[int, Bounded(max_items=3)], "does not fit integer"),
        (Annotated[list[int] | None, Bounded(max_length=3)], "does not fit array of integer or null"),
        (Annotated[Literal["a"], Bounded(max_length=3)], 'does not fit one of "a"'),
    ],
)
def test_bounds_that_a_type_does_not_have_are_refused(hint: Any, words: str) -> None:
    class Odd(Environment):
        def act(self, value):
            pass

    Odd.act.__annotations__["value"] = hint
    tool(Odd.act)
    with pytest.raises(UsageError, match=f"Tool Odd.act, parameter 'value': .*{words}"):
        Odd.tool_schemas()


def test_bounds_that_nothing_can_meet_are_refused() -> None:
    with pytest.raises(UsageError, match="no value is at least 2 and at most 1"):
        Bounded(ge=2, le=1)
    with pytest.raises(UsageError, match="fewer than 0"):
        Bounded(max_items=-1)
    with pytest.raises(UsageError, match="sets no bounds"):
        Bounded()


def test_a_long_wrong_argument_is_not_repeated_in_full() -> None:
    problem = tools_of(Stock)["order"].problem_with({"num": 1, "labels": ["a"] * 10_000})
    assert problem is not None
    assert problem.endswith('"a",...')
    assert len(problem) < 400


def test_a_default_out_of_bounds_is_refused() -> None:
    class Odd(Environment):
        @tool
        def act(self, num: Annotated[int, Bounded(ge=1)] = 0) -> None:
            pass

    with pytest.raises(UsageError, match="the default 0 is not integer, at least 1"):
        Odd.tool_schemas()
