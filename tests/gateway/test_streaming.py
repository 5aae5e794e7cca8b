"""A stream's pieces add up to the answer that comes whole: whatever the policy writes, and wherever it is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparring.chat import TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway.streaming import VisibleText
from sparring.sessions import Session
from sparring.types import Sampling
from tests.gateway.builders import CALL, TOOL, USER, posted
from tests.sessions.test_dialogues import FAMILIES, FamilyTokenizer

OPENED = {
    # The prompt opens the reasoning, so that answers begin in it without a tag.
    "opened": lambda: TemplateChat(
        FamilyTokenizer(
            ["<|im_start|>", "<|im_end|>"], "<|im_end|>",
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
        )
    )
}  # fmt: skip
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
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    TEXTS, st.floats(0, 1) | st.just(1.0), st.integers(1, 7), st.sampled_from([(), ("Observation:",), ("\n\n", "o")])
)
def test_what_is_shown_adds_up(family: str, text: str, cut: float, bunch: int, stop: tuple[str, ...]) -> None:
    chat = CHATS[family]
    ids = ids_of(chat, text, cut)
    session = Session(id="s", engine=ScriptedEngine([]), chat=chat, sampling=Sampling())
    visible = VisibleText(lambda part: session.read(part, [], stop), stop)
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


@pytest.mark.parametrize("family", CHATS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.floats(0.1, 1) | st.just(1.0))
def test_streams_say_what_whole_answers_say(family: str, text: str, cut: float) -> None:
    chat = CHATS[family]
    ids = ids_of(chat, text, cut) or [min(chat.stop_ids)]
    asked: Any = {"model": "m", "messages": [USER], "tools": [TOOL]}

    def answer(path: str, **fields: Any) -> Any:
        door = Session(id="s", engine=ScriptedEngine([ids]), chat=chat, sampling=Sampling(max_tokens=1000))
        response = posted(door, path, {**asked, **fields})
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
