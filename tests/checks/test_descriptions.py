"""What is read out of descriptions and prompts: defaults, and limits with the side on which their own number is."""

import pytest

from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.survey import CallResult
from sparring.checks.evidence.thresholds import _find_limits
from sparring.checks.rules.descriptions import _broken, _named_default
from sparring.environments import ToolResult

WHOLE, FLAG = {"type": "integer"}, {"type": "boolean"}
ORDER = {"type": "string", "enum": ["asc", "desc"]}


@pytest.mark.parametrize(
    ("text", "schema", "default"),
    [
        ("how many, default 10", WHOLE, 10),
        ("for how many; for 4 when left out", WHOLE, 4),
        ("number of nights (default: 2)", WHOLE, 2),
        ("if omitted, 7", WHOLE, 7),
        ("false by default", FLAG, False),
        ("order; asc when left out", ORDER, "asc"),
        ("page, from 1", WHOLE, None),
        ("year; the current one when left out", WHOLE, None),
    ],
)
def test_the_default_that_a_description_names_is_read(text: str, schema: dict, default: object) -> None:
    assert _named_default(text, schema) == default


@pytest.mark.parametrize(
    ("text", "is_upper"),
    [
        ("A claim of more than 500 goes up.", False),
        ("at most 500", False),
        ("500 or less", False),
        ("no less than 500", True),
        ("no more than 500", False),
        ("at least 500", True),
        ("under 500", True),
        ("500 or more", True),
    ],
)
def test_the_number_of_a_limit_is_on_the_side_that_the_words_say(text: str, is_upper: bool) -> None:
    assert {number: side for number, (side, _) in _find_limits(text).items()} == {500.0: is_upper}


def test_a_number_that_is_a_limit_in_both_ways_is_none() -> None:
    assert _find_limits("more than 5 is much, at least 5 is enough") == {}


@pytest.mark.parametrize(
    ("description", "result", "symptom"),
    [
        ("At most 2 rooms that are free.", '["A", "B", "C"]', "returns more than 2 rows"),
        ("At most 2 rooms that are free.", '["A", "B"]', None),
        ("The first 2 days of each room.", '["A", "B", "C"]', None),
        ("Price with two decimals.", "3.14159", "returns 3.14159"),
        ("Price with two decimals.", "3.5", None),
        ("Day of the visit, YYYY-MM-DD.", '"03.05.2025"', "returns '03.05.2025'"),
        ("Day of the visit, YYYY-MM-DD.", '"2025-05-03"', None),
    ],
)
def test_a_result_is_compared_with_its_description(description: str, result: str, symptom: str | None) -> None:
    found = list(
        _broken(description, CallResult(Call("look", {}), ToolResult(content=result, error=None, transition={})))
    )
    assert [one for one in found if symptom is None or not one.startswith(symptom)] == []
    assert bool(found) == (symptom is not None)
