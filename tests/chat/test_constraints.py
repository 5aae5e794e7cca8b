"""A constrained answer is one that the model's own parser reads as asked, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.grammar import Grammars
from sparring.errors import ConstraintError
from sparring.protocols import Chat
from sparring.types import AnswerFormat
from tests.chat.test_renderer import qwen3
from tests.chat.test_renderer import tokenizer as qwen3_tokenizer
from tests.chat.test_template import CHATML, FORGETS_REASONING, WITH_TOOLS
from tests.chat.test_template import chat as template_chat

TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"key": {"type": "string"}}}}}
    for name in ("get", "put")
]
GET, PUT = '{"name": "get", "arguments": {"key": "b"}}', '{"name":"put","arguments":{}}'
ONE = f"<tool_call>{GET}</tool_call>"
TWO = f"<tool_call>\n{GET}\n</tool_call>\n<tool_call>\n{PUT}\n</tool_call>"

REQUIRED = AnswerFormat(tool_choice="required")
REQUIRED_ONE = AnswerFormat(tool_choice="required", parallel_tool_calls=False)
GET_ONLY = AnswerFormat(tool_choice="required", tool_name="get")
NONE = AnswerFormat(tool_choice="none")
ONE_AT_MOST = AnswerFormat(parallel_tool_calls=False)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TYPED = AnswerFormat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}})
TYPED_TEXT = AnswerFormat(response_format=TYPED.response_format, tool_choice="none")

BYTES = TemplateChat(ByteTokenizer())
OWN_TOOLS, REASONS = template_chat(WITH_TOOLS), template_chat(FORGETS_REASONING)
BEGINS_REASONING = template_chat(
    CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{# </think> #}{% endif")
)
CHATS: dict[str, Chat] = {"described": BYTES, "template": OWN_TOOLS, "reasons": REASONS, "renderer": qwen3()}


def fits(chat: Chat, text: str, answer_format: AnswerFormat) -> bool:
    """Whether an answer may be this text, and end there."""
    tokenizer = (
        ByteTokenizer() if chat is BYTES else qwen3_tokenizer() if chat is CHATS["renderer"] else chat._tokenizer
    )  # type: ignore[attr-defined]
    constraint = chat.constraint(answer_format, TOOLS)
    assert constraint is not None
    guide = Grammars(tokenizer, 300).guide(constraint, chat.stop_ids)
    for token in [*tokenizer.encode(text, add_special_tokens=False), min(chat.stop_ids)]:
        if not guide.allowed()[token]:
            return False
        guide.advance(token)
    return True


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize(
    ("answer_format", "fitting", "unfitting"),
    [
        (
            REQUIRED,
            [ONE, TWO, f"\n{ONE}\n"],
            ["", "no", GET, f"So: {ONE}", f"{ONE} more", ONE.replace("get", "got"), ONE.replace('"b"', "5"), ONE[:-1]],
        ),
        (REQUIRED_ONE, [ONE], [TWO]),
        (GET_ONLY, [ONE], [TWO, f"<tool_call>{PUT}</tool_call>"]),
        (NONE, ["", "Größe <5", GET, "<tool_cal"], [ONE, f"So: {ONE}"]),
        (ONE_AT_MOST, ["", "text", ONE, f"So: {ONE} done"], [TWO, f"So: {TWO}"]),
        (TYPED, ['{"a": 1}', '\n{\n  "a": 1\n}', ONE, TWO], ["", "text", '{"a": "b"}', '{"a": 1} text']),
        (TYPED_TEXT, ['{"a": 1}'], [ONE]),
    ],
)
def test_an_answer_fits_as_far_as_it_has_the_form(
    name: str, answer_format: AnswerFormat, fitting: list[str], unfitting: list[str]
) -> None:
    chat = CHATS[name]
    assert [text for text in fitting if not fits(chat, text, answer_format)] == []
    assert [text for text in unfitting if fits(chat, text, answer_format)] == []


@pytest.mark.parametrize("name", ["reasons", "renderer"])
def test_a_model_that_reasons_may_do_so_first(name: str) -> None:
    chat = CHATS[name]
    for answer_format in (REQUIRED, TYPED):
        assert fits(chat, f"<think>\nget? {{\n</think>\n\n{ONE}", answer_format)
        assert not fits(chat, f"<think>get?\n{ONE}", answer_format)
    assert fits(chat, "<think>\nhm\n</think>\n\ntext", NONE)
    assert not fits(chat, f"<think>\nhm\n</think>\n\n{ONE}", NONE)


def test_reasoning_that_the_prompt_begins_comes_to_its_end() -> None:
    assert fits(BEGINS_REASONING, f"get?\n</think>\n\n{ONE}", REQUIRED)
    assert not fits(BEGINS_REASONING, ONE, REQUIRED)


def test_escapes_are_of_whole_characters() -> None:
    escaped = json.dumps({"name": "get", "arguments": {"key": "ä😀\x01"}})
    assert fits(BYTES, f"<tool_call>{escaped}</tool_call>", REQUIRED)
    assert not fits(BYTES, f"<tool_call>{escaped.replace('ud83d', 'ud83dx')}</tool_call>", REQUIRED)


def test_what_changes_nothing_needs_no_grammar() -> None:
    assert BYTES.constraint(AnswerFormat(), TOOLS) is None
    assert BYTES.constraint(NONE, []) is None
    assert BYTES.constraint(ONE_AT_MOST, []) is None


@pytest.mark.parametrize(
    ("answer_format", "tools", "words"),
    [
        (REQUIRED, [], "must call a tool, but the tools"),
        (AnswerFormat(tool_choice="required", tool_name="got"), TOOLS, "the tool 'got'"),
        (REQUIRED, [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], "an object"),
    ],
)
def test_what_no_call_can_satisfy_is_refused(answer_format: AnswerFormat, tools: Any, words: str) -> None:
    with pytest.raises(ConstraintError, match=words):
        BYTES.constraint(answer_format, tools)


OTHER_CALLS = WITH_TOOLS.replace(
    "{{ call.function | tojson }}", "{{ call.function.name }}: {{ call.function.arguments.key }}"
)
CHANNELS = WITH_TOOLS.replace("message['content'] }}", "'[final] ' + message['content'] }}")


@pytest.mark.parametrize("answer_format", [REQUIRED, NONE, ONE_AT_MOST, TYPED])
def test_calls_that_are_no_json_are_neither_forced_nor_forbidden(answer_format: AnswerFormat) -> None:
    with pytest.raises(ConstraintError, match="Tool calls in this model's format"):
        template_chat(OTHER_CALLS).constraint(answer_format, TOOLS)
    assert template_chat(OTHER_CALLS).constraint(TYPED, []) is not None


def test_text_that_the_format_wraps_follows_no_schema() -> None:
    with pytest.raises(ConstraintError, match=r"\[final\]|unlike a prompted one"):
        template_chat(CHANNELS).constraint(TYPED, [])
