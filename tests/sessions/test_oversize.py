"""Prompts that cannot fit the context are found from their beginning, and long prompts do not delay other sessions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import ContextOverflow
from sparring.sessions import EpisodeIdentity, Session
from sparring.sessions.oversize import LONG_CHARACTERS, is_oversize
from sparring.types import Message, Sampling


class CountingChat(TemplateChat):  # type: ignore[misc]
    """Counts the characters that it renders, and the threads that do so."""

    def __init__(self) -> None:
        super().__init__(ByteTokenizer())
        self.num_characters = 0
        self.threads: set[threading.Thread] = set()

    def render(self, messages: Sequence[Message], tools: Any) -> tuple[int, ...]:
        self.num_characters += sum(len(str(one["content"])) for one in messages)
        self.threads.add(threading.current_thread())
        return super().render(messages, tools)


def play(chat: CountingChat, messages: Sequence[Message], *, max_context_tokens: int) -> Any:
    engine = ScriptedEngine(["fine"], encode=ByteTokenizer().encode, max_context_tokens=max_context_tokens)

    async def run() -> Any:
        async with Session(
            EpisodeIdentity("episode"), engine=engine, chat=chat, sampling=Sampling(max_tokens=16)
        ) as session:
            return await session.play(messages)

    return asyncio.run(run())


def test_a_prompt_that_cannot_fit_is_refused_after_its_beginning() -> None:
    chat = CountingChat()
    messages = [{"role": "user", "content": "a b " * 250_000}, {"role": "tool", "content": "c" * 1_000_000}]
    with pytest.raises(ContextOverflow, match="more tokens than the context of 1000"):
        play(chat, messages, max_context_tokens=1000)
    assert chat.num_characters < 10_000
    assert threading.main_thread() not in chat.threads


def test_a_long_prompt_that_fits_is_tokenized_in_another_thread_to_the_same_ids() -> None:
    chat = CountingChat()
    messages = [{"role": "user", "content": "x" * LONG_CHARACTERS}]
    turn = play(chat, messages, max_context_tokens=100_000)
    assert turn.prompt_ids == TemplateChat(ByteTokenizer()).render(messages, ())
    assert threading.main_thread() not in chat.threads


def test_a_short_prompt_is_tokenized_at_once() -> None:
    chat = CountingChat()
    play(chat, [{"role": "user", "content": "x"}], max_context_tokens=1000)
    assert chat.threads == {threading.main_thread()}


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), st.text("ab </think>", max_size=80)), min_size=1, max_size=6
    ),
    st.integers(1, 40),
)
def test_a_prompt_that_fits_is_never_called_oversize(pairs: list[tuple[str, str]], most_tokens: int) -> None:
    chat = TemplateChat(ByteTokenizer())
    messages: list[Message] = [{"role": role, "content": text} for role, text in pairs]
    if is_oversize(chat, messages, "", most_tokens):
        assert len(chat.render(messages, ())) > most_tokens


def test_tools_that_cannot_fit_are_refused() -> None:
    assert is_oversize(TemplateChat(ByteTokenizer()), [], "x" * 17_000, 1000)
    assert not is_oversize(TemplateChat(ByteTokenizer()), [], "x" * 15_000, 1000)
