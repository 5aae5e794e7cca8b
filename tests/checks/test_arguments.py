"""Arguments are found in prompts, results and schemas, the likeliest first."""

import re
from datetime import date
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.checks.evidence.arguments import Known, fit_to_schema, list_schema_values, split_words
from sparring.checks.evidence.literals import find_compared

TEXT = {"type": "string"}


def first(prompt: str, tool: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """The likeliest arguments of a tool, given a prompt."""
    known = Known()
    known.add_text(prompt, "prompt")
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return next(known.arguments(tool, schema, {}))[0]


@pytest.mark.parametrize(
    "prompt",
    [
        "However, decide by the procedure.\nbusiness_id: biz_51b7a\nCurrency: EUR",
        "However, decide by the procedure.\n| field | value |\n|---|---|\n| Business ID | biz_51b7a |\n| currency | EUR |",
        "However:\n| business_id | currency |\n| --- | --- |\n| biz_51b7a | EUR |",
        'However, the case is {"businessId": "biz_51b7a", "currency": "EUR"}, so decide.',
        "However, <business_id>biz_51b7a</business_id> pays in currency=EUR.",
        "- **Business ID**: `biz_51b7a`\n- **Currency**: EUR",
    ],
)
def test_values_come_from_lines_tables_json_and_tags_of_the_prompt(prompt: str) -> None:
    assert first(prompt, "limit", business_id=TEXT, currency=TEXT) == {"business_id": "biz_51b7a", "currency": "EUR"}


def test_a_code_after_a_word_of_its_kind_is_an_argument_of_that_name() -> None:
    assert first("Release aircraft DGK41 for 12 hours.", "fitted", aircraft=TEXT) == {"aircraft": "DGK41"}


@pytest.mark.parametrize(
    "name", ["Núñez", "Šimić", "O'Brien", "Anne-Marie", "Łukasik", "Ada Lovelace", "McDonald", "Çelik"]
)
def test_names_are_found_in_prompts_with_accents_apostrophes_and_hyphens(name: str) -> None:
    known = Known()
    known.add_text(f"Call 12: this is {name}, once more.", "prompt")
    assert name in [one.value for one in known.seen]


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("Traveller 17 asks: which flight from Berk to Alden North is the cheapest?", ("origin", "destination")),
        ("Traveller 17 asks for the cheapest flight to Alden North from Berk.", ("source", "target")),
        ("Traveller 17 goes between the town of 'Berk' and Alden North.", ("from_place", "to_place")),
        ("How long are the roads from Berk to Alden North?", ("end", "start")),
    ],
)
def test_what_stands_after_from_and_to_is_where_something_begins_and_ends(prompt: str, names: tuple[str, str]) -> None:
    begin, end = sorted(names, key=lambda name: name in ("destination", "target", "to_place", "end"))
    assert first(prompt, "search", **dict.fromkeys(names, TEXT)) == {begin: "Berk", end: "Alden North"}


def test_values_of_one_record_are_tried_together() -> None:
    known = Known()
    known.add_json([{"flight": "LH1", "seat": "2A"}, {"flight": "LH7", "seat": "9C"}], "result of list")
    schema = {"properties": {"flight": TEXT, "seat": TEXT}, "required": ["flight", "seat"]}
    tried = [arguments for arguments, _ in islice(known.arguments("book", schema, {}), 4)]
    assert {"flight": "LH7", "seat": "9C"} in tried
    assert {"flight": "LH1", "seat": "9C"} not in tried


def test_what_another_tool_took_under_the_name_comes_first() -> None:
    known = Known()
    known.add_text("If the line is dead: visit.\nline: dead", "prompt")
    known.add_json({"line_number": "T48"}, "result of account")
    known.add_legal({"line": "T48"})
    assert next(known.arguments("visit", {"properties": {"line": TEXT}, "required": ["line"]}, {}))[0] == {
        "line": "T48"
    }


