"""Values to try as arguments of a tool. They come from the task, its prompt, earlier results, recorded calls and the
tool's schema."""

from __future__ import annotations

import json
import re
import re._parser as regex  # pyright: ignore[reportMissingImports]
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any, final

from sparring.checks.evidence.answer_forms import canonical
from sparring.types import Json

MOST_VALUES = 12
"""The maximum number of values to try for one argument by default."""
MOST_SPACES = 3
"""The maximum number of spaces in a string that is likely to be an argument."""
MOST_KNOWN = 4000
"""The maximum number of values to remember for one task."""
_LINE = re.compile(
    r"^[\s>*#•|+-]*[*_`\"']*([A-Za-z][\w ./()-]{0,40}?)[*_`\"']*\s*[:=]\s*[*_`\"']*([^\n|]{1,120}?)[*_`\"',;]*\s*$"
)
_INLINE = re.compile(r"\b([A-Za-z]\w{0,40})[\"'`]?\s*[:=]\s*[\"'`]?([^\s\"'`,;|<>{}\[\]()]{1,80})")
_TAGGED = re.compile(r"<([A-Za-z]\w{0,40})>\s*([^<>\n]{1,120}?)\s*</\1>")
_QUOTED = re.compile(r"\"([^\"\n]{1,60})\"|'([^'\n]{1,60})'|`([^`\n]{1,60})`")
_CODE = re.compile(
    r"[\w.+-]+@[\w-]+\.\w+|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?\b|\b\w*\d[\w-]*\w\b|\b\w+[-_][\w-]*\w\b"
    r"|\b[A-Z]{2,}\w*\b|\b\d[\d,.]*\d\b|\b\d\b|\b[A-Z]\b"
)
_LETTERS = "".join(map(chr, range(0x250)))
_UPPER, _LOWER = ("".join(filter(kind, _LETTERS)) for kind in (str.isupper, str.islower))
_NAME = rf"[{_UPPER}](?:[{_LOWER}]+|['’](?=[{_UPPER}]))(?:['’-]?[{_UPPER}][{_LOWER}]+)*"
_TITLE = re.compile(rf"\b{_NAME}(?: (?:{_NAME}|\d+|[A-Z]\b))*")
_NAMED_CODE = re.compile(rf"\b([A-Za-z]{{2,30}})(?: (?:id|ID|number|no\.?|code|is|of|#))? [\"'#(]?({_CODE.pattern})")
_THING = rf"(?:[a-z]+\s+){{0,3}}[\"'`]?((?:{_TITLE.pattern})|(?:{_CODE.pattern}))[\"'`]?"
_BEGIN = re.compile(rf"\b(?i:from|between)\s+{_THING}")
_END = re.compile(rf"\b(?i:to|into)\s+{_THING}|\b(?i:between)\s+{_THING}\s+(?i:and)\s+{_THING}")
_BEGINS = ("from", "origin", "source", "start", "departure")
_ENDS = ("to", "destination", "target", "end", "arrival")
_PROGRAMS = {"sql": "SELECT 1 AS one", "code": "print(1)", "python": "print(1)", "command": "ls", "expression": "1 + 1"}
"""Programs, keyed by a word in an argument's name. Each program runs in every interpreter of that kind."""
_PROSE = {"text", "body", "message", "content", "note", "comment", "description", "reason", "summary"}
"""Words in the names of arguments that accept sentences."""
_SOURCES = {"description": 0.2, "result": 0.3, "system": -0.5}
"""The number that is added to a value's rating, by the source of the value. A system prompt is rated lower, since it
mentions many values that are not arguments."""
_FORMATS = {
    "date": "2025-01-06",
    "date-time": "2025-01-06T09:00:00Z",
    "time": "09:00:00",
    "email": "a@example.com",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "uri": "https://example.com",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A value with the words of the name next to it, and its source."""

    value: Json
    words: tuple[str, ...]
    source: str
    """The place where the value was read, for example `prompt:crate id`. The source has the same name in other
    tasks."""
    record: int
    """A number that all values of one object share, or 0 for a value that does not belong to any object."""


@final
class _Pool:
    """The rated values for one argument. Each known value is rated once."""

    def __init__(self, asked: Sequence[str], about: Sequence[str], schema: Mapping[str, Json]) -> None:
        self.rated: list[tuple[float, float, str, Value]] = []
        """One tuple per value: its rating, the similarity of the names, the canonical JSON of the value, and the
        value."""
        self._asked, self._about, self._schema = asked, about, schema
        self._num_read = 0
        hinted = Known()
        hinted.add_text(str(schema.get("description", "")), "description")
        for one in hinted.seen:
            self._rate(one)

    def read(self, seen: Sequence[Value]) -> None:
        """Rate the values that were added since the last call."""
        for one in seen[self._num_read :]:
            self._rate(one)
        self._num_read = len(seen)

    def _rate(self, one: Value) -> None:
        fitted = fit_to_schema(one.value, self._schema)
        if fitted is None:
            return
        alike = _rate_alikeness(self._asked, self._about, one.words)
        rate = alike + next((extra for source, extra in _SOURCES.items() if one.source.startswith(source)), 0.0)
        if "pattern" in self._schema or self._schema.get("format") in _FORMATS:
            rate += 2.0
        if isinstance(fitted, str) and fitted.count(" ") > MOST_SPACES:
            rate += 0.6 if _PROSE & set(self._asked) else -1.0  # a sentence
        if self._schema.get("type") == "number" and isinstance(fitted, float) and not fitted.is_integer():
            rate += 0.2
        value = Value(fitted, one.words, one.source, one.record)
        self.rated.append((rate, alike, canonical(fitted), value))


@final
@dataclass
class Known:
    """The values that are known so far in an episode."""

    seen: list[Value] = field(default_factory=list)
    legal: set[tuple[str, str]] = field(default_factory=set)
    """Names and values of arguments that a tool accepted."""
    most: int = MOST_VALUES
    """The maximum number of values to try for one argument."""
    constants: Mapping[str, Mapping[str, Sequence[Json]]] = field(default_factory=dict)
    """For each tool and each of its arguments, the constants with which the tool's code compares the argument."""
    _pools: dict[tuple[str, str], _Pool] = field(default_factory=dict)
    _records: int = 0
    _keys: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)

    def add_legal(self, arguments: Mapping[str, Json]) -> None:
        """Remember that a tool accepted these arguments."""
        self.legal |= {(name, canonical(value)) for name, value in arguments.items()}

    def add_json(self, value: Json, source: str, words: tuple[str, ...] = ()) -> None:
        """Add every scalar in a value, named by the words of its keys, and add the keys of the objects in it."""
        if isinstance(value, Mapping):
            self._records += 1
            record = self._records
            for key, item in value.items():
                if isinstance(item, Mapping | list | tuple):
                    self._add(str(key), words, source, record)
                    self.add_json(item, source, (*words[-2:], *split_words(str(key))))
                else:
                    self._add(item, (*words, *split_words(str(key))), source, record)
                    self._add(str(key), words, source, record)
        elif isinstance(value, list | tuple):
            for item in value:
                self.add_json(item, source, words)
        elif isinstance(value, str) and (inner := _parsed(value)) is not None:
            self.add_json(inner, source, words)
        else:
            self._add(value, words, source, self._records)

    def add_text(self, text: str, source: str, words: tuple[str, ...] = ()) -> None:
        """Add the values in a text: JSON, table cells, lines of `key: value`, tags, names after `from` and `to`, quoted
        texts, and codes."""
        whole = _parsed(text)
        if whole is not None:
            self.add_json(whole, source, words)
            return
        for inner in _find_objects(text):
            self.add_json(inner, source, words)
        self._records += 1
        record = self._records
        for name, cell in chain(_find_table_cells(text), _pairs(text)):
            self._add(cell, (*words, *split_words(name)), source, record)
        for pattern, names in ((_BEGIN, _BEGINS), (_END, _ENDS)):
            for match, name in product(pattern.finditer(text), names):
                self._add(match[match.lastindex or 0], (*words, name), source, record)
        codes = [
            _first(match) for pattern in (_QUOTED, _CODE, _TITLE) for match in reversed(list(pattern.finditer(text)))
        ]
        for code in codes:
            self._add(code, words, f"{source} word", record)

    def _add(self, value: Json, words: tuple[str, ...], source: str, record: int) -> None:
        if value is not None and not isinstance(value, str | int | float | list | tuple | Mapping):
            value = str(value)  # for example a date or an array
        key = (canonical(value), words)
        if value is None or key in self._keys or len(self.seen) >= MOST_KNOWN or value == "":
            return
        self._keys.add(key)
        self.seen.append(Value(value, words, f"{source.partition('#')[0]}:{' '.join(words)}", record))

    def arguments(
        self, tool: str, schema: Mapping[str, Json], worked: Mapping[tuple[str, str], Sequence[str]]
    ) -> Iterator[tuple[dict[str, Json], dict[str, str]]]:
        """Yield arguments of a tool with the sources of their values, the most likely first. `worked` maps each pair of
        tool and argument to the sources whose values the tool has accepted before."""
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        pools = {name: self.ranked(tool, name, part, worked.get((tool, name), ())) for name, part in properties.items()}
        names = [name for name in properties if pools[name]]
        whole = _choose_distinct(names, pools)
        needed = {name: one for name, one in whole.items() if name in required}
        yield _chosen(needed)
        together = _list_records(names, pools)
        for index in range(self.most):
            if index < len(together):
                yield _chosen({**needed, **together[index]})
            for name in names:
                if 0 < index < len(pools[name]):
                    yield _chosen({**needed, name: pools[name][index]})
        for index in range(self.most):
            yield _chosen({name: pools[name][min(index, len(pools[name]) - 1)] for name in names})
        # Two arguments may have to be equal.
        yield _chosen({name: pools[name][0] for name in names if name in required})

    def ranked(self, tool: str, name: str, schema: Mapping[str, Json], worked: Sequence[str]) -> list[Value]:
        """Return at most `most` values for an argument, the most likely first."""
        asked, about = split_words(name), split_words(tool)
        programs = [_PROGRAMS[word] for word in asked if word in _PROGRAMS] if schema.get("type") == "string" else []
        compared = self.constants.get(tool, {})
        constants = [fit_to_schema(value, schema) for value in (*compared.get(name, ()), *compared.get("", ()))]
        made = (*programs, *list_schema_values(schema), *(value for value in constants if value is not None))
        own = [Value(value, (), "schema:", 0) for value in made]
        if "enum" in schema or "const" in schema:
            return own[: self.most]
        pool = self._pools.setdefault((tool, name), _Pool(asked, about, schema))
        pool.read(self.seen)
        rated = self._rate_pool(name, pool, worked)
        likely = [one for rate, one in rated if rate >= 0.5]
        others = [one for rate, one in rated if rate < 0.5]
        first = [one for one in own if schema.get("default") == one.value or "examples" in schema]
        ordered, taken = [], set()
        for one in chain(likely, first, _alternating(others, own)):
            key = canonical(one.value)
            if key not in taken:
                taken.add(key)
                ordered.append(one)
            if len(ordered) == self.most:
                break
        return ordered

    def _rate_pool(self, name: str, pool: _Pool, worked: Sequence[str]) -> list[tuple[float, Value]]:
        """Return the values of a pool with their ratings, the most likely first. Accepted values, and values from the
        sources of accepted values, are rated higher."""
        # These are the sources of accepted values. The same key in other rows of a list has the same source.
        same_source = {one.source for _, _, key, one in pool.rated if one.words and (name, key) in self.legal}
        rated: list[tuple[float, Value]] = []
        for rate, alike, key, one in pool.rated:
            extra = (4.0 - alike if one.source in worked else 0.0) + (2.0 if (name, key) in self.legal else 0.0)
            extra += 1.5 if one.source in same_source else 0.0
            rated.append((rate + extra, one))
        return sorted(rated, key=lambda one: -one[0])


