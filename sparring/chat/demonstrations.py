"""Converts demonstrated conversations to tokens, laid out exactly as sampled episodes are."""

from __future__ import annotations

from collections.abc import Sequence

from sparring.errors import DataError
from sparring.protocols import Chat
from sparring.types import Message, ToolSchema


def tokenize_conversation(
    chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSchema], *, first: int = 0
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the ids of a conversation up to and including the assistant's last message, and a mask of the same length.
    The mask is True for the assistant's messages from index `first` on. Earlier assistant messages were written with
    different tools and serve only as context.

    The conversation may end with tool results if the environment ended the episode. They are left out, since a policy
    would never read them. Raises DataError if the conversation has no assistant message, or if the last message has
    another role.
    """
    roles = [message.get("role") for message in messages]
    if "assistant" not in roles or roles[-1] not in ("assistant", "tool"):
        raise DataError(
            f"a demonstration ends with role {roles[-1] if roles else None!r}; it must end with an assistant message, or "
            "with the results of the last tool calls if the environment ended the episode."
        )
    ids: list[int] = []
    mask: list[bool] = []
    done = 0
    for index, message in enumerate(messages):
        if message.get("role") != "assistant" or index < first:
            continue
        before = (
            chat.extend(ids, messages[done:index], tools, stopped=True) if ids else chat.render(messages[:index], tools)
        )
        answer = chat.answer(message, tools)
        ids += [*before, *answer]
        mask += [False] * len(before) + [True] * len(answer)
        done = index + 1
    return tuple(ids), tuple(mask)