def test_a_source_that_worked_in_another_task_comes_first() -> None:
    known = Known()
    known.add_text("name: Ann\nkey: k-17", "prompt")
    schema = {"properties": {"customer": TEXT}, "required": ["customer"]}
    worked = {("find", "customer"): ["prompt:key"]}
    assert next(known.arguments("find", schema, worked))[0] == {"customer": "k-17"}


def test_schemas_offer_enumerations_patterns_formats_and_bounds() -> None:
    assert list_schema_values({"enum": ["add", "take"]}) == ["add", "take"]
    assert re.fullmatch(
        r"(ORD|INV)-\d{3,}", list_schema_values({"type": "string", "pattern": r"^(ORD|INV)-\d{3,}$"})[0]
    )
    assert list_schema_values({"type": "string", "format": "date"}) == ["2025-01-06"]
    assert set(list_schema_values({"type": "integer", "minimum": 3, "maximum": 5})) == {3, 5}
    prompt = "Order 17 of 2025-03-04, code AB-9."
    assert first(prompt, "look", code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]$"}) == {"code": "AB-9"}
    assert first(prompt, "look", day={"type": "string", "format": "date"}) == {"day": "2025-03-04"}


def test_values_take_the_type_that_is_asked_for() -> None:
    assert fit_to_schema("$1,200", {"type": "integer"}) == 1200
    assert fit_to_schema(17, TEXT) == "17"
    assert fit_to_schema("a; b", {"type": "array", "items": TEXT}) == ["a", "b"]
    assert fit_to_schema("x", {"type": "integer"}) is None
    assert fit_to_schema(9, {"type": "integer", "maximum": 5}) is None


def test_names_are_the_same_in_every_spelling() -> None:
    assert {split_words(name) for name in ("orderId", "order_id", "Order ID", "orders-id")} == {("order", "id")}


@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    first(text, "look", word=TEXT, number={"type": "number"}, several={"type": "array", "items": TEXT})


def test_two_arguments_of_a_tool_get_different_values() -> None:
    known = Known()
    known.add_json([{"account": "AC-1", "owner": "Ada"}, {"account": "AC-2", "owner": "Ben"}], "result of accounts")
    schema = {
        "properties": {"from_account": TEXT, "to_account": TEXT},
        "required": ["from_account", "to_account"],
    }
    tried = next(known.arguments("transfer", schema, {}))[0]
    assert {tried["from_account"], tried["to_account"]} == {"AC-1", "AC-2"}


def test_an_argument_for_prose_gets_the_sentence_that_was_seen() -> None:
    known = Known()
    known.add_json({"title": "Memo 1", "entry": "The plumber keeps the spare keys on the third floor."}, "field")
    schema = {"properties": {"text": TEXT}, "required": ["text"]}
    assert next(known.arguments("write", schema, {}))[0] == {
        "text": "The plumber keeps the spare keys on the third floor."
    }


LIMIT = 48


def graded(level: str, amount: int) -> str:
    if level == "urgent" or amount > LIMIT:
        return "now"
    return "later" if level in {"low"} else "soon"


def test_constants_that_a_tool_compares_its_arguments_with_are_values_to_try() -> None:
    assert find_compared(graded) == {"level": ["urgent", "low"], "amount": [LIMIT]}
    assert find_compared(len) == {}


@pytest.mark.parametrize("odd", [{("a", "b"): 1}, [{("a", 1): {2: 3}}], date(2026, 1, 6), {"a", "b"}])
def test_values_that_json_has_no_form_for_are_remembered_like_others(odd: Any) -> None:
    known = Known()
    known.add_json({"odd": odd, "room": "R1"}, "field")
    known.add_legal({"odd": odd, "room": "R1"})
    schema = {"type": "object", "properties": {"room": TEXT}, "required": ["room"]}
    assert next(known.arguments("open", schema, {}))[0] == {"room": "R1"}
    assert len(known.legal) == 2


def test_an_argument_that_was_legal_before_comes_first_however_its_number_is_written() -> None:
    known = Known()
    known.add_json({"num": [2, 7]}, "field")
    known.add_legal({"num": 7.0})
    assert next(one.value for one in known.ranked("take", "num", {"type": "integer"}, ())) == 7