def split_words(name: str) -> tuple[str, ...]:
    """Return the words of a name: `orderId`, `order_id` and `Order ID` are all ("order", "id"). Plurals become
    singular."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    lowered = (part.lower() for part in parts)
    return tuple(
        part[:-1] if len(part) > 3 and part.endswith("s") and not part.endswith("ss") else part for part in lowered
    )


def fit_to_schema(value: Json, schema: Mapping[str, Json]) -> Json | None:
    """Return a value converted to the schema's type, or None if it cannot be converted."""
    for choice in schema.get("anyOf", schema.get("oneOf", ())):
        if choice.get("type") != "null" and (fitted := fit_to_schema(value, choice)) is not None:
            return fitted
    if "anyOf" in schema or "oneOf" in schema:
        return None
    kind = schema.get("type")
    kind = next((one for one in kind if one != "null"), None) if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        return _number(value, schema, whole=kind == "integer")
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "array":
        items = schema.get("items", {})
        values = (
            value if isinstance(value, list) else re.split(r"\s*[,;]\s*", value) if isinstance(value, str) else [value]
        )
        fitted = [one for item in values if (one := fit_to_schema(item, items)) is not None]
        return fitted[: schema.get("maxItems", len(fitted))] or None
    if kind == "object":
        return value if isinstance(value, dict) else None
    if kind is None and not isinstance(value, str):
        return value
    return _fit_text(value, schema)


