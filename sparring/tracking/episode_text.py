"""An episode as text in Markdown, for services that show text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sparring.types import Message, Trajectory


def episode_markdown(trajectory: Trajectory) -> str:
    """Return the outcome, the reward and the messages of an episode."""
    return "\n\n".join([_heading(trajectory), *map(_message, trajectory.messages)])


def _heading(trajectory: Trajectory) -> str:
    parts = [f"**{trajectory.task.id}** {trajectory.id}: {trajectory.outcome}"]
    if trajectory.reward is not None:
        parts.append(f"reward {trajectory.reward.total:g}")
    if trajectory.score is not None:
        parts.append(f"score {trajectory.score:g}")
    if trajectory.error is not None:
        parts.append(f"error: {trajectory.error}")
    return ", ".join(parts)


def _message(message: Message) -> str:
    lines = [f"**{message.get('role')}**", *_quoted(message.get("content"))]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines += _quoted(f"{function.get('name')}({function.get('arguments')})")
    return "\n\n".join(lines)


def _quoted(content: object) -> Iterator[str]:
    """Yield the content as an indented block, in which Markdown and HTML have no meaning."""
    if content:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
        yield "\n".join(f"    {line}" for line in text.splitlines())
