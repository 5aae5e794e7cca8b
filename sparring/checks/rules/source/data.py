"""Patterns of mistakes that the tasks' own values reveal: numbers sorted as text, -999 in a mean, types that never
match, 0 treated as missing."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sparring.checks.rules.source.code import UNKNOWN, Code, Function, Part, Slip, field_key
from sparring.checks.rules.source.computing import computed, key_read
from sparring.checks.rules.source.logic import short
from sparring.types import Json

FEWEST = 3
"""The number of values that a field must have before conclusions are drawn."""
_AGGREGATES = frozenset(
    [
        "mean",
        "sum",
        "min",
        "max",
        "median",
        "std",
        "var",
        "idxmax",
        "idxmin",
        "nlargest",
        "nsmallest",
        "cumsum",
        "quantile",
        "average",
    ]
)


def order_of_text(function: Function, code: Code) -> Iterator[Slip]:
    """Find numbers, dates or times that are stored as text, and sorted or compared as text."""
    for node, part in _ordered(function):
        key = key_read(function, function.origin(part))
        values = [one for one in code.values.get(key or "", ()) if isinstance(one, str)]
        example = wrong_order(values) if values and len(values) == len(code.values[key or ""]) else None
        if example is not None:
            yield Slip(
                node,
                f"orders `{key}` as text, so that {example[0]!r} comes before {example[1]!r}",
                "Convert it before comparing: `int(...)`, `Decimal(...)`, or a date.",
                {"field": key, "values": values[:6]},
                covered_by=("environment.claims",),
            )


def _ordered(function: Function) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield expressions whose values are used to sort, choose or limit something."""
    for call in function.every(ast.Call):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in ("sorted", "sort", "min", "max", "nlargest", "nsmallest"):
            continue
        key = next((one.value for one in call.keywords if one.arg == "key"), None)
        if isinstance(key, ast.Lambda):
            for part in key.body.elts if isinstance(key.body, ast.Tuple) else [key.body]:
                yield call, part
        elif (
            isinstance(key, ast.Call)
            and getattr(key.func, "attr", getattr(key.func, "id", "")) in ("itemgetter", "attrgetter")
            and key.args
        ):
            yield call, ast.Subscript(value=ast.Name(id="_", ctx=ast.Load()), slice=key.args[0], ctx=ast.Load())
        elif key is None and call.args and isinstance(call.args[0], ast.GeneratorExp | ast.ListComp):
            yield call, call.args[0].elt
    for node in function.every(ast.Compare):
        if all(isinstance(one, ast.Lt | ast.Gt | ast.LtE | ast.GtE) for one in node.ops):
            for part in (node.left, *node.comparators):
                yield node, part


def wrong_order(values: Sequence[str]) -> tuple[str, str] | None:
    """Return two texts whose order as text differs from the order of the values that they represent. Return None if the
    orders agree, or if the values have no order."""
    values = sorted(set(values))
    for reading in _READINGS:
        meant = [reading(one) for one in values]
        if len(values) >= FEWEST and all(one is not None for one in meant):
            return next(((a, b) for (a, b), (x, y) in zip(_pairs(values), _pairs(meant), strict=True) if x > y), None)
    return None


