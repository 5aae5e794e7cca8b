"""A request that does not continue what was played is recorded with the one reason that explains it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Message, Sampling, Turn

SYSTEM = {"role": "system", "content": "You are a clerk."}
USER = {"role": "user", "content": "find b"}
TOOL: Any = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
CALL = 'Let me look.\n<tool_call>{"name":"get","arguments":{"key":"b"}}</tool_call>'


def call(text: str | None = "Let me look.", id: str = "call_0_0", arguments: str = '{"key": "b"}') -> Message:
    function = {"name": "get", "arguments": arguments}
    return {"role": "assistant", "content": text, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def result(id: str = "call_0_0") -> Message:
    return {"role": "tool", "tool_call_id": id, "content": "f"}


def played(
    *requests: tuple[Sequence[Message], Sequence[Any]], answers: Sequence[str] = (CALL, "f", "g", "h")
) -> list[Turn]:
    async def run() -> list[Turn]:
        engine = ScriptedEngine(answers, encode=ByteTokenizer().encode)
        chat = TemplateChat(ByteTokenizer())
        async with Session(
            EpisodeIdentity("r"), engine=engine, chat=chat, sampling=Sampling(max_tokens=200)
        ) as session:
            for messages, tools in requests:
                await session.chat(messages, tools)
            return list(session.turns)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("messages", "tools", "reason"),
    [
        ([SYSTEM, USER, call(), result()], [TOOL], None),
        ([SYSTEM, USER, call(arguments='{ "key":"b"}'), result()], [TOOL], None),
        ([SYSTEM, USER], [TOOL], "repeated"),
        ([SYSTEM, USER, call(), result()], [], "tools_changed: get became none"),
        ([SYSTEM, USER, call(None), result()], [TOOL], "dropped_text"),
        ([SYSTEM, USER, call("Let me see."), result()], [TOOL], "edited_history: message 2"),
        ([{"role": "system", "content": "Sum up."}, USER, call(), result()], [TOOL], "system_changed"),
        ([USER, call(), result()], [TOOL], "system_changed"),
        ([SYSTEM, {"role": "user", "content": "hello, all"}], [], "side_request"),
        ([SYSTEM, USER, call(arguments='{"key": "c"}'), result()], [TOOL], "edited_history: message 2"),
    ],
)
def test_the_reason(messages: list[Message], tools: list[Any], reason: str | None) -> None:
    turns = played(([SYSTEM, USER], [TOOL]), (messages, tools))
    assert turns[1].branch_reason == reason
    assert turns[1].parent == (0 if reason is None else None)


def test_a_conversation_that_was_summed_up_is_compacted() -> None:
    first = [SYSTEM, USER]
    second = [*first, call(), result()]
    summary = [SYSTEM, USER, {"role": "user", "content": "So far: b leads to f."}]
    turns = played((first, [TOOL]), (second, [TOOL]), (summary, [TOOL]))
    assert turns[2].branch_reason == "compacted: 3 of 5 messages"


def test_equal_answers_are_distinguished_by_the_ids_of_their_calls() -> None:
    first = [SYSTEM, USER]
    after = {id: [*first, call(id=id), result(id)] for id in ("call_0_0", "call_1_0")}
    turns = played(
        (first, [TOOL]),
        (first, [TOOL]),
        (after["call_0_0"], [TOOL]),
        (after["call_1_0"], [TOOL]),
        answers=[CALL, CALL, "f", "g"],
    )
    assert [turn.parent for turn in turns] == [None, None, 0, 1]
    # A client that makes ids of its own continues what it saw last.
    strange = [*first, call(id="abc"), result("abc")]
    assert played((first, [TOOL]), (first, [TOOL]), (strange, [TOOL]), answers=[CALL, CALL, "f"])[2].parent == 1
