"""Finds and parses the answer of an episode, for the strict scorers."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import NoReturn

from sparring.types import Json, Trajectory


def last_text(trajectory: Trajectory) -> str | None:
    """Return the text of the last message. Return None if that message is not the assistant's, or if it calls a
    tool."""
    last = trajectory.messages[-1] if trajectory.messages else {}
    text = last.get("content")
    return text if last.get("role") == "assistant" and isinstance(text, str) and not last.get("tool_calls") else None


def tagged_answer(trajectory: Trajectory, tag: str) -> str | None:
    """Return the text inside the only `tag` of the last message. Return None if there is no such tag or more than one,
    or if the tag is inside code or inside a tool call that is written as text."""
    text = last_text(trajectory) or ""
    if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
        return None
    before, _, rest = text.partition(f"<{tag}>")
    body, closing, after = rest.partition(f"</{tag}>")
    return body if closing and not _is_code(before, after) else None


def _is_code(before: str, after: str) -> bool:
    """Return whether the text between these two positions is in a fenced block, in a tool call that is written as text,
    or between backticks on its line."""
    if (before.count("```") + before.count("~~~")) % 2 or before.count("<tool_call>") > before.count("</tool_call>"):
        return True
    # A run of one or more backticks opens a quotation, and a run of the same length closes it.
    opened = Counter(re.findall("`+", before.rpartition("\n")[2]))
    closing = re.findall("`+", after.partition("\n")[0])
    return any(opened[run] % 2 for run in closing)


def read_json(text: str) -> Json:
    """Parse JSON as defined by RFC 8259. Raises ValueError for any other input, for a repeated key, and for nesting
    that is too deep."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def canonical(value: Json) -> str:
    """Return a canonical text, which is the same for equal JSON values: 2.0 equals 2, but true does not equal 1. Raises
    ValueError for numbers that are not finite and for nesting that is too deep."""
    try:
        return json.dumps(_integral(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def is_same(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal. A value without a canonical text equals nothing."""
    try:
        return canonical(left) == canonical(right)
    except ValueError:
        return False


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _integral(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value
