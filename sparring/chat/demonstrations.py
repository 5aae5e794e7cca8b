"""Demonstrated conversations as tokens, laid out exactly as played episodes are."""

from __future__ import annotations

from collections.abc import Sequence

from sparring.errors import DataError
from sparring.protocols import Chat
from sparring.types import Message, ToolSchema


def tokenize_conversation(
    chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSchema], *, first: int = 0
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Ids of a conversation, up to the assistant's last message, and a mask of the same length that is True on what the
    assistant says from message `first` on; what stands before it was said under other tools, and is only read.

    Tool results may stand last, where the environment ended the episode: nothing is learned of them, so they are left out,
    as a policy would never read them. Raises DataError when no assistant speaks, or somebody else does last.
    """
    roles = [message.get("role") for message in messages]
    if "assistant" not in roles or roles[-1] not in ("assistant", "tool"):
        raise DataError(
            f"a demonstration ends with role {roles[-1] if roles else None!r}; it must end with the assistant's message, or "
            "with the results of its last tool calls where the environment ends the episode."
        )
    ids: list[int] = []
    mask: list[bool] = []
    said = 0
    for index, message in enumerate(messages):
        if message.get("role") != "assistant" or index < first:
            continue
        before = (
            chat.extend(ids, messages[said:index], tools, stopped=True) if ids else chat.render(messages[:index], tools)
        )
        answer = chat.answer(message, tools)
        ids += [*before, *answer]
        mask += [False] * len(before) + [True] * len(answer)
        said = index + 1
    return tuple(ids), tuple(mask)
