"""Where the answer of an episode is and how it is read: what the strict scorers have in common."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import NoReturn

from sparring.types import Json, Trajectory


def last_text(trajectory: Trajectory) -> str | None:
    """What the assistant said last; None when someone else spoke last, or the message calls a tool and so is no answer."""
    last = trajectory.messages[-1] if trajectory.messages else {}
    text = last.get("content")
    return text if last.get("role") == "assistant" and isinstance(text, str) and not last.get("tool_calls") else None


def tagged_answer(trajectory: Trajectory, tag: str) -> str | None:
    """What stands in the one `tag` of the last message; None when there is none, more than one, or it is quoted as code or in a
    tool call that is text."""
    text = last_text(trajectory) or ""
    if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
        return None
    before, _, rest = text.partition(f"<{tag}>")
    body, closing, after = rest.partition(f"</{tag}>")
    return body if closing and not _is_code(before, after) else None


def _is_code(before: str, after: str) -> bool:
    """Whether what stands between these is in a fenced block, in a tool call that is text, or in backticks on its line."""
    if (before.count("```") + before.count("~~~")) % 2 or before.count("<tool_call>") > before.count("</tool_call>"):
        return True
    # One backtick or several open a quotation, and as many close it.
    opened = Counter(re.findall("`+", before.rpartition("\n")[2]))
    closing = re.findall("`+", after.partition("\n")[0])
    return any(opened[run] % 2 for run in closing)


def read_json(text: str) -> Json:
    """JSON as RFC 8259 has it. Raises ValueError for anything else, for a key that stands twice, and for what is nested too
    deeply."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def canonical(value: Json) -> str:
    """One text for equal JSON values: 2.0 is 2, true is not 1. Raises ValueError on what is no finite number, and on what is
    nested too deeply."""
    try:
        return json.dumps(_integral(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def is_same(left: Json, right: Json) -> bool:
    """Whether two JSON values are equal; what has no canonical text equals nothing."""
    try:
        return canonical(left) == canonical(right)
    except ValueError:
        return False


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _integral(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value