def _fit_text(value: Json, schema: Mapping[str, Json]) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    fits = schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", 200)
    pattern = schema.get("pattern")
    if not fits or (isinstance(pattern, str) and not _matches(pattern, text)):
        return None
    needed = _FORMATS.get(str(schema.get("format")))
    return None if needed is not None and re.sub(r"\w", "x", needed[:8]) != re.sub(r"\w", "x", text[:8]) else text


def list_schema_values(schema: Mapping[str, Json]) -> list[Json]:
    """Return the values that a schema lists, and arbitrary values of its type."""
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    made: list[Json] = [schema["default"]] if schema.get("default") is not None else []
    made += schema.get("examples", [])
    for choice in schema.get("anyOf", schema.get("oneOf", ())):
        made += list_schema_values(choice) if choice.get("type") != "null" else []
    kind = schema.get("type")
    if kind == "string":
        pattern = schema.get("pattern")
        text = _FORMATS.get(str(schema.get("format")), "example")
        made.append(_write_match(pattern) if isinstance(pattern, str) else text)
    elif kind in ("integer", "number"):
        whole = kind == "integer"
        made += [number for number in (1, 2, 0, 3, 5, 10, 100) if _number(number, schema, whole=whole) is not None]
        made += [schema[name] for name in ("minimum", "maximum") if name in schema]
        made[1:1] = [] if whole else [0.1, 1.25]
    elif kind == "boolean":
        made += [True, False]
    elif kind == "array":
        items = list_schema_values(schema.get("items", {"type": "string"}))
        least = schema.get("minItems", 1)
        made += [[one] * max(1, least) for one in items[:3]] + ([[]] if not least else [])
    elif kind == "object":
        made.append(_make_object(schema))
    return made


