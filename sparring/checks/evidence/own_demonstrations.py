"""Episodes of the recipe's own agent in which the policy repeats a demonstration of the warm start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.checks.evidence.explore import load_demonstrations
from sparring.checks.evidence.own_agent import OwnEpisode, get_own_agent
from sparring.checks.evidence.subject import Subject
from sparring.types import Json, Message, Task

NUM_PLAYED = 3
"""The number of demonstrations that are played."""


async def play_demonstrations(subject: Subject) -> list[OwnEpisode]:
    """Return the episodes of demonstrations of the warm start that belong to a task, at most NUM_PLAYED.

    They reach what needs the right calls in the right order, which the other scripted policies rarely do.
    """
    agent = get_own_agent(subject)
    if "own demonstrations" not in subject.shared:
        subject.shared["own demonstrations"] = list(_list_scripts(subject))
    episodes: list[OwnEpisode] = []
    with subject.timing.as_far_as_it_goes():
        for task, policy in subject.shared["own demonstrations"]:
            episodes.append(await agent.play(task, policy))
    return episodes


def _list_scripts(subject: Subject) -> Iterator[tuple[Task, ScriptedPolicy]]:
    """Yield tasks with the policies that repeat their demonstrations. A demonstration is of a task if it opens with the
    task's user message; the agent may have put more around it."""
    scripts: dict[str, list[Message]] = {}
    for row in load_demonstrations(subject):
        with suppress(LookupError, TypeError, AttributeError):  # the warm start reports what it cannot read
            script = [_answer(one) for one in row["messages"] if one.get("role") == "assistant"]
            scripts.setdefault(_opening(row["messages"]), script)
    yield from islice(_match(subject.own_tasks, scripts), NUM_PLAYED)


def _match(tasks: Sequence[Task], scripts: Mapping[str, list[Message]]) -> Iterator[tuple[Task, ScriptedPolicy]]:
    for task in tasks:
        text = _opening(task.messages)
        script = next((scripts[one] for one in scripts if text and text in one), None)
        if script is not None:
            yield task, saying("a demonstration", script)


def _opening(messages: Any) -> str:
    """Return the text of the first message of a user."""
    texts = (one.get("content") for one in messages if isinstance(one, Mapping) and one.get("role") == "user")
    return str(next(texts, "") or "").strip()


def _answer(message: Mapping[str, Json]) -> Message:
    """Return a message of a demonstration as a model sends it: without ids, and with arguments as text."""
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments", "{}")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append({"type": "function", "function": {"name": call["function"]["name"], "arguments": text}})
    written: Message = {"role": "assistant", "content": message.get("content") or ""}
    return {**written, "tool_calls": calls} if calls else written
