"""What an agent of your own hands over at the end of its episode, checked and converted to plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparring.chat.messages import without_half_characters
from sparring.errors import RewardError
from sparring.types import AgentReport, Json

HANDED_OVER = ("final_state", "transitions", "artifacts")
"""The parts of a report next to the reward, as the names of its JSON keys."""
_MOST_LEVELS = 100


def read_report(given: Mapping[str, Json]) -> AgentReport:
    """Return the parts of a JSON object that are not about the reward, unchecked. The keys may also be in camel case. Other
    keys are ignored."""
    state, transitions, artifacts = (given.get(name, given.get(_in_camel_case(name))) for name in HANDED_OVER)
    return AgentReport(final_state=state, transitions=transitions or (), artifacts=artifacts or {})


def check_report(report: AgentReport, *, source: str) -> AgentReport:
    """Return the report with copies of its state, transitions and artifacts that JSON and UTF-8 can represent.

    The policy can cause some values that JSON has no form for, so these are replaced: numbers that are not finite by null,
    and values nested deeper than 100 levels by a text. Raises RewardError, which begins with `source`, for values of other
    types, which only the agent's code can cause.
    """
    if not isinstance(report.transitions, Sequence) or isinstance(report.transitions, str):
        raise RewardError(f"{source} has transitions = {report.transitions!r}; give a list of executed tool calls.")
    if not isinstance(report.artifacts, Mapping):
        raise RewardError(f"{source} has artifacts = {report.artifacts!r}; give an object that maps names to texts.")
    for name, text in report.artifacts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise RewardError(
                f"{source} has the artifact {name!r} of type {type(text).__name__}; give a text. Values of other types "
                "belong into final_state."
            )
    return AgentReport(
        reward=report.reward,
        final_state=_plain(report.final_state, f"{source}: final_state"),
        transitions=tuple(
            _transition(one, f"{source}: transitions[{index}]") for index, one in enumerate(report.transitions)
        ),
        artifacts={
            without_half_characters(name): without_half_characters(text) for name, text in report.artifacts.items()
        },
    )


def _transition(given: object, source: str) -> Mapping[str, Json]:
    plain = _plain(given, source)
    if not isinstance(plain, dict) or not isinstance(plain.get("tool"), str):
        raise RewardError(f"{source} is {given!r}; give an object with the called tool's name under the key `tool`.")
    if not isinstance(plain.get("error"), str | None):
        raise RewardError(f"{source} has error = {plain['error']!r}; give a text, or null for a call that succeeded.")
    return {"arguments": {}, "result": None, "error": None, **plain}


def _plain(value: object, source: str, level: int = 0) -> Json:
    """Return a copy made of dicts with string keys, lists, strings, numbers, booleans and None."""
    if level > _MOST_LEVELS:
        return "(nested too deeply)"
    if isinstance(value, str):
        return without_half_characters(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {without_half_characters(str(key)): _plain(one, source, level + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, source, level + 1) for one in value]
    raise RewardError(
        f"{source} contains {value!r} of type {type(value).__name__}, which JSON cannot represent; hand over dicts, lists, "
        "strings and numbers."
    )


def _in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
