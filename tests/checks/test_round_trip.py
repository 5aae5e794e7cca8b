"""What the expert writes is compared with what the model's template makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config
from sparring.findings import Finding
from sparring.protocols import Chat
from sparring.types import Message, ToolSchema

RECIPE = Path(__file__).parent / "clean" / "parcel_desk" / "recipe.toml"


def found(chat: Chat, tokenizer: ByteTokenizer | None = None) -> list[Finding]:
    parts: Any = SimpleNamespace(chat=chat, model=SimpleNamespace(tokenizer=tokenizer or ByteTokenizer()))
    subject = Subject(load_config(RECIPE), RECIPE, parts=parts)
    return list(asyncio.run(CHECKS["prompt.round_trip"].function(subject)))  # type: ignore[arg-type]


class Forgetful(TemplateChat):
    """Drops system messages, or the tools, as templates of some models do."""

    def __init__(self, *, drops: str) -> None:
        super().__init__(ByteTokenizer())
        self._drops = drops

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        kept = [message for message in messages if message["role"] != self._drops]
        return super().render(kept, () if self._drops == "tools" else tools)

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        message = super().parse(token_ids, tools)
        return {**message, "tool_calls": []} if self._drops == "calls" else message


def test_a_template_that_keeps_everything_gives_no_finding() -> None:
    assert found(TemplateChat(ByteTokenizer())) == []


def test_a_dropped_system_message_is_found() -> None:
    (one,) = found(Forgetful(drops="system"))
    assert "a system message of the prompt is not in what the model reads" in one.symptom


def test_dropped_tools_are_found() -> None:
    (one,) = found(Forgetful(drops="tools"))
    assert "the tools parcel, zone are not in what the model reads" in one.symptom


def test_a_call_that_is_not_read_back_is_found() -> None:
    (one,) = found(Forgetful(drops="calls"))
    assert "a message is changed when it is parsed back" in one.symptom
    assert one.evidence["lost"][0]["said"]["calls"] != one.evidence["lost"][0]["read"]["calls"] == []


class Headless(ByteTokenizer):
    """Begins an answer in the conversation with nothing, as it does not when it asks for one."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        text = super().apply_chat_template(conversation, **options)
        return text if options.get("add_generation_prompt") else text.replace("<|im_start|>assistant\n", "")


def test_a_template_that_contradicts_itself_is_found() -> None:
    (one,) = found(TemplateChat(ByteTokenizer()), Headless())
    assert "an answer in the conversation with no special token" in one.symptom
