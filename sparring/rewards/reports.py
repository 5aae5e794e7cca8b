"""What an agent of your own hands over at the end of its episode, converted to plain JSON values of a limited size."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Mapping, Sequence

from sparring.chat.messages import without_half_characters
from sparring.errors import RewardError
from sparring.runtime.logs import get_logger
from sparring.types import AgentReport, Json

HANDED_OVER = ("final_state", "transitions", "artifacts")
"""The parts of a report next to the reward, as the names of its JSON keys."""
MOST_VALUES = 100_000
MOST_CHARACTERS = 1_500_000
"""The size of a report, in values and in characters of texts. What comes after them is replaced by a text."""
_MOST_LEVELS = 100
_LONGEST_NAME = 256
_TOO_LARGE, _TOO_DEEP = "(too large to keep)", "(nested too deeply to keep)"

logger = get_logger(__name__)


def read_report(given: Mapping[str, Json], *, source: str) -> AgentReport:
    """Return the parts of a JSON object that are not about the reward, as plain values. The keys may also be in camel case.
    Other keys are ignored.

    A part of another shape is left out, with a warning: agents of other systems use these names for purposes of their own,
    and a part may repeat what the policy wrote.
    """
    parts = {name: given.get(name, given.get(_in_camel_case(name))) for name in HANDED_OVER}
    kept: dict[str, Json] = {}
    for name, value in parts.items():
        try:
            kept[name] = getattr(check_report(AgentReport(**{name: value}), source=source), name)
        except RewardError as error:
            logger.warning("a part of a report is ignored: %s", error)
    return AgentReport(**kept)


def is_handed_over(key: str) -> bool:
    """Return whether a key of a report names such a part, in any spelling (`final_state`, `finalState`, `FinalState`)."""
    return key.lower().replace("_", "") in {name.replace("_", "") for name in HANDED_OVER}


def to_plain(value: Json) -> Json:
    """Return a copy of a JSON value in which what strict JSON cannot represent is replaced, as in `check_report`."""
    return _Plain("The report").convert(value, "a part")


def check_report(report: AgentReport, *, source: str) -> AgentReport:
    """Return the report with copies of its state, transitions and artifacts that JSON and UTF-8 can represent.

    The policy can cause values that JSON has no form for, and values of any size, so these are replaced: numbers that are
    not finite by null, and values that are too large or nested too deeply by a text. Dates become texts, and decimals
    numbers. Raises RewardError, which begins with `source`, for what only the agent's code can cause: other types, and
    transitions or artifacts of another shape.
    """
    transitions, artifacts = report.transitions or (), report.artifacts or {}
    if not isinstance(transitions, Sequence) or isinstance(transitions, str):
        raise RewardError(f"{source} has transitions = {transitions!r:.200}; give a list of executed tool calls.")
    if not isinstance(artifacts, Mapping):
        raise RewardError(f"{source} has artifacts = {artifacts!r:.200}; give an object that maps names to texts.")
    plain = _Plain(source)
    return AgentReport(
        reward=report.reward,
        final_state=plain.convert(report.final_state, "final_state"),
        transitions=tuple(_transition(one, index, plain) for index, one in enumerate(transitions)),
        artifacts={
            without_half_characters(str(name)[:_LONGEST_NAME]): _as_text(plain.convert(text, f"artifact {name!r:.80}"))
            for name, text in list(artifacts.items())[:MOST_VALUES]
        },
    )


def _transition(given: object, index: int, plain: _Plain) -> Mapping[str, Json]:
    where = f"transitions[{index}]"
    if not isinstance(given, Mapping) or not isinstance(given.get("tool"), str):
        raise RewardError(
            f"{plain.source}: {where} is {given!r:.200}; give an object with the called tool's name under the key `tool`."
        )
    converted: dict[str, Json] = {key: plain.convert(value, where) for key, value in given.items()}
    error = converted.get("error")
    return {"arguments": {}, "result": None, **converted, "error": None if error is None else _as_text(error)}


class _Plain:
    """Converts values to JSON values, and counts them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._num_values = self._num_characters = 0

    def convert(self, value: object, where: str, level: int = 0) -> Json:
        """Return a copy made of dicts with string keys, lists, strings, numbers, booleans and None."""
        self._num_values += 1
        if self._num_values > MOST_VALUES:
            return _TOO_LARGE
        if level > _MOST_LEVELS:
            return _TOO_DEEP
        if isinstance(value, str):
            self._num_characters += len(value)
            return _TOO_LARGE if self._num_characters > MOST_CHARACTERS else without_half_characters(value)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float | decimal.Decimal):
            return float(value) if math.isfinite(value) else None
        if isinstance(value, datetime.date | datetime.time):
            return value.isoformat()
        if isinstance(value, Mapping):
            if self._num_values + len(value) > MOST_VALUES:
                return _TOO_LARGE
            return {self.convert(str(key), where): self.convert(one, where, level + 1) for key, one in value.items()}
        if isinstance(value, list | tuple):
            if self._num_values + len(value) > MOST_VALUES:
                return _TOO_LARGE
            return [self.convert(one, where, level + 1) for one in value]
        if callable(number := getattr(value, "item", None)) and type(value).__module__ == "numpy":
            return self.convert(number(), where, level + 1)
        raise RewardError(
            f"{self.source}: {where} contains {value!r:.200} of type {type(value).__name__}, which JSON cannot represent; "
            "hand over dicts, lists, strings and numbers."
        )


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