def _make_object(schema: Mapping[str, Json]) -> dict[str, Json]:
    """Return an object with only the required properties."""
    required = schema.get("required", ())
    parts = {name: list_schema_values(part) for name, part in schema.get("properties", {}).items() if name in required}
    return {name: values[0] for name, values in parts.items() if values}


def _choose_distinct(names: Sequence[str], pools: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """Return the most likely value of each argument such that no two values are equal; for example, a sender and a
    receiver must differ."""
    chosen: dict[str, Value] = {}
    for name in names:
        taken = {canonical(one.value) for one in chosen.values() if not isinstance(one.value, bool)}
        free = (one for one in pools[name] if canonical(one.value) not in taken)
        chosen[name] = next(free, pools[name][0])
    return chosen


def _list_records(names: Sequence[str], pools: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Return the values of several arguments that belong together because they come from one record, the largest groups
    first."""
    by_record: dict[int, dict[str, Value]] = {}
    for name in names:
        for one in pools[name]:
            if one.record:  # values of the schema belong to no record
                by_record.setdefault(one.record, {}).setdefault(name, one)
    apart = (
        {name: one for name, one in record.items() if not _is_doubled(name, record)} for record in by_record.values()
    )
    return sorted((one for one in apart if len(one) > 1), key=len, reverse=True)


def _is_doubled(name: str, record: Mapping[str, Value]) -> bool:
    """Return True if a recorded call passes the same value for an argument as for an earlier argument."""
    before = list(record)[: list(record).index(name)]
    return any(str(record[other].value) == str(record[name].value) for other in before)


def _rate_alikeness(asked: Sequence[str], about: Sequence[str], words: Sequence[str]) -> float:
    """Return how well the words of a name match an argument of a tool, from 0 to 3."""
    if not words or not asked:
        return 0.0
    own = words[-len(asked) :]
    if tuple(own) == tuple(asked):
        return 3.0 if len(words) == len(asked) else 2.9
    shared = set(asked) & set(words)
    if not shared:
        # The tool's name may explain the value: `get_order(id)` and a value under `order`, for example.
        return 0.6 if set(about) & set(words) else 0.0
    both = set(about) | set(asked)
    return 1.0 + len(shared) / len(set(asked)) + 0.5 * len(both & set(words)) / len(set(words))


def _number(value: Json, schema: Mapping[str, Json], *, whole: bool) -> Json | None:
    if isinstance(value, str):
        text = value.strip().lstrip("$€£").replace(",", "")
        if not re.fullmatch(r"-?\d+(\.\d+)?%?", text):
            return None
        number: float = float(text.rstrip("%"))
        value = int(number) if number.is_integer() and "." not in text else number
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if whole and isinstance(value, float):
        return None
    low, high = (
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
    )
    is_below = low is not None and (value < low or (value == low and "exclusiveMinimum" in schema))
    is_above = high is not None and (value > high or (value == high and "exclusiveMaximum" in schema))
    return None if is_below or is_above else value


def _chosen(values: Mapping[str, Value]) -> tuple[dict[str, Json], dict[str, str]]:
    return {name: one.value for name, one in values.items()}, {name: one.source for name, one in values.items()}


def _alternating(first: Sequence[Value], second: Sequence[Value]) -> Iterator[Value]:
    for index in range(max(len(first), len(second))):
        yield from first[2 * index : 2 * index + 2]
        yield from second[index : index + 1]


def _parsed(text: str) -> Json | None:
    """Parse a string that is a JSON object or array, and return its value. Return None for any other string."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _find_objects(text: str) -> Iterator[Json]:
    """Yield at most 20 JSON objects and arrays from a string."""
    decoder, position, found = json.JSONDecoder(), 0, 0
    while found < 20 and (start := re.compile(r"[{\[]").search(text, position)) is not None:
        position = start.start() + 1
        try:
            value, position = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        found += 1
        yield value


def _find_table_cells(text: str) -> Iterator[tuple[str, str]]:
    """Yield the cells of tables in a text, each with the header of its column. In a table with two columns, also yield
    the second cell with the first cell of its row as the header."""
    header: list[str] = []
    lines = text.splitlines()
    for index, line in enumerate(lines):
        mark = "|" if line.count("|") >= 1 else "\t" if "\t" in line else None
        cells = [cell.strip(' *`"') for cell in line.strip().strip("|").split(mark)] if mark else []
        if len(cells) < 2:
            header = []
            continue
        if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            continue
        if not header or len(header) != len(cells):
            header, is_first = cells, True
        else:
            yield from zip(header, cells, strict=True)
            is_first = False
        # With two columns, a row may be a name and its value. Without a line of dashes, this includes the first row.
        if len(cells) == 2 and not (is_first and _has_rule_below(lines, index)):
            yield cells[0], cells[1]


def _has_rule_below(lines: Sequence[str], index: int) -> bool:
    return index + 1 < len(lines) and re.fullmatch(r"[\s|:-]+", lines[index + 1]) is not None


def find_named_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) for each line of the form `name: value` in a string."""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None and "(" not in match[1]:
            yield match[1], match[2].strip(" .*`\"'") or match[2]


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    yield from find_named_lines(text)
    for pattern in (_TAGGED, _INLINE, _NAMED_CODE):
        for match in pattern.finditer(text):
            yield match[1], match[2].rstrip(".")


def _first(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group), match[0])


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def _write_match(pattern: str) -> str:
    """Return the shortest and simplest text that a regular expression matches, or "example" if the expression cannot be
    parsed."""
    try:
        return "".join(_simplest(regex.parse(pattern)))
    except (re.error, ValueError, LookupError, RecursionError):
        return "example"


def _simplest(parsed: Any) -> Iterator[str]:
    for operator, argument in parsed:
        name = str(operator)
        if name == "LITERAL":
            yield chr(argument)
        elif name == "ANY":
            yield "a"
        elif name == "IN":
            yield _member(argument)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            yield "".join(_simplest(argument[2])) * (argument[0] or min(1, argument[1]))
        elif name == "SUBPATTERN":
            yield from _simplest(argument[-1])
        elif name == "BRANCH":
            yield from _simplest(argument[1][0])
        elif name not in ("AT", "ASSERT", "ASSERT_NOT"):
            raise ValueError(name)


def _member(choices: Sequence[Any]) -> str:
    operator, argument = choices[0]
    names = {"CATEGORY_DIGIT": "1", "CATEGORY_WORD": "a", "CATEGORY_SPACE": " ", "CATEGORY_NOT_SPACE": "a"}
    if str(operator) == "NEGATE":
        return next(
            chr(code) for code in range(97, 123) if ("LITERAL", code) not in [(str(o), a) for o, a in choices[1:]]
        )
    if str(operator) == "RANGE":
        return chr(argument[0])
    return chr(argument) if str(operator) == "LITERAL" else names[str(argument)]