def _pairs(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(itertools.pairwise(values))


def _dated(form: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            return None

    return read


def _version(text: str) -> tuple[int, ...] | None:
    return tuple(map(int, text.removeprefix("v").split("."))) if re.fullmatch(r"v?\d+(?:\.\d+){2,3}", text) else None


_READINGS: tuple[Callable[[str], Any], ...] = (
    lambda text: float(text.replace(",", "")) if re.fullmatch(r"-?\d[\d,]*(?:\.\d+)?", text) else None,
    lambda text: (
        float(found[1]) if (found := re.fullmatch(r"[$€£]?\s?(\d+(?:\.\d+)?)\s?(?:[a-z%€$£]{1,5})?", text)) else None
    ),
    *map(_dated, ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%H:%M", "%I:%M %p")),
    *map(_dated, ("%d %B %Y", "%B %d, %Y", "%d %b %Y", "%b %d, %Y", "%B", "%A")),
    _version,
)


def sentinel_counted(function: Function, code: Code) -> Iterator[Slip]:
    """Find a mean, sum, minimum or maximum of values that include a number such as -999 for a missing value."""
    text = ast.unparse(function.node)
    for call in function.every(ast.Call):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in _AGGREGATES:
            continue
        read = [key for one in ast.walk(call) if (key := key_read(function, one)) is not None]
        for key in dict.fromkeys(read):
            found = sentinel(code.values.get(key, ()))
            if (
                found is not None
                and not _names_number(function, text, found)
                and not re.search(rf"{key}['\"\]]*\s*(?:>=?|<=?|!=)|abs\(|notna|dropna|isin|between|mask|where\(", text)
            ):
                rows = [one for one in code.values[key] if isinstance(one, int | float)]
                yield Slip(
                    call,
                    f"includes {found!r}, which stands for a missing value in {rows.count(found)} of {len(rows)} "
                    f"rows, in the {name} of `{key}`",
                    f"Leave out {found!r} first.",
                    {"field": key, "values": sorted(set(rows))[:6]},
                    covered_by=("environment.amounts", "environment.computed"),
                )


def _names_number(function: Function, text: str, number: float) -> bool:
    """Return True if code contains a number, directly or by the name of a constant, or removes it with NULLIF."""
    names = [
        one
        for one, value in function.module.namespace.items()
        if isinstance(value, int | float) and value == number and one.isupper()
    ]
    is_written = str(number) in text or str(int(number)) in text
    return is_written or any(one in text for one in names) or "NULLIF" in text.upper()


def sentinel(values: Sequence[Json]) -> float | None:
    """Return a number that stands for a missing value: -999, 9999 or -1, if it occurs more than once and is far from
    the rest."""
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) < 10 or len(numbers) < len(values) / 2:
        return None
    counts = Counter(numbers)
    for edge in (min(numbers), max(numbers)):
        rest = [one for one in numbers if one != edge]
        is_nines = re.fullmatch(r"-?9{2,}(?:\.0|\.9+)?", str(edge)) is not None and (edge < 0 or abs(edge) >= 999)
        if len(rest) < 5 or counts[edge] < 2 or counts[edge] > len(numbers) / 2:
            continue
        width = max(rest) - min(rest)
        distance = min(abs(edge - max(rest)), abs(edge - min(rest)))
        if (is_nines and distance > max(1, width)) or (
            edge == -1 and min(rest) > 0 and all(isinstance(one, int) or one >= 0 for one in rest)
        ):
            return edge
    return None


def never_equal(function: Function, code: Code) -> Iterator[Slip]:
    """Find comparisons that are never true: a string with a number, a lower-case string with a string that has
    capitals, an integer with keys that are texts."""
    yield from _compared(function, code)
    yield from _looked_for(function, code)
    yield from _looked_up(function, code)


def _compared(function: Function, code: Code) -> Iterator[Slip]:
    """Yield comparisons of a string with a number, and of a lower-case string with a string that has capitals."""
    for node in function.every(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            continue
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            key = key_read(function, one)
            values = [each for each in code.values.get(key or "", ()) if each is not None]
            if key is not None and len(values) >= FEWEST:
                yield from _compared_types(function, node, other, key, values)
            constant = function.constant(one) if isinstance(one, ast.Constant) else None
            known = values if key is not None else [constant]
            fold, texts = _fold(other), [each for each in known if isinstance(each, str)]
            if fold and texts and all(getattr(each, fold)() != each for each in texts):
                yield Slip(
                    node,
                    f"compares `{short(other)}` with {texts[0]!r}, which {fold}() never returns: they are never equal",
                    f"Write `.{fold}()` on both sides.",
                    {"values": texts[:4]},
                    covered_by=("environment.found", "environment.tools_answer"),
                )


def _compared_types(
    function: Function, node: ast.Compare, other: ast.expr, key: str, values: Sequence[Json]
) -> Iterator[Slip]:
    """Yield a comparison of a parameter with the values of a field if one is a string and the other is a number."""
    name = other.id if isinstance(other, ast.Name) and other.id not in function.assigned else ""
    kind = function.parameters.get(name, "")
    types = {type(each) for each in values}
    is_off = (kind == "str" and types and types <= {int, float}) or (kind in ("int", "float") and types == {str})
    if is_off:
        yield Slip(
            node,
            f"compares `{ast.unparse(other)}`, which is {kind}, with `{key}`, whose values are "
            f"like {values[0]!r}: they are never equal",
            "Convert one of them.",
            {"field": key, "values": values[:4]},
            covered_by=("environment.found", "environment.tools_answer"),
        )


def _looked_for(function: Function, code: Code) -> Iterator[Slip]:
    """Yield searches for a lower-case text among texts that have capitals."""
    for node in function.every(ast.Compare):
        members = (
            function.constant(node.comparators[0])
            if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn)
            else None
        )
        fold = _fold(node.left)
        if fold and isinstance(members, list | tuple | set | dict | frozenset) and members:
            lost = [one for one in members if isinstance(one, str) and getattr(one, fold)() != one]
            if lost:
                yield Slip(
                    node,
                    f"searches for `{short(node.left)}` among texts of which {lost[0]!r} is never found",
                    f"Write the texts as {fold}() returns them.",
                )
    yield from _looked_for_in_field(function, code)


def _looked_for_in_field(function: Function, code: Code) -> Iterator[Slip]:
    """Yield searches for a lower-case text in a field whose values have capitals."""
    for node in function.every(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.In | ast.NotIn):
            continue
        key = key_read(function, function.origin(node.comparators[0]))
        texts = [one for one in code.values.get(key or "", ()) if isinstance(one, str)]
        fold = _folded_by(function, node.left)
        if fold and len(texts) >= FEWEST and all(getattr(one, fold)() != one for one in texts):
            yield Slip(
                node,
                f"searches for `{short(node.left)}`, which {fold}() has changed, in `{key}`, whose values are like "
                f"{texts[0]!r}: "
                "words with a capital are never found",
                f"Write `.{fold}()` on both sides.",
                {"field": key, "values": texts[:4]},
                covered_by=("environment.found", "environment.tools_answer"),
            )


def _looked_up(function: Function, code: Code) -> Iterator[Slip]:
    """Yield lookups of an integer among keys that are texts."""
    for node in function.every(ast.Subscript, ast.Compare, ast.Call):
        key, place = _asked(node)
        kind = (
            function.parameters.get(key.id, "") if isinstance(key, ast.Name) and key.id not in function.assigned else ""
        )
        field = _raw_field(function, code, place) if kind == "int" else None
        keys = {one for value in code.fields.get(field or "", ()) if isinstance(value, dict) for one in value}
        if key is not None and field is not None and keys and all(isinstance(one, str) for one in keys):
            yield Slip(
                node,
                f"looks up `{short(key)}`, a whole number, in `{place}`, but its keys are texts such as "
                f"{min(keys)!r}: no key is ever found",
                "Convert the key with `str(...)`.",
                {"field": field, "keys": sorted(keys)[:4]},
                cause=f"{function.name} {place}",
                covered_by=("environment.found", "environment.tools_answer"),
            )


def _fold(node: ast.AST) -> str | None:
    name = (
        node.func.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args
        else None
    )
    return name if name in ("lower", "upper", "casefold", "title", "capitalize") else None


def _folded_by(function: Function, node: ast.AST) -> str | None:
    """Return `lower` for `query.lower()`, for a name that stands for it, and for a word of `query.lower().split()`."""
    loops = [
        one.iter for one in function.every(ast.For, ast.comprehension) if ast.unparse(one.target) == ast.unparse(node)
    ]
    node = function.origin(loops[0] if loops else node)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("split", "strip"):
        node = function.origin(node.func.value)
    return _fold(node)


def _asked(node: ast.AST) -> tuple[ast.AST | None, str]:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return node.slice, ast.unparse(node.value)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
        return node.left, ast.unparse(node.comparators[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return node.args[0], ast.unparse(node.func.value)
    return None, ""


def _raw_field(function: Function, code: Code, place: str) -> str | None:
    """Return the field if every method that assigns `self.x` assigns the same unchanged field, or else None."""
    values = [
        one.value
        for each in code.of_class(function)
        for one in each.every(ast.Assign, ast.AnnAssign)
        if one.value is not None
        and any(
            ast.unparse(target) == place for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        )
    ]
    keys = {field_key(one) for one in values}
    return keys.pop() if len(keys) == 1 else None


def zero_for_nothing(function: Function, code: Code) -> Iterator[Slip]:
    """Find `row["discount"] or 10` if 0 is a value."""
    for node in function.every(ast.BoolOp):
        if not isinstance(node.op, ast.Or) or len(node.values) != 2:
            continue
        key, other = key_read(function, node.values[0]), function.constant(node.values[1])
        values = code.values.get(key or "", ())
        zeros = [one for one in values if one == 0 and not isinstance(one, bool)]
        if zeros and other is not UNKNOWN and other and any(isinstance(one, int | float) and one for one in values):
            yield Slip(
                node,
                f"uses {other!r} if `{key}` is 0, as it is in {len(zeros)} of {len(values)} rows",
                "Test `is None`.",
                {"field": key},
                covered_by=("environment.amounts", "environment.agreement"),
            )
    yield from _zero_refused(function, code)


def _zero_refused(function: Function, code: Code) -> Iterator[Slip]:
    """Yield code that reports a 0 as missing."""
    for node in function.every(ast.If):
        if not isinstance(node.test, ast.UnaryOp) or not isinstance(node.test.op, ast.Not):
            continue
        test = function.origin(node.test.operand)
        key, (asked, place) = key_read(function, test), _asked(test)
        refusal = node.body[0] if isinstance(node.body[0], ast.Raise | ast.Return) else ast.Pass()
        message = " ".join(str(one.value) for one in ast.walk(refusal) if isinstance(one, ast.Constant))
        field = (
            _raw_field(function, code, place)
            if key is None and asked is not None and isinstance(test, ast.Call)
            else None
        )
        inner = [one for value in code.fields.get(field or "", ()) if isinstance(value, dict) for one in value.values()]
        values = list(code.values.get(key or "", ())) or inner
        zeros = [one for one in values if one == 0 and isinstance(one, int | float) and not isinstance(one, bool)]
        if (
            zeros
            and len(zeros) < len(values)
            and re.search(r"(?i)\b(?:no such|unknown|not found|there is no|does not exist|missing)\b", message)
        ):
            yield Slip(
                node,
                f"returns {message.strip()[:40]!r} if `{short(test)}` is 0, as it is in {len(zeros)} of {len(values)} "
                f"rows",
                "Test `is None`, or `in`.",
                covered_by=("environment.found", "environment.agreement"),
            )


def unreadable_form(function: Function, code: Code) -> Iterator[Slip]:
    """Find a date or time format that cannot parse the tasks' own values."""
    for call in function.every(ast.Call):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name not in ("strptime", "fromisoformat", "int", "float", "Decimal"):
            continue
        parent = call
        while parent is not None and not isinstance(parent, ast.Try | ast.FunctionDef | ast.IfExp | ast.If):
            parent = function.parent(parent)
        if isinstance(parent, ast.Try | ast.IfExp | ast.If):
            continue  # failures are handled, or excluded by a test
        for key, pairs in computed(function, code, call):
            failing = [value for value, result in pairs if isinstance(result, Exception)]
            if failing and len(pairs) >= FEWEST and len(failing) < len(pairs):
                yield Slip(
                    call,
                    f"cannot parse {failing[0]!r} of `{key}` with `{short(call)}`: {len(failing)} of "
                    f"{len(pairs)} values fail",
                    "Parse every form that the data has.",
                    {"field": key, "values": failing[:4]},
                )


def group_lost(function: Function, code: Code) -> Iterator[Slip]:
    """Find a `groupby` that drops the rows whose key is missing."""
    for call in function.every(ast.Call):
        if (
            getattr(call.func, "attr", "") != "groupby"
            or not call.args
            or any(one.arg == "dropna" for one in call.keywords)
        ):
            continue
        key = function.constant(call.args[0])
        named = [key] if isinstance(key, str) else []
        if isinstance(call.args[0], ast.Name) and call.args[0].id in function.parameters:
            named = re.findall(r"['\"](\w+)['\"]", function.parameters[call.args[0].id])
        for one in named:
            values = code.values.get(one, ())
            if (
                values
                and any(each is None or each != each for each in values)
                and "fillna" not in ast.unparse(function.node)
            ):
                num = sum(each is None or each != each for each in values)
                yield Slip(
                    call,
                    f"groups by `{one}` and drops the rows without it: {num} of {len(values)}",
                    "Pass `dropna=False`.",
                    {"field": one},
                    covered_by=("environment.amounts", "environment.agreement"),
                )


def day_against_time(function: Function, code: Code) -> Iterator[Slip]:
    """Find `"2025-03-31T18:00" <= str(day)`: a text with a time is greater than the text of the same day."""
    for node in function.every(ast.Compare):
        parts = [node.left, *node.comparators]
        for (one, operator), other in zip(zip(parts, node.ops, strict=False), parts[1:], strict=True):
            if not isinstance(operator, ast.LtE | ast.GtE | ast.Lt | ast.Gt):
                continue
            for text, day, inclusive in ((one, other, ast.LtE), (other, one, ast.GtE)):
                key = key_read(function, text)
                values = [each for each in code.values.get(key or "", ()) if isinstance(each, str)]
                has_time = bool(values) and all(re.match(r"\d{4}-\d\d-\d\d[T ]\d\d", each) for each in values)
                is_day = isinstance(day, ast.Call) and (
                    ast.unparse(day.func) == "str" or getattr(day.func, "attr", "") == "isoformat"
                )
                if has_time and is_day and isinstance(operator, inclusive):
                    yield Slip(
                        node,
                        f"compares `{key}`, such as {values[0]!r}, with a day as text in `{short(node)}`: "
                        f"the last day is left out except for its first moment",
                        "Compare dates, or the first ten characters.",
                        {"field": key},
                        covered_by=("data.unanswerable", "environment.agreement"),
                    )


def whole_task_shown(function: Function, code: Code) -> Iterator[Slip]:
    """Find code that outputs all fields of the task, including the reference answer."""
    hidden = sorted(_find_fields_read(code, "graders") - _find_fields_read(code, "environment"))
    for node in function.every(ast.Attribute) if hidden else ():
        if node.attr != "fields" or isinstance(function.parent(node), ast.Subscript | ast.Attribute):
            continue
        holder = function.parent(node)
        while isinstance(holder, ast.Call) and ast.unparse(holder.func) in (
            "dict",
            "copy.deepcopy",
            "copy.copy",
            "deepcopy",
        ):
            holder = function.parent(holder)
        shows = (
            isinstance(holder, ast.Call) and ast.unparse(holder.func) in ("json.dumps", "str", "repr", "json.dump")
        ) or (isinstance(holder, ast.Return) and function.is_tool)
        if shows or isinstance(holder, ast.FormattedValue):
            yield Slip(
                node,
                f"writes out all fields of the task, including `{hidden[0]}`, which the reward reads",
                "Write out only the fields that the policy may see, by name.",
                {"fields": hidden},
                covered_by=("data.leak", "environment.leaks"),
            )


def _find_fields_read(code: Code, part: Part) -> set[str]:
    """Return the fields of the task that a part of the code reads."""
    return {
        key
        for one in code.functions
        if one.part == part
        for node in one.every(ast.Subscript, ast.Call)
        if (key := field_key(node))
    }


PATTERNS = (
    whole_task_shown,
    order_of_text,
    sentinel_counted,
    never_equal,
    zero_for_nothing,
    unreadable_form,
    group_lost,
    day_against_time,
)
PATTERNS_OF_TASKS = (order_of_text, never_equal, day_against_time)
