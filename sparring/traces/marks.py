"""Whether a person or another program marked a conversation as good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.errors import DataError

_GOOD = frozenset(
    {
        "good", "positive", "up", "thumbs_up", "thumbsup", "like", "liked", "yes", "y", "true", "correct", "right",
        "pass", "passed", "accepted", "resolved", "success", "👍",
    }
)  # fmt: skip
_BAD = frozenset(
    {
        "bad", "negative", "down", "thumbs_down", "thumbsdown", "dislike", "disliked", "no", "n", "false", "incorrect",
        "wrong", "fail", "failed", "rejected", "unresolved", "failure", "👎",
    }
)  # fmt: skip
_INNER = ("value", "rating", "score", "label")


def count_likely_marks(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the fields of rows and of their `metadata` that may be marks, with the number of rows that have them: flags,
    numbers from 0 to 10, and the words for good and bad. Names with a dot are those of loggers and are left out."""
    found = Counter[str]()
    for row in rows:
        metadata = row.get("metadata")
        fields = {**(metadata if isinstance(metadata, Mapping) else {}), **row, "metadata": None}
        found.update(str(name) for name, value in fields.items() if "." not in str(name) and _may_mark(value))
    return found


def _may_mark(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_may_mark(value[name]) for name in _INNER if name in value)
    if isinstance(value, str):
        return _word(value) in _GOOD | _BAD
    return isinstance(value, int | float) and 0 <= value <= 10


def _word(text: str) -> str:
    return text.strip().lower().replace("-", "_").replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Marking:
    """The fields that mark a conversation as good, and the least number that counts as good."""

    fields: Sequence[str] = ("good", "score", "feedback")
    """The first of these that a conversation has counts."""
    at_least: float = 0.5

    def read(self, row: Mapping[str, Any], where: str) -> bool | None:
        """Return the mark of a row, which is one of its fields or of its `metadata`, or None without a mark. Raises
        DataError, which contains `where`, for a mark that is neither good nor bad."""
        metadata = row.get("metadata")
        for name in self.fields:
            value = row.get(name)
            if value is None and isinstance(metadata, Mapping):
                value = metadata.get(name)
            if value is not None:
                return self.value(value, f"{where}: {name}")
        return None

    def value(self, value: Any, where: str) -> bool | None:
        """Return whether a mark is good. Raises DataError, which contains `where`."""
        if isinstance(value, Mapping):
            inner = next((value[name] for name in _INNER if value.get(name) is not None), None)
            return None if inner is None else self.value(inner, where)
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value >= self.at_least
        if isinstance(value, str):
            word = _word(value)
            if word in _GOOD | _BAD:
                return word in _GOOD
            try:
                return float(word) >= self.at_least
            except ValueError:
                pass
        raise DataError(
            f"{where} = {value!r:.60} is neither good nor bad; give true or false, a number, or a word such as good or bad, "
            "or name another field with --good-field."
        )
