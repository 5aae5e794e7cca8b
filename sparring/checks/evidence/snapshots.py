"""The readable state of an environment at one moment: the results of its read-only tools and its final state, as
comparable leaves."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sparring.checks.evidence.explore import is_refusal
from sparring.environments import ToolResult
from sparring.types import Json

Path: TypeAlias = tuple[str, ...]
"""The place of a value: the tool and its arguments (or `final_state`), then keys of objects and names of list items."""
STATE = "final_state"
_NAMING = ("id", "number", "name", "key", "code", "title", "path")
"""Words in the names of fields that identify the items of a list. Such fields are preferred to other fields."""
_NEGATED = re.compile(
    r"\b(no such|no (?:free|open|more)|not (?:found|known|allowed|available|possible|enough|open|there|in|a|on|valid|permitted)|"
    r"unknown|invalid|illegal|cannot|can't|could not|refused|denied|unavailable|rejected|failed|does not|doesn't|already|"
    r"insufficient|too (?:long|many|few|large|small|short|much|big|late|early)|must|nothing|only|missing|wrong|out of|none|"
    r"unable|exceeds?|sold out|needs?)\b",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"^(?:not?|cannot|can't|refused|unknown|invalid|denied|rejected|unable|insufficient|too|there (?:is|are) not?)\b|"
    r"\b(?:no such|not (?:found|possible|allowed|available|enough|permitted)|does not exist|cannot|could not|insufficient)\b",
    re.IGNORECASE,
)
"""A pattern for words that certainly mean that a call was refused."""
_VERDICTS = frozenset({"ok", "success", "done", "accepted", "found", "saved", "valid", "succeeded", "changed"})
_LONGEST_REFUSAL = 160


@dataclass(frozen=True, slots=True)
class Change:
    """A leaf that differs between two views. A value is None if the leaf does not exist."""

    path: Path
    before: Json
    after: Json

    def as_json(self) -> dict[str, Json]:
        """Return the change as a JSON value for a finding."""
        return {"at": "/".join(self.path), "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class View:
    """All leaves that were read at one moment."""

    leaves: Mapping[Path, Json]

    def changes_to(self, after: View) -> list[Change]:
        """Return the leaves that differ in a later view."""
        paths = dict.fromkeys((*self.leaves, *after.leaves))
        pairs = ((path, self.leaves.get(path), after.leaves.get(path)) for path in paths)
        return [
            Change(*one) for one in pairs if one[1] != one[2] or isinstance(one[1], bool) != isinstance(one[2], bool)
        ]

    @property
    def names(self) -> frozenset[str]:
        """All parts of paths below the tool: arguments, keys and names of items."""
        return frozenset(part for path in self.leaves for part in path[1:])

    @property
    def texts(self) -> frozenset[str]:
        """All names, and all values that are texts."""
        return self.names | {value for value in self.leaves.values() if isinstance(value, str)}

    def siblings(self, name: str) -> frozenset[str]:
        """Return the names next to a name: other keys of the same object, other items of the same list, and other
        arguments."""
        prefixes = {path[:index] for path in self.leaves for index in range(1, len(path)) if path[index] == name}
        found = {
            path[len(one)] for path in self.leaves for one in prefixes if len(path) > len(one) == _common(path, one)
        }
        return frozenset(found - {name})

    def shows(self, name: str) -> bool:
        """Return True if a name occurs anywhere, even inside an item without a name."""
        quoted = json.dumps(name, ensure_ascii=False)
        return any(
            str(value) == name or any(part == name or (part[:1] in "[{" and quoted in part) for part in path[1:])
            for path, value in self.leaves.items()
        )

    def sizes(self) -> dict[Path, int]:
        """Return the number of items under each path."""
        under: dict[Path, set[str]] = {}
        for path in self.leaves:
            for index in range(1, len(path)):
                under.setdefault(path[:index], set()).add(path[index])
        return {path: len(names) for path, names in under.items()}


def _common(path: Path, prefix: Path) -> int:
    return len(prefix) if path[: len(prefix)] == prefix else -1


def flatten(value: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    """Yield the scalars of a value with their paths. A list item is named by the field that identifies it. The order of
    a list is a separate leaf."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from flatten(item, (*path, str(name)))
    elif isinstance(value, list | tuple):
        names = _name_items(value)
        if len(names) > 1:
            yield path, " | ".join(names)
        for name, item in zip(names, value, strict=True):
            yield from flatten(item, (*path, name))
    else:
        yield path, value


def _name_items(items: Sequence[Json]) -> list[str]:
    names: list[str] = []
    if items and all(isinstance(one, Mapping) for one in items):
        fields = [key for key in items[0] if all(_is_name(one.get(key)) for one in items)]
        fields.sort(key=lambda key: not any(word in str(key).lower() for word in _NAMING))
        unique = (key for key in fields if len({str(one[key]) for one in items}) == len(items))
        field = next(unique, None)
        if field is not None:
            names = [str(one[field]) for one in items]
    elif items and all(isinstance(one, list | tuple) and one and _is_name(one[0]) for one in items):
        names = [str(one[0]) for one in items]
    if not names or len(set(names)) < len(names):
        names = [
            str(one) if _is_name(one) else json.dumps(one, default=str, sort_keys=True, ensure_ascii=False)
            for one in items
        ]
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return numbered


def _is_name(value: Json) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def parse_content(content: str) -> Json:
    """Return a result as parsed JSON if it is JSON, and otherwise as text."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def refuses(result: ToolResult, arguments: Mapping[str, Json] | None = None) -> bool:
    """Return True if a result is an error, or a short text with a word that expresses refusal. Words that appear in the
    arguments do not count."""
    if is_refusal(result):
        return True
    value = parse_content(mask_arguments(result.content, arguments or {}))
    if isinstance(value, Mapping):
        return any(value.get(name) is False for name in _VERDICTS) or any(
            isinstance(one, str) and _is_negated(one) for one in value.values()
        )
    return value in (False, None) or (isinstance(value, str) and _is_negated(value))


def turns_down(result: ToolResult, arguments: Mapping[str, Json]) -> bool:
    """Return True if a result is an error, or certainly refuses the call."""
    if is_refusal(result):
        return True
    value = parse_content(mask_arguments(result.content, arguments))
    if isinstance(value, Mapping):
        return any(value.get(name) is False for name in _VERDICTS)
    return isinstance(value, str) and len(value) <= _LONGEST_REFUSAL and _REFUSED.search(value) is not None


def _is_negated(text: str) -> bool:
    return len(text) <= _LONGEST_REFUSAL and _NEGATED.search(text) is not None


def mask_arguments(content: str, arguments: Mapping[str, Json]) -> str:
    """Return a result in which the repeated arguments are replaced by `<>`, so that the results of similar calls can be
    compared."""
    texts = (str(one) for one in arguments.values() if isinstance(one, str | int) and not isinstance(one, bool))
    for value in sorted(texts, key=len, reverse=True):
        if len(value) > 1:
            content = content.replace(value, "<>").replace(json.dumps(value, ensure_ascii=False)[1:-1], "<>")
            content = content.replace(json.dumps(value)[1:-1], "<>")
    return content
