"""A script as the policy: fixed messages in order, or a function of the messages so far."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparring.engines.scripted_messages import ScriptedMessages, read_script
from sparring.environments import tool_call
from sparring.errors import DataError, UsageError
from sparring.types import Message, MessageAnswer, MessageRequest, Sampling

USER = {"role": "user", "content": "find b"}


def answer(engine: ScriptedMessages, *messages: Message, **options: Any) -> MessageAnswer:
    request = MessageRequest(session_id="s", messages=(USER, *messages), tools=(), sampling=Sampling())
    return asyncio.run(engine.answer(request, **options))


def test_fixed_messages_answer_by_how_often_the_assistant_spoke_and_the_last_one_stays() -> None:
    engine = ScriptedMessages([tool_call("get", key="b"), "done"], name="constant")
    first = answer(engine).message
    assert first["tool_calls"] == [{"type": "function", "function": {"name": "get", "arguments": '{"key": "b"}'}}]
    assert [answer(engine, *[first] * num_answers).message["content"] for num_answers in (1, 2, 3)] == ["done"] * 3
    assert engine.fingerprint == "scripted:constant"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_sees_the_messages_so_far(is_async: bool) -> None:
    def say(messages: Sequence[Message]) -> str:
        return f"{len(messages)}: {messages[0]['content']}"

    async def say_later(messages: Sequence[Message]) -> str:
        return say(messages)

    heard: list[Any] = []
    engine = ScriptedMessages(say_later if is_async else say, name="mine:say")
    assert answer(engine, on_delta=heard.append).message == {"role": "assistant", "content": "1: find b"}
    assert heard == [{"content": "1: find b"}]


def test_a_script_that_fails_or_speaks_for_others_is_named() -> None:
    def broken(_messages: Sequence[Message]) -> str:
        raise KeyError("b")

    with pytest.raises(UsageError, match="mine:broken raised KeyError"):
        answer(ScriptedMessages(broken, name="mine:broken"))
    with pytest.raises(UsageError, match="must return an assistant message"):
        answer(ScriptedMessages(lambda _: {"role": "user", "content": "I"}, name="mine"))


def test_a_file_holds_one_message_a_line(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"content": "a"}\n\n{"role": "assistant", "content": "b"}\n', "utf-8")
    assert [message["content"] for message in read_script(path)] == ["a", "b"]
    for line, problem in {
        "{": "line 2",
        '{"role": "user"}': "contains only assistant messages",
        "[]": "contains only assistant messages",
    }.items():
        path.write_text(f'{{"content": "a"}}\n{line}\n', "utf-8")
        with pytest.raises(DataError, match=problem):
            read_script(path)
    with pytest.raises(DataError, match="does not exist"):
        read_script(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="contains no message"):
        ScriptedMessages([], name="empty")


@pytest.mark.parametrize(
    "calls", [[{"name": "get", "arguments": {}}], {"name": "get"}, [{"function": {"arguments": {}}}], [{"function": 1}]]
)
def test_a_script_whose_calls_cannot_be_read_is_named(calls: Any) -> None:
    with pytest.raises(UsageError, match=r"mine returned .* with tool calls that cannot be read"):
        answer(ScriptedMessages([{"tool_calls": calls}], name="mine"))


@pytest.mark.parametrize("message", [{"content": 5}, {"content": False}, {"content": ["a"]}, {"reasoning_content": {}}])
def test_content_is_text_and_where_it_is_not_is_named(message: Any, tmp_path: Path) -> None:
    (key,) = message
    path = tmp_path / "script.jsonl"
    path.write_text(f'{{"content": null}}\n{json.dumps(message)}\n', "utf-8")
    with pytest.raises(DataError, match=rf"script\.jsonl, line 2: its {key} is .*; write text"):
        read_script(path)
    with pytest.raises(DataError, match=f"mine, message 2: its {key} is"):
        ScriptedMessages(["a", message], name="mine")
    with pytest.raises(UsageError, match=f"mine returned .*its {key} is"):
        answer(ScriptedMessages(lambda _: message, name="mine"))


def test_a_script_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"script.jsonl cannot be read"):
        read_script(tmp_path / "script.jsonl")


def test_what_a_script_does_to_the_messages_is_its_own_affair() -> None:
    asked = {"role": "user", "content": "find b"}

    def spoils(messages: Any) -> str:
        messages[0]["content"] = "spoilt"
        return "done"

    answer(ScriptedMessages(spoils, name="mine"), asked)
    assert asked == USER == {"role": "user", "content": "find b"}
