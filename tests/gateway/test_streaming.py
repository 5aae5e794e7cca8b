"""A stream's pieces add up to the answer that comes whole: whatever the policy writes, and wherever it is cut."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sparring.chat import TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway.streaming import VisibleText
from sparring.sessions import EpisodeIdentity, MessageSession, Session
from sparring.types import MessageAnswer, MessageRequest, Sampling, StopReason
from tests.chat.test_renderer import ids as library_ids
from tests.chat.test_renderer import qwen3
from tests.gateway.builders import CALL, CHAT, TOOL, USER, post_body
from tests.sessions.test_dialogues import FAMILIES, FamilyTokenizer

OPENED = {
    # The prompt opens the reasoning, so that answers begin in it without a tag.
    "opened": lambda: TemplateChat(
        FamilyTokenizer(
            ["<|im_start|>", "<|im_end|>"],
            "<|im_end|>",
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
        )
    )
}
CHATS = {name: family() for name, family in {**FAMILIES, **OPENED}.items()}

PIECES = st.sampled_from([
    "<think>", "</think>", "hm", " ", "\n\n", "so", "ß", "🙂", "a < b", "<", ">", "</", "<tool", "Observation:",
    CALL, "<tool_call>", "</tool_call>", '{"name":"get"', '"arguments":{"key":"</think>"}}', "<tool_call>not json</tool_call>",
])  # fmt: skip
TEXTS = st.lists(PIECES, max_size=8).map("".join)


def ids_of(chat: TemplateChat, text: str, cut: float) -> list[int]:
    """A beginning of a text, also in the middle of a character; the whole of it is closed."""
    ids = chat._encoded(text)  # pyright: ignore[reportPrivateUsage]
    return [*ids, min(chat.stop_ids)] if cut == 1 else ids[: int(cut * len(ids))]


@pytest.mark.parametrize("family", CHATS)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    TEXTS, st.floats(0, 1) | st.just(1.0), st.integers(1, 7), st.sampled_from([(), ("Observation:",), ("\n\n", "o")])
)
@example("hmObservation:<think>hmhm", 1.0, 1, ("Observation:",))
def test_what_is_shown_adds_up(family: str, text: str, cut: float, bunch: int, stop: tuple[str, ...]) -> None:
    chat = CHATS[family]
    ids = ids_of(chat, text, cut)
    session = Session(EpisodeIdentity("s"), engine=ScriptedEngine([]), chat=chat, sampling=Sampling())
    visible = VisibleText(lambda part: session.read(part, [], stop), session.decode, stop)
    message, shown, reasoning = session.read(ids, [], stop), "", None
    for start in range(0, len(ids), bunch):
        delta = visible.push(ids[start : start + bunch])
        if delta and reasoning is None:
            reasoning = visible.reasoning
        shown += delta
    assert shown + visible.finish(message) == message["content"]
    # It was whole before the text that follows it.
    assert reasoning in (None, visible.reasoning)
    assert visible.reasoning == message.get("reasoning_content", "")


@settings(max_examples=200, deadline=None)
@given(
    TEXTS, st.floats(0, 1) | st.just(1.0), st.integers(1, 7), st.sampled_from([(), ("Observation:",), ("\n\n", "o")])
)
@example('"arguments":{"key":"</think>"}}Observation:"arguments":{"key":"</think>"}}hm', 1.0, 1, ("Observation:",))
def test_what_a_library_parses_adds_up(text: str, cut: float, bunch: int, stop: tuple[str, ...]) -> None:
    ids = library_ids(text + "<|im_end|>")
    ids = ids[: int(cut * len(ids))]
    session = Session(EpisodeIdentity("s"), engine=ScriptedEngine([]), chat=qwen3(), sampling=Sampling())
    visible = VisibleText(lambda part: session.read(part, [TOOL], stop), session.decode, stop)
    shown = "".join(visible.push(ids[start : start + bunch]) for start in range(0, len(ids), bunch))
    message = session.read(ids, [TOOL], stop)
    assert shown + visible.finish(message) == message["content"]


class Scripted:
    """An endpoint that answers in these pieces."""

    fingerprint = "scripted"

    def __init__(self, pieces: Sequence[tuple[str, str]]) -> None:
        self._pieces = pieces

    async def answer(self, request: MessageRequest, on_delta: Any = None) -> MessageAnswer:
        for key, text in self._pieces:
            on_delta({key: text})
        return MessageAnswer(message={"role": "assistant", "content": "over"}, stop_reason=StopReason.STOP)

    async def close(self) -> None: ...


SPACE_NEXT_TO_REASONING = [("content", "a "), ("content", "a "), ("reasoning_content", " b"), *3 * [("content", "\n")]]


@example([*SPACE_NEXT_TO_REASONING, ("content", "a ")], 2)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["content", "content", "reasoning_content"]),
            st.sampled_from(["a ", " b", "\n", "c>", "<d"]),
        ),
        max_size=12,
    ),
    st.integers(1, 3),
)
def test_pieces_of_an_endpoints_answer_are_shown_as_they_come(pieces: list[tuple[str, str]], bunch: int) -> None:
    session, places = MessageSession(EpisodeIdentity("s"), engine=Scripted(pieces), sampling=Sampling()), list[int]()
    asyncio.run(session.play([USER], on_token=places.append))
    visible, shown = VisibleText(lambda part: session.read(part, []), session.decode), ""
    for start in range(0, len(places), bunch):
        shown += visible.push(places[start : start + bunch])
        content = session.read(places[: start + bunch], [])["content"].rstrip()
        assert shown == content or "<" in content.removeprefix(shown)
    message = session.read(places, [])
    assert shown + visible.finish(message) == message["content"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(3, 258) | st.sampled_from([3 + 0xE2, 3 + 0x82, 3 + 0xAC]), max_size=60), st.integers(1, 7))
def test_bytes_that_are_no_text_add_up_too(ids: list[int], bunch: int) -> None:
    session = Session(EpisodeIdentity("s"), engine=ScriptedEngine([]), chat=CHAT, sampling=Sampling())
    visible = VisibleText(lambda part: session.read(part, []), session.decode)
    shown = "".join(visible.push(ids[start : start + bunch]) for start in range(0, len(ids), bunch))
    message = session.read(ids, [])
    assert shown + visible.finish(message) == message["content"]


LONG = {
    "prose": "The quick brown fox jumps over the lazy dog. " * 200,
    "tags": "<td>a</td> -> " * 600,
    "reasoning": "<think>" + "so it is, and " * 600 + "</think>Thus.",
    "a call": '<tool_call>{"name":"get","arguments":{"key":"' + "x" * 9000 + '"}}</tool_call>',
    "calls": CALL * 120,
    "tags that stay open": "<tool_call>" * 800,
    "characters of four bytes": "🙂" * 2200,
    "spaces": " " * 9000,
    "stop texts begun": "Observation" * 800,
}


@pytest.mark.parametrize("kind", LONG)
def test_the_work_of_a_stream_grows_with_its_length_and_not_with_its_square(kind: str) -> None:
    # Each token is read once, each of the 256 first ones again with all that follow among them, and all of them again
    # whenever there are a sixteenth more: 256 * 256 / 2 + (1 + 16 + ...) n. Reading all at each token would be n * n / 2.
    session = Session(EpisodeIdentity("s"), engine=ScriptedEngine([]), chat=CHAT, sampling=Sampling())
    num_worked = 0

    def counted(ids: Sequence[int]) -> Sequence[int]:
        nonlocal num_worked
        num_worked += len(ids)
        return ids

    visible = VisibleText(
        lambda ids: session.read(counted(ids), [], ("Observation:",)),
        lambda ids: session.decode(counted(ids)),
        ("Observation:",),
    )
    ids = CHAT._encoded(LONG[kind])  # pyright: ignore[reportPrivateUsage]
    shown = "".join(visible.push([token_id]) for token_id in ids)
    message = session.read(ids, [], ("Observation:",))
    assert shown + visible.finish(message) == message["content"]
    assert num_worked <= 256 * 256 // 2 + 32 * len(ids)


def test_prose_is_shown_word_by_word_however_long_it_is() -> None:
    session = Session(EpisodeIdentity("s"), engine=ScriptedEngine([]), chat=CHAT, sampling=Sampling())
    visible = VisibleText(lambda ids: session.read(ids, []), session.decode)
    shown = ""
    for word in LONG["prose"].split():
        shown += visible.push(CHAT._encoded(f"{word} "))  # pyright: ignore[reportPrivateUsage]
        assert shown.endswith(word)


@pytest.mark.parametrize("family", CHATS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.floats(0.1, 1) | st.just(1.0))
def test_streams_say_what_whole_answers_say(family: str, text: str, cut: float) -> None:
    chat = CHATS[family]
    ids = ids_of(chat, text, cut) or [min(chat.stop_ids)]
    asked: Any = {"model": "m", "messages": [USER], "tools": [TOOL]}

    def answer(path: str, **fields: Any) -> Any:
        chat_session = Session(
            EpisodeIdentity("s"), engine=ScriptedEngine([ids]), chat=chat, sampling=Sampling(max_tokens=1000)
        )
        response = post_body(chat_session, path, {**asked, **fields})
        assert response.status_code == 200
        return response

    whole = answer("/v1/chat/completions").json()["choices"][0]
    events = answer("/v1/chat/completions", stream=True).text.strip().split("\n\n")[:-1]
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    deltas = [choice["delta"] for choice in choices]
    calls = list(itertools.chain.from_iterable(delta.get("tool_calls", ()) for delta in deltas))
    assert "".join(delta.get("content", "") for delta in deltas) == (whole["message"]["content"] or "")
    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == [
        reasoning for reasoning in [whole["message"].get("reasoning_content")] if reasoning
    ]
    assert [{key: call[key] for key in ("id", "type", "function")} for call in calls] == whole["message"].get(
        "tool_calls", []
    )
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
