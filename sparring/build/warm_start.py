"""What a warm start imitates."""

from __future__ import annotations

import random
from pathlib import Path

from sparring.build.environment import environment_target
from sparring.build.run import Parts
from sparring.chat.demonstrations import tokenize_conversation
from sparring.environments import Environment, Segment, record_segments
from sparring.errors import DataError, InfrastructureError
from sparring.plugins import call_in_thread, load_object
from sparring.protocols import SpliceRefused
from sparring.tracking.stored import rows, trajectory_files
from sparring.types import Task, ToolSchema


def demonstrations(parts: Parts, num: int, source: str) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Tokenized conversations for the warm start: from the environment's expert, a function, a .jsonl file or a recording.

    Raises DataError naming the row of a demonstration that cannot be used.
    """
    told: list[Segment]
    if source == "expert":
        rng = random.Random(parts.config.run.seed)
        chosen = rng.sample(list(parts.tasks.train), min(num, len(parts.tasks.train)))
        told = [segment for task in chosen for segment in _demonstrated(parts, task)]
    elif ":" in source:
        function = load_object(source, beside=parts.recipe_dir)
        told = [Segment(one, parts.tools) for one in call_in_thread(function, num, parts.config.run.seed)]
    else:
        told = _conversations_from(parts.recipe_dir / source, parts.tools)[:num]
    if not told:
        raise DataError(
            f"warm_start.demonstrations = {source!r} gave no demonstration; give at least one conversation."
        )
    tokenized = []
    goes_on = _goes_on_after_calls(parts)
    for row, one in enumerate(told, start=1):
        try:
            if goes_on is not None and one.messages and one.messages[-1].get("role") == "tool":
                raise DataError(
                    f"it ends with a tool result, and {goes_on} never ends an episode itself, so the policy is asked once more; "
                    "end the conversation with the assistant's answer, or define `is_done` on the environment."
                )
            tokenized.append(tokenize_conversation(parts.chat, one.messages, one.tools, first=one.first))
        except (DataError, SpliceRefused) as error:
            raise DataError(f"demonstration {row} of {source!r}: {error}") from error
    asked, limit = parts.config.model.max_sequence_length, parts.policy.max_positions
    too_long = [(len(ids), row) for row, (ids, _) in enumerate(tokenized, start=1) if len(ids) > limit]
    if too_long:
        most, row = max(too_long)
        whose, remedy = f"model.max_sequence_length = {limit}", f"Raise model.max_sequence_length to {most}"
        if limit < asked:
            whose, remedy = f"the {limit} positions of model.name", "Take a model with more positions"
        raise DataError(
            f"{len(too_long)} of {len(tokenized)} demonstrations of {source!r} are longer than {whose}; the longest, "
            f"demonstration {row}, has {most} tokens. {remedy}, or leave these out."
        )
    return tokenized


def _goes_on_after_calls(parts: Parts) -> str | None:
    """The name of an environment whose episodes never end with a tool call; None where they may, or an agent of the user's
    own decides."""
    if parts.config.agent.is_foreign:
        return None
    environment_class, _ = environment_target(parts.config, parts.recipe_dir)
    return environment_class.__name__ if environment_class.is_done is Environment.is_done else None


def _demonstrated(parts: Parts, task: Task) -> list[Segment]:
    """The expert's episode, which is played again over an outage as any other. Raises InfrastructureError over too many."""
    tries = 1 + parts.config.rollout.rollout_max_retries
    while True:
        tries -= 1
        try:
            return record_segments(parts.make_environment, task)
        except InfrastructureError:
            if not tries:
                raise


def _conversations_from(path: Path, tools: tuple[ToolSchema, ...]) -> list[Segment]:
    """Conversations from a file or a recording, each with the tools that it names itself, else with those given."""
    conversations = []
    for file in trajectory_files(path):
        for where, row in rows(file):
            messages = row.get("messages")
            own = row.get("tools", row.get("task", {}).get("fields", {}).get("tools"))
            if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
                raise DataError(f"{where}: there is no list 'messages' of objects; give {{'messages': [...]}} a line.")
            conversations.append(Segment(messages, tools if own is None else own))
    return conversations
