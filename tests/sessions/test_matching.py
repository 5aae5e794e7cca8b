"""What clients do to an answer before they send it back, and which answers are never taken for each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.sessions import EpisodeIdentity, MessageSession, Session
from sparring.sessions.matching import CanonicalHistory, canonical_history, continued
from sparring.types import Sampling

USER = {"role": "user", "content": "hello"}
TEXT = "one\ntwo"
CALL = {"function": {"name": "get", "arguments": "{}"}}
SENT_BACK = [
    TEXT,
    f"\n\n{TEXT}",
    f"{TEXT} \n",
    "one\r\ntwo",
    f"<think>hm</think>{TEXT}",
    f'\n<think signature="x">\nother words\n</think>\n\n{TEXT}\n',
    [{"type": "text", "text": f" {TEXT}"}],
]


def token_session(*script: str) -> Session:
    engine = ScriptedEngine(script, encode=ByteTokenizer().encode)
    return Session(
        EpisodeIdentity("s"), engine=engine, chat=TemplateChat(ByteTokenizer()), sampling=Sampling(max_tokens=100)
    )


@pytest.mark.parametrize("sent_back", SENT_BACK, ids=repr)
def test_an_answer_is_known_however_its_client_spells_it_and_keeps_its_ids(sent_back: Any) -> None:
    async def play() -> None:
        answer = {"role": "assistant", "content": sent_back}
        async with token_session(f"<think>hm</think>\n\n{TEXT}", "three", "four") as session:
            first = await session.play([USER])
            second = await session.play([USER, answer, USER])
            third = await session.play([USER, answer, USER, second.message, USER])
            assert [turn.parent for turn in (first, second, third)] == [None, 0, 1]
            assert second.prompt_ids[: len(first.prompt_ids + first.token_ids)] == first.prompt_ids + first.token_ids
        engine = ScriptedMessages([f" {TEXT}", "three"], name="m")
        async with MessageSession(EpisodeIdentity("s"), engine=engine, sampling=Sampling()) as session:
            await session.play([USER])
            assert (await session.play([USER, answer, USER])).parent == 0

    asyncio.run(play())


@pytest.mark.parametrize("sent_back", ["one two", "one\n two", "One\ntwo", f"<think>{TEXT}"])
def test_an_answer_with_another_text_is_another(sent_back: str) -> None:
    async def play() -> None:
        async with token_session(TEXT, "three") as session:
            await session.play([USER])
            turn = await session.play([USER, {"role": "assistant", "content": sent_back}, USER])
            assert (turn.parent, turn.branch_reason) == (None, "edited_history: message 1")

    asyncio.run(play())


@dataclass(frozen=True)
class Played:
    history: CanonicalHistory
    tools: str = "[]"


def history(*texts: str, calls: Any = ()) -> CanonicalHistory:
    roles = ["user", "assistant"] * len(texts)
    return canonical_history(
        [{"role": role, "content": text, "tool_calls": calls} for role, text in zip(roles, texts, strict=False)]
    )


def test_an_equal_answer_wins_over_one_that_is_spelled_otherwise() -> None:
    plain, spaced = Played(history("hello", "a")), Played(history("hello", " a"))
    for wanted, found in [("a", plain), (" a", spaced)]:
        assert continued(history("hello", wanted, "on"), "[]", [plain, spaced]) == [found]
        assert continued(history("hello", wanted, "on"), "[]", [spaced, plain]) == [found]


def test_of_different_answers_that_it_could_be_it_is_none() -> None:
    before = Played(history("hello", "hi"))
    plain, spaced = Played(history("hello", "hi", "x", "a")), Played(history("hello", "hi", "x", " a"))
    wanted = history("hello", "hi", "x", "a\n", "on")
    assert continued(wanted, "[]", [before, plain, spaced]) == [before]
    assert continued(wanted, "[]", [before, plain, plain]) == [plain, plain]


def test_only_answers_may_be_spelled_otherwise_and_only_with_equal_calls_and_tools() -> None:
    played = [Played(history("hello", "a"))]
    assert continued(history("hello ", "a", "on"), "[]", played) == []
    assert continued(history("hello", "a ", "on"), "[1]", played) == []
    assert continued(history("hello", "a ", "on", calls=[CALL]), "[]", played) == []
    assert continued(history("hello", "a "), "[]", played) == played


@given(st.lists(st.text("a \n<>think/", max_size=6), min_size=1, max_size=4), st.data())
def test_what_comes_back_as_it_was_goes_on_from_itself(answers: list[str], data: st.DataObject) -> None:
    played = [Played(history("hello", answer)) for answer in answers]
    answer = data.draw(st.sampled_from(answers))
    found = continued(history("hello", answer, "on"), "[]", played)
    assert found
    assert all(one.history == history("hello", answer) for one in found)


def test_of_equal_answers_the_one_that_arrived_is_continued() -> None:
    async def play() -> None:
        async with token_session("same", "same", "on") as session:
            heard = await session.play([USER])
            lost = await session.sample([USER])
            onward = await session.play([USER, heard.message, USER])
            assert (onward.parent, session.turns) == (heard.id, (heard, onward))
            assert lost.id == 1

    asyncio.run(play())


def called(arguments: str) -> str:
    return f'<tool_call>{{"name":"get","arguments":{arguments}}}</tool_call>'


RESULT = {"role": "tool", "content": "found"}


@pytest.mark.parametrize(
    "script", [("<think>b</think>same", "<think>c</think>same"), (called('{"n":1}'), called('{"n":1.0}'))], ids=str
)
@pytest.mark.parametrize("picked", [0, 1])
def test_of_answers_that_say_the_same_the_one_that_came_back_is_continued(script: tuple[str, str], picked: int) -> None:
    async def play() -> None:
        async with token_session(*script, "on", "on") as session:
            given = [(await session.play([USER])).message for _ in script]
            back = given[picked]
            # Some clients name calls anew, some write reasoning before the text.
            calls = [{**call, "id": "x"} for call in back.get("tool_calls", ())]
            text = "" if calls else f"<think>{back['reasoning_content']}</think>{back['content']}"
            for answer in (back, {"role": "assistant", "content": text, "tool_calls": calls}):
                assert (await session.sample([USER, answer, RESULT])).parent == picked
        replies = iter([*given, "on"])
        async with MessageSession(
            EpisodeIdentity("s"), engine=ScriptedMessages(lambda _: next(replies), name="m"), sampling=Sampling()
        ) as session:
            for _ in script:
                await session.play([USER])
            assert (await session.play([USER, back, RESULT])).parent == picked

    asyncio.run(play())


@pytest.mark.parametrize("function", [{"arguments": ""}, {}, {"arguments": None}, {"arguments": " { } "}], ids=repr)
def test_a_call_without_arguments_is_known_however_its_client_writes_none(function: dict[str, Any]) -> None:
    async def play() -> None:
        async with token_session(called("{}"), "on") as session:
            await session.play([USER])
            call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get", **function}}]}
            assert (await session.play([USER, call, RESULT])).parent == 0

    asyncio.run(play())


@pytest.mark.parametrize("picked", [0, 1])
def test_equal_answers_of_two_branches_are_distinguished_by_what_precedes_them(picked: int) -> None:
    """JavaScript reads these two numbers as one, so that the two histories are equal but for the ids of the calls."""

    async def play() -> None:
        script = (called('{"n":9007199254740993}'), called('{"n":9007199254740992}'), "over", "over", "on")
        async with token_session(*script) as session:
            calls = [(await session.play([USER])).message for _ in range(2)]
            over = [(await session.play([USER, call, RESULT])).message for call in calls]
            turn = await session.play([USER, calls[picked], RESULT, over[picked], USER])
            assert turn.parent == 2 + picked

    asyncio.run(play())


def test_a_word_that_begins_like_reasoning_is_none() -> None:
    async def play() -> None:
        async with token_session("<thinkers say> so </think>yes", "on") as session:
            await session.play([USER])
            assert (await session.play([USER, {"role": "assistant", "content": "yes"}, USER])).parent is None

    asyncio.run(play())
