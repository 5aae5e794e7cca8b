"""Patterns of copy-and-paste errors: a field that is stored under another name, or one side of a pair used for the other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sparring.checks.rules.source.code import UNKNOWN, Code, Function, Slip, field_key
from sparring.checks.rules.source.computing import key_read
from sparring.checks.rules.source.logic import short
from sparring.checks.rules.source.state import find_sql
from sparring.checks.rules.source.texts import get_described

_INCLUDED = r"\bor (?:more|later|newer|higher|above|less|earlier|lower|below|fewer|older)\b"
_INCLUDED += r"|at least|at most|inclusive|includ|no more than"
_EXCLUDED = r"\b(?:more|less|later|earlier|higher|lower|fewer|greater|older|newer|larger|smaller) than\b"
_EXCLUDED += r"|exclusive|not included|strictly"
_LENGTHS = re.compile(r"length|duration|minutes|hours|nights|end|until|stop|finish|to")


def other_field(function: Function, code: Code) -> Iterator[Slip]:
    """Find `{"sell": row["buy"]}` if rows also have a field `sell`."""
    for table in function.every(ast.Dict):
        pairs = [
            (key.value, read, value)
            for key, value in zip(table.keys, table.values, strict=True)
            if isinstance(key, ast.Constant)
            and isinstance(key.value, str)
            and (read := key_read(function, value)) is not None
        ]
        for name, read, value in pairs:
            twice = [one for one, other, _ in pairs if other == read and one != name]
            is_known = bool(code.values.get(name)) and bool(code.values.get(read))
            if name != read and is_known and (read in twice or any(one == read for one, _, _ in pairs)):
                yield Slip(
                    value,
                    f"returns the field `{read}` as {name!r}, although rows have a field `{name}`",
                    f"Read `{name}`.",
                    covered_by=("environment.agreement",),
                )
    yield from _columns_in_another_order(function)


def _columns_in_another_order(function: Function) -> Iterator[Slip]:
    """Yield loops that unpack the columns of a SELECT in another order."""
    for loop in function.every(ast.For, ast.comprehension):
        statements = [sql for node, sql in find_sql(function) if any(one is node for one in ast.walk(loop.iter))]
        names = [ast.unparse(one) for one in loop.target.elts] if isinstance(loop.target, ast.Tuple) else []
        listed = (
            re.match(r"(?is)\s*select\s+(?:distinct\s+)?([\w\s,.]+?)\s+from\b", statements[0]) if statements else None
        )
        columns = [one.strip().split(".")[-1] for one in listed[1].split(",")] if listed else []
        if len(columns) == len(names) and sorted(columns) == sorted(names) and columns != names:
            yield Slip(
                loop.target,
                f"unpacks the columns {', '.join(columns)} as {', '.join(names)}",
                "Name them in the order of the SELECT.",
                covered_by=("environment.agreement",),
            )


def bound_of_argument(function: Function, code: Code) -> Iterator[Slip]:
    """Find `> year` if the description contains "this year or later"."""
    for name in function.parameters if function.is_tool else ():
        text = get_described(function, name)
        # `1 or more` describes the argument itself.
        text = re.sub(r"(?i)\b\d+\s+or\s+\w+|\bat (?:least|most) \d+", "", text)
        included, excluded = re.search(_INCLUDED, text, re.IGNORECASE), re.search(_EXCLUDED, text, re.IGNORECASE)
        if (included is None) == (excluded is None) or name in function.assigned:
            continue
        found = [
            (node, side)
            for node in function.every(ast.Compare)
            if (side := _takes_the_limit(function, node, name)) is not None
        ]
        if found and all(side != (included is not None) for _, side in found):
            word = (included or excluded)[0]  # type: ignore[index]
            yield Slip(
                found[0][0],
                f"{'includes' if found[0][1] else 'excludes'} values equal to `{name}` in `{short(found[0][0])}`, but "
                f"its description has {word!r}",
                "Write the comparison as in the description.",
                {"described": text[:200]},
                covered_by=("environment.claims", "environment.described", "environment.ends"),
            )


def _takes_the_limit(function: Function, node: ast.Compare, name: str) -> bool | None:
    """Return True if a value equal to an argument passes a filter, or None if the expression does not filter by the
    argument."""
    parts = [node.left, *node.comparators]
    for one, operator, other in zip(parts, node.ops, parts[1:], strict=False):
        sides = [ast.unparse(one), ast.unparse(other)]
        rest = other if sides[0] == name else one
        is_filter = (
            name in sides
            and not isinstance(function.constant(rest), int | float)
            and key_read(function, rest) is not None
        )
        if is_filter and isinstance(operator, ast.Lt | ast.Gt | ast.LtE | ast.GtE):
            holder = function.parent(node)
            skips = isinstance(holder, ast.If) and isinstance(holder.body[0], ast.Continue | ast.Raise)
            return isinstance(operator, ast.LtE | ast.GtE) != skips
    return None


def begin_alone(function: Function, code: Code) -> Iterator[Slip]:
    """Find occupied times that are represented only by their starts, so that durations are ignored."""
    if not re.search(
        r"free|taken|available|overlap|conflict|busy", f"{function.node.name} {function.documented}", re.IGNORECASE
    ):
        return
    for loop in function.every(ast.For, ast.comprehension):
        if not isinstance(loop.target, ast.Tuple):
            continue
        names, place = [ast.unparse(one) for one in loop.target.elts], ast.unparse(loop.iter)
        for other in code.of_class(function):
            for its in other.every(ast.For, ast.comprehension):
                full = [ast.unparse(one) for one in its.target.elts] if isinstance(its.target, ast.Tuple) else []
                lost = [one for one, here in zip(full, names, strict=False) if here == "_" and _LENGTHS.fullmatch(one)]
                if ast.unparse(its.iter) == place and len(full) == len(names) and lost:
                    yield Slip(
                        loop.target,
                        f"reads where each of `{place}` begins, but not its {lost[0]}: the rest of a long entry "
                        f"counts as free",
                        f"Treat all time from the start to the start plus {lost[0]} as occupied.",
                        cause=f"{function.name} {place}",
                        covered_by=("environment.agreement", "environment.claims"),
                    )


def other_kind(function: Function, code: Code) -> Iterator[Slip]:
    """Find a tuple that is compared with a list of the task. The two are never equal."""
    for node in function.every(ast.Compare):
        if len(node.ops) != 1:
            continue
        left, right = _kind(function, code, node.left), _kind(function, code, node.comparators[0])
        is_equal = isinstance(node.ops[0], ast.Eq | ast.NotEq) and {left, right} == {"tuple", "list"}
        is_member = isinstance(node.ops[0], ast.In | ast.NotIn) and left == "tuple" and right == "list of lists"
        if is_equal or is_member:
            yield Slip(
                node,
                f"compares a tuple with a list of the task in `{short(node)}`: they are never equal",
                "Convert both to tuples.",
                covered_by=("data.unreachable",),
            )


def _kind(function: Function, code: Code, node: ast.AST) -> str | None:
    places = [function.origin(node)]
    text = ast.unparse(node)
    if re.fullmatch(r"self\.\w+", text):
        places = [
            one.value
            for each in code.of_class(function)
            for one in each.every(ast.Assign, ast.AnnAssign)
            if one.value is not None
            and any(
                ast.unparse(target) == text for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
            )
        ]
    kinds = set()
    for one in places:
        values = code.fields.get(field_key(one) or "", ())
        is_tuple = isinstance(one, ast.Tuple) or (isinstance(one, ast.Call) and ast.unparse(one.func) == "tuple")
        if is_tuple:
            kinds.add("tuple")
        elif values and all(isinstance(value, list) for value in values):
            inner = [row for value in values if isinstance(value, list) for row in value]
            kinds.add("list of lists" if inner and all(isinstance(row, list) for row in inner) else "list")
        else:
            kinds.add(None)
    return kinds.pop() if len(kinds) == 1 else None


def names_of_days(function: Function, code: Code) -> Iterator[Slip]:
    """Find lists of day or month names that do not start with the same day or month as the number that indexes them."""
    for node in function.every(ast.Subscript):
        names, place = function.constant(node.value), ast.unparse(function.origin(node.slice))
        if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
            continue
        first = names[0].lower() if names else ""
        is_off = (
            (len(names) == 7 and re.search(r"\.weekday\(\)$", place) and first.startswith(("sun", "so")))
            or (len(names) == 7 and re.search(r"\.isoweekday\(\)$", place))
            or (len(names) == 12 and re.search(r"\.month$", place))
        )
        if is_off:
            yield Slip(
                node,
                f"uses the wrong name in `{short(node)}`: the names begin with {names[0]!r}, but the number does not",
                "Use the name from the calendar: `calendar.day_name[...]`, or strftime.",
                covered_by=("environment.agreement",),
            )


_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def numbers_of_days(function: Function, code: Code) -> Iterator[Slip]:
    """Find `isoweekday() >= 5` for the weekend, and `{5: "saturday"}` with numbers that start at 1."""
    for node in function.every(ast.Call):
        first = {"weekday": 0, "isoweekday": 1}.get(getattr(node.func, "attr", "")) if not node.args else None
        parent = function.parent(node)
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            name = parent.targets[0].id
            uses = [
                function.parent(one)
                for one in function.every(ast.Name)
                if one.id == name and isinstance(one.ctx, ast.Load)
            ]
        else:
            uses = [parent]
        for use in uses:
            if first is None:
                break
            numbers = _days_named(function, use)
            wrong = [number for number, day in numbers.items() if day != number - first]
            if wrong:
                yield Slip(
                    use or node,
                    f"uses {wrong[0]} for {_DAYS[numbers[wrong[0]]] if 0 <= numbers[wrong[0]] < 7 else 'a day'} in "
                    f"`{short(use or node)}`, but `{short(node)}` counts from Monday as {first}",
                    "Use `weekday()` if Monday is 0, and `isoweekday()` if it is 1.",
                    covered_by=("environment.agreement", "data.labels"),
                )


def _days_named(function: Function, use: ast.AST | None) -> dict[int, int]:
    """Map each number that stands for a day in an expression to the weekday that it should mean."""
    if isinstance(use, ast.Call) and isinstance(use.func, ast.Attribute) and use.func.attr == "get":
        table = function.constant(use.func.value)
    else:
        table = function.constant(use.value) if isinstance(use, ast.Subscript) else None
    if isinstance(table, dict):
        named = {key: str(one).lower()[:3] for key, one in table.items() if isinstance(key, int)}
        return {key: _DAYS.index(one) for key, one in named.items() if one in _DAYS}
    if isinstance(use, ast.Compare) and len(use.ops) == 1:
        limit, operator = function.constant(use.comparators[0]), use.ops[0]
        about = function.mentions(r"week-?ends?|sunday|saturday|weekdays?|working days?|business days?") or re.search(
            r"weekend|weekday|workday|working|business", function.node.name
        )
        edge = limit + isinstance(operator, ast.Gt | ast.LtE) if isinstance(limit, int) else None
        if about and edge is not None and isinstance(operator, ast.Gt | ast.GtE | ast.Lt | ast.LtE):
            return {edge: 5}
    return {}


def percent_as_share(function: Function, code: Code) -> Iterator[Slip]:
    """Find `price * (1 - percent)` with percent from 0 to 100."""
    for node in function.every(ast.BinOp):
        is_one = isinstance(node.op, ast.Sub | ast.Add) and function.constant(node.left) == 1
        name = node.right.id if is_one and isinstance(node.right, ast.Name) else ""
        is_percent = re.search(r"percent|pct", name) or re.search(
            r"\bpercent|%", get_described(function, name) if name else ""
        )
        if is_percent and "int" in function.parameters.get(name, "") and name not in function.assigned:
            yield Slip(
                node,
                f"uses `{name}`, which is a number of hundredths, as a share in `{short(node)}`",
                f"Write `{name} / 100`.",
                covered_by=("environment.amounts", "environment.computed"),
            )


def sum_of_the_last(function: Function, code: Code) -> Iterator[Slip]:
    """Find `total = row[...]` in a loop that should use `+=`."""
    begun = {
        name
        for name, values in function.assigned.items()
        if re.search(r"total|sum|count", name)
        and any(function.constant(one) == 0 or isinstance(one, ast.Constant) for one in values)
    }
    for loop in function.every(ast.For):
        if any(isinstance(one, ast.Break | ast.Return) for one in ast.walk(loop)):
            continue
        for node in (one for one in ast.walk(loop) if isinstance(one, ast.Assign)):
            name = ast.unparse(node.targets[0])
            own = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
            targets = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
            if name in begun and name not in own and own & targets and function.constant(node.value) is UNKNOWN:
                used = any(isinstance(one, ast.AugAssign) and ast.unparse(one.target) == name for one in function.nodes)
                if not used:
                    yield Slip(
                        node,
                        f"replaces `{name}` in each iteration of the loop: only the last row counts",
                        "Write `+=`.",
                    )


PATTERNS_OF_TASKS = (names_of_days, numbers_of_days, sum_of_the_last)
PATTERNS = (
    other_field,
    bound_of_argument,
    begin_alone,
    other_kind,
    names_of_days,
    numbers_of_days,
    percent_as_share,
    sum_of_the_last,
)
