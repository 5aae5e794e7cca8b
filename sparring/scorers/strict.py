"""Strict judgement of answers. Shares no code with the rewards, so that a mistake in one shows against the other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from sparring.protocols import Scorer
from sparring.types import Json, Trajectory


def json_exact(tag: str = "final_output", fields: Sequence[str] | None = None, *, allows_more: bool = False) -> Scorer:
    """1.0 for exactly the right answer, else 0.0.

    The conversation must end with an assistant message that holds exactly one `tag` around a JSON object with every
    field of task.fields["answer"] (or those named by `fields`), no other unless `allows_more`, no key twice, each
    canonically equal.
    """
    pattern = re.compile(f"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", flags=re.DOTALL)

    def json_exact_score(trajectory: Trajectory) -> float:
        answer = trajectory.task.fields["answer"]
        expected = dict(answer) if fields is None else {name: answer[name] for name in fields}
        last = trajectory.messages[-1] if trajectory.messages else {}
        text = last.get("content")
        if last.get("role") != "assistant" or not isinstance(text, str):
            return 0.0
        if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
            return 0.0
        found = pattern.search(text)
        if found is None:
            return 0.0
        try:
            given = json.loads(found[1], object_pairs_hook=_without_duplicates)
            if isinstance(given, dict) and allows_more:
                given = {name: value for name, value in given.items() if name in expected}
            return float(isinstance(given, dict) and _canonical(given) == _canonical(expected))
        except (ValueError, RecursionError):
            return 0.0

    return json_exact_score


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _canonical(value: Json) -> str:
    """One text for equal JSON values; integral floats are written as integers. Raises ValueError on NaN."""
    return json.dumps(_integral(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _integral(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value
