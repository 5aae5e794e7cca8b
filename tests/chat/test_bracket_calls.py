"""Mistral's calls are read as written, and results are named by the ids that the policy wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.chat import TemplateChat
from sparring.chat.bracket_calls import parse_bracketed, sampled_ids, with_short_ids
from tests.models.architectures.small_models import SMALL_MODELS, byte_tokenizer

LIST = '[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1.0}, "id": "abcdefgh1"}, {"name": "b", "id": "abcdefgh2"}]'
QUESTION = {"role": "user", "content": "find b"}


def result(id: str, content: str = "f") -> dict[str, str]:
    return {"role": "tool", "content": content, "tool_call_id": id}


def test_calls_are_separated_from_the_text_before_and_after_them() -> None:
    message = parse_bracketed(f"First. {LIST} Done.")
    assert message["content"] == "First.\nDone."
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert calls == [("call_0", "a", '{"x": 1.0}'), ("call_1", "b", "{}")]
    assert "malformed_tool_calls" not in message
    assert parse_bracketed(" Just text. ") == {"role": "assistant", "content": "Just text."}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (' [{"name": "a", "argum', "not_closed"),
        ("look_up b]", "not_json"),
        ('[{"name": "a", "arguments": {"x": NaN}}]', "not_json"),
        ("[" * 100_000, "not_closed"),
    ],
)
def test_a_list_that_is_not_json_stays_in_the_content(body: str, problem: str) -> None:
    message = parse_bracketed(f"[TOOL_CALLS]{body}")
    assert [one["problem"] for one in message["malformed_tool_calls"]] == [problem]
    assert message["content"] == f"[TOOL_CALLS]{body.strip()}"
    assert "tool_calls" not in message


def test_a_bad_call_costs_only_itself_and_the_next_one_keeps_its_place() -> None:
    bad = ({"arguments": {}}, 7, {"name": "a", "arguments": [1]})
    message = parse_bracketed(f"[TOOL_CALLS]{json.dumps([*bad, {'name': 'b', 'arguments': {}}])}")
    assert [call["id"] for call in message["tool_calls"]] == ["call_3"]
    assert [one["problem"] for one in message["malformed_tool_calls"]] == ["no_name", "no_name", "arguments_not_object"]


def test_a_result_has_the_id_of_its_call_and_other_ids_are_shortened() -> None:
    ids = sampled_ids(f"[TOOL_CALLS] [] and {LIST}")
    assert ids == ["abcdefgh1", "abcdefgh2"]
    named = with_short_ids([result("call_4_1"), result("call_0"), result("call_2"), result("123456789")], ids)
    assert [one["tool_call_id"] for one in named][:2] == ["abcdefgh2", "abcdefgh1"]
    assert named[2]["tool_call_id"].isalnum()
    assert len(named[2]["tool_call_id"]) == 9
    assert named[3]["tool_call_id"] == "123456789"
    # Without sampled ids, a call and its result still have the same id.
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0", "type": "function", "function": {}}]}
    calling, answered = with_short_ids([call, result("call_0")])
    assert calling["tool_calls"][0]["id"] == answered["tool_call_id"]


def test_the_next_prompt_names_a_result_as_the_policy_named_its_call() -> None:
    small = SMALL_MODELS["Mistral"]
    tokenizer = byte_tokenizer(small.special, small.template, bos=small.bos)
    chat = TemplateChat(tokenizer)
    prompt = chat.render([QUESTION], [])
    answer = tuple(tokenizer.encode(f"{LIST}</s>", add_special_tokens=False))
    following = chat.decode(chat.extend(prompt + answer, [result("call_0_1"), result("call_0_0")], [], stopped=True))
    assert following.index('"call_id": "abcdefgh2"') < following.index('"call_id": "abcdefgh1"')


@given(st.text(st.sampled_from('[TOOL_CALLS]{}"name:argumts, \n')) | st.text())
def test_no_text_raises(text: str) -> None:
    for one in (text, f"[TOOL_CALLS]{text}"):
        assert parse_bracketed(one)["role"] == "assistant"
        sampled_ids(one)
