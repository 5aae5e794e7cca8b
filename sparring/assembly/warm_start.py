"""Load the demonstrations that a warm start imitates."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.assembly.environment import load_environment_class
from sparring.chat.demonstrations import tokenize_conversation
from sparring.config import Config
from sparring.data.calls import check_calls
from sparring.environments import Environment, Segment, record_segments
from sparring.errors import DataError, InfrastructureError
from sparring.protocols import SpliceRefused
from sparring.run_folders.stored import list_trajectory_files, read_rows
from sparring.runtime.plugins import call_in_thread, load_function
from sparring.types import Message, Task, ToolSchema

if TYPE_CHECKING:
    from sparring.assembly.run import TrainingParts


def load_demonstrations(parts: TrainingParts, num: int, source: str) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Return tokenized conversations for the warm start.

    They come from the environment's expert, a function, a .jsonl file or a recording. Raises DataError, which
    identifies the invalid row, if a demonstration cannot be used.
    """
    conversations: list[Segment]
    if source == "expert":
        rng = random.Random(parts.config.run.seed)
        chosen = rng.sample(list(parts.tasks.train), min(num, len(parts.tasks.train)))
        conversations = [segment for task in chosen for segment in _demonstrated(parts, task)]
    elif ":" in source:
        function = _load_log(source, parts.recipe_dir)
        rows = call_in_thread(function, num, parts.config.run.seed)
        conversations = [_segment(row, parts.tools, f"{source!r}, row {n}") for n, row in enumerate(rows, start=1)]
    else:
        conversations = _conversations_from(parts.recipe_dir / source, parts.tools)[:num]
    if not conversations:
        raise DataError(
            f"warm_start.demonstrations = {source!r} contains no demonstration; provide at least one conversation."
        )
    tokenized = []
    goes_on = _goes_on_after_calls(parts)
    for row, one in enumerate(conversations, start=1):
        try:
            if goes_on is not None and one.messages and one.messages[-1].get("role") == "tool":
                raise DataError(
                    f"it ends with a tool result, but {goes_on} never ends an episode itself, so the policy is called once "
                    "more; end the conversation with the assistant's answer, or define `is_done` on the environment."
                )
            tokenized.append(tokenize_conversation(parts.chat, one.messages, one.tools, first=one.first))
        except (DataError, SpliceRefused) as error:
            raise DataError(f"demonstration {row} of {source!r}: {error}") from error
    asked, limit = parts.config.model.max_sequence_length, parts.model.max_positions
    too_long = [(len(ids), row) for row, (ids, _) in enumerate(tokenized, start=1) if len(ids) > limit]
    if too_long:
        most, row = max(too_long)
        whose, remedy = f"model.max_sequence_length = {limit}", f"Raise model.max_sequence_length to {most}"
        if limit < asked:
            whose, remedy = f"the {limit} positions of model.name", "Use a model with more positions"
        raise DataError(
            f"{len(too_long)} of {len(tokenized)} demonstrations of {source!r} are longer than {whose}; the longest, "
            f"demonstration {row}, has {most} tokens. {remedy}, or leave these out."
        )
    return tokenized


def check_demonstrations(config: Config, recipe_dir: Path) -> None:
    """Check the demonstrations as far as possible before anything is loaded.

    Raises UsageError for a function that does not take the arguments (number, seed), and DataError for a file that does not
    consist of conversations.
    """
    source = "expert" if config.warm_start is None else config.warm_start.demonstrations
    if ":" in source:
        _load_log(source, recipe_dir)
    elif source != "expert":
        _conversations_from(recipe_dir / source, ())


def _load_log(source: str, recipe_dir: Path) -> Callable[[int, int], Any]:
    return load_function(source, "number", "seed", key="warm_start.demonstrations", folder=recipe_dir)


def _goes_on_after_calls(parts: TrainingParts) -> str | None:
    """Return the name of the environment if its episodes never end with a tool call.

    Return None if they may end this way, or if the user's own agent decides when an episode ends.
    """
    if parts.config.agent.is_foreign:
        return None
    environment_class, _ = load_environment_class(parts.config, parts.recipe_dir)
    return environment_class.__name__ if environment_class.is_done is Environment.is_done else None


def _demonstrated(parts: TrainingParts, task: Task) -> list[Segment]:
    """Return the expert's episode. It is retried after infrastructure failures, like any other episode.

    Raises InfrastructureError after too many failures.
    """
    tries = 1 + parts.config.rollout.rollout_max_retries
    while True:
        tries -= 1
        try:
            return record_segments(parts.make_environment, task)
        except InfrastructureError:
            if not tries:
                raise


def _conversations_from(path: Path, tools: tuple[ToolSchema, ...]) -> list[Segment]:
    """Read conversations from a file or a recording. A conversation that does not name its tools gets `tools`."""
    conversations = []
    for file in list_trajectory_files(path):
        for where, row in read_rows(file):
            own = row.get("tools", row.get("task", {}).get("fields", {}).get("tools"))
            conversations.append(_segment({**row, "tools": own}, tools, where))
    return conversations


def _segment(row: Mapping[str, Any] | Sequence[Message], tools: Sequence[ToolSchema], where: str) -> Segment:
    """Return a conversation, which is a list of messages, or an object with `messages` and optionally `tools`. Raises
    DataError for anything else."""
    given = row if isinstance(row, Mapping) else {"messages": row}
    messages, own = given.get("messages"), given.get("tools")
    if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
        raise DataError(f"{where}: there is no list 'messages' of objects; write one {{'messages': [...]}} per row.")
    for number, message in enumerate(messages, start=1):
        check_calls(message, f"{where}, message {number}")
    return Segment(messages, tools if own is None else own)
