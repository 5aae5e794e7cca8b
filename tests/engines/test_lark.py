"""The Lark text for a server allows the same answers as the constraint, and then only a stop id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparring.chat import ByteTokenizer
from sparring.engines.grammar import Grammars, Guide
from sparring.engines.lark import write_lark
from sparring.errors import ConstraintError
from sparring.types import AnswerFormat, Constraint
from tests.chat.test_constraints import (
    BEGINS_REASONING,
    BYTES,
    CHATS,
    GET_ONLY,
    NONE,
    ONE,
    ONE_AT_MOST,
    REQUIRED,
    TOOLS,
    TWO,
    TYPED,
)
from tests.chat.test_renderer import tokenizer as qwen3_tokenizer

TEXTS = (ONE, TWO, '{"a": 1}', "text", f"<think>\nhm\n</think>\n\n{ONE}", f"hm\n</think>\n{ONE}", "hm\n</think>\ntext")
NAMES: Any = ["start", "@content", "@arguments_0", "/start", "#start", '"start\\', "größe"]


def guides(constraint: Constraint, stop_ids: frozenset[int], tokenizer: Any) -> tuple[Guide, Guide, int]:
    """Return the guide of a constraint, and that of a server whose tokenizer ends a text with another id than a stop
    id, with this id."""
    grammars = Grammars(tokenizer, 300)
    end = 0 if isinstance(tokenizer, ByteTokenizer) else 256  # a special token
    assert end not in stop_ids
    lark = Constraint(grammar=write_lark(constraint, stop_ids))
    return grammars.guide(constraint, stop_ids), grammars.guide(lark, frozenset({end})), end


def compare(constraint: Constraint, stop_ids: frozenset[int], tokenizer: Any, text: str) -> bool:
    """Check that both guides allow the same tokens at each place of a text, and return whether they allow it."""
    ours, theirs, end = guides(constraint, stop_ids, tokenizer)
    for token in [*tokenizer.encode(text, add_special_tokens=False), min(stop_ids)]:
        allowed = ours.allowed()
        assert theirs.allowed().tolist() == allowed.tolist()
        assert not allowed[end]
        if not allowed[token]:
            return False
        ours.advance(token)
        theirs.advance(token)
    return True


@pytest.mark.parametrize("name", [*CHATS, "begins reasoning"])
@pytest.mark.parametrize("answer_format", [REQUIRED, GET_ONLY, NONE, ONE_AT_MOST, TYPED])
def test_the_text_allows_what_the_constraint_allows(name: str, answer_format: AnswerFormat) -> None:
    chat = {**CHATS, "begins reasoning": BEGINS_REASONING}[name]
    tokenizer: Any = {"described": ByteTokenizer(), "renderer": qwen3_tokenizer()}.get(name)
    constraint = chat.constraint(answer_format, TOOLS)
    assert constraint is not None
    fitting = [compare(constraint, chat.stop_ids, tokenizer or getattr(chat, "_tokenizer"), one) for one in TEXTS]  # noqa: B009
    assert any(fitting)
    assert answer_format is not REQUIRED or not all(fitting)


@pytest.mark.parametrize("name", NAMES)
def test_names_in_strings_stay_as_they_are(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"const": f"@content {name} start"}}, "required": [name]}
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": schema}}]
    constraint = BYTES.constraint(REQUIRED, tools)
    assert constraint is not None
    call = {"name": name, "arguments": {name: f"@content {name} start"}}
    text = f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
    assert compare(constraint, BYTES.stop_ids, ByteTokenizer(), text)


def test_comments_and_regular_expressions_stay_as_they_are() -> None:
    grammar = (
        'start: A start_word? // start: @content "\n# @content /\nA: /[@]start\\/"/\nstart_word: "start" | start "!"\n'
    )
    for text in ('@start/"', '@start/"start', '@start/"@start/"!', "start"):
        assert compare(Constraint(grammar=grammar), BYTES.stop_ids, ByteTokenizer(), text) is (text != "start")


def test_characters_are_not_escaped_because_servers_lack_this_option() -> None:
    constraint = BYTES.constraint(TYPED, [])
    assert constraint is not None
    lark = write_lark(constraint, BYTES.stop_ids)
    assert "unicode_escapes" in constraint.schemas[0][1]
    assert "unicode_escapes" not in lark
    assert json.dumps(json.loads(constraint.schemas[0][1])["x-guidance"]["whitespace_pattern"]) in lark


def test_a_constraint_that_no_server_can_follow_is_refused() -> None:
    with pytest.raises(ConstraintError, match="no stop id"):
        write_lark(Constraint(grammar='start: "a"'), frozenset())
    with pytest.raises(ConstraintError, match="characters"):
        write_lark(Constraint(grammar=f'start: "{"a" * 300_000}"'), frozenset({1}))
    with pytest.raises(ConstraintError, match="@missing"):
        write_lark(Constraint(grammar="start: @missing"), frozenset({1}))
