"""Demonstrated conversations as tokens, laid out exactly as played episodes are."""

from __future__ import annotations

from collections.abc import Sequence

from sparring.errors import DataError
from sparring.protocols import Chat
from sparring.types import Message, ToolSchema


def tokenize_conversation(
    chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSchema]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Ids of a whole conversation and a mask of the same length that is True on what the assistant says.

    Raises DataError when no assistant speaks, or the last message is not the assistant's.
    """
    roles = [message.get("role") for message in messages]
    if not roles or roles[-1] != "assistant":
        raise DataError(
            f"a demonstration ends with role {roles[-1] if roles else None!r}; it must end with the assistant's answer."
        )
    ids: list[int] = []
    mask: list[bool] = []
    said = 0
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        before = (
            chat.extend(ids, messages[said:index], tools, stopped=True) if ids else chat.render(messages[:index], tools)
        )
        answer = chat.answer(message, tools)
        ids += [*before, *answer]
        mask += [False] * len(before) + [True] * len(answer)
        said = index + 1
    return tuple(ids), tuple(mask)
