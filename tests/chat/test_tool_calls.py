"""Tool calls are read as written, and malformed ones are named, never raised."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.chat import parse_assistant, render_assistant

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=3)


def test_calls_and_content_are_separated() -> None:
    message = parse_assistant(
        'First.\n<tool_call>\n{"name": "a", "arguments": {"x": 1.0}}\n</tool_call>\n'
        '<tool_call>{"name":"b"}</tool_call> Done.'
    )
    assert message["content"] == "First.\n\n Done."
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert calls == [("call_0", "a", '{"x": 1.0}'), ("call_1", "b", "{}")]
    assert "malformed_tool_calls" not in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<tool_call>{"name": "a", "arguments": {}}', "not_closed"),
        ('<tool_call>{"name": "a", "argum', "not_closed"),
        ("<tool_call>look_up b</tool_call>", "not_json"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "not_json"),
        ('<tool_call>{"name": "a", "arguments": {"x": [1e999]}}</tool_call>', "not_json"),
        ('<tool_call>{"name": "a", "arguments": {"x": ' + "9" * 309 + "}}</tool_call>", "not_json"),
        ('<tool_call>{"name": "a"} and more</tool_call>', "not_json"),
        ('<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>', "not_json"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not_json"),
        ('<tool_call>{"arguments": {}}</tool_call>', "no_name"),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', "no_name"),
        ("<tool_call>[1]</tool_call>", "no_name"),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', "arguments_not_object"),
        ('<tool_call>{"name": "a", "arguments": "{}"}</tool_call>', "arguments_not_object"),
    ],
)
def test_malformed_calls_are_classified_and_stay_in_the_content(text: str, problem: str) -> None:
    message = parse_assistant(text)
    assert message["malformed_tool_calls"] == [{"text": text, "problem": problem}]
    assert message["content"] == text
    assert "tool_calls" not in message


def test_a_bad_call_between_good_ones_costs_only_itself() -> None:
    good = '<tool_call>{"name":"a","arguments":{}}</tool_call>'
    message = parse_assistant(f"{good}<tool_call>oops {good}")
    assert len(message["tool_calls"]) == 2
    assert message["malformed_tool_calls"] == [{"text": "<tool_call>oops", "problem": "not_closed"}]


@given(st.text(st.sampled_from('<tool_cal>/{}"name:argumts,[] \n')) | st.text())
def test_no_text_raises(text: str) -> None:
    message = parse_assistant(text)
    assert message["role"] == "assistant"
    json.dumps(message)


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), min_size=1), ARGUMENTS), min_size=1, max_size=3))
def test_rendered_calls_are_read_back(calls: list[tuple[str, dict]]) -> None:
    """Whatever the arguments hold, tags included."""
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls],
    }
    parsed = parse_assistant(render_assistant(message))
    read = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in parsed["tool_calls"]]
    assert read == calls
    assert parsed["content"] == ""
