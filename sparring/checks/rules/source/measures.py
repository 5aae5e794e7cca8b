"""Patterns that compare code with what its descriptions promise about pages, calendars, units and list indices."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from sparring.checks.evidence.legal_calls import leaves
from sparring.checks.rules.source.code import Code, Function, Slip
from sparring.checks.rules.source.computing import key_read
from sparring.checks.rules.source.logic import short
from sparring.checks.rules.source.texts import find_limits, get_described
from sparring.types import Json

_DRAWS = frozenset(
    {"random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "gauss", "permutation"}
)


def pages(function: Function, code: Code) -> Iterator[Slip]:
    """Find pages that overlap, leave out rows, start at a different number than the description states, or are too
    few."""
    page = next((one for one in function.parameters if re.search(r"page", one)), None)
    if page is None:
        page = next(
            (
                one
                for one in function.parameters
                if re.search(r"page", function.node.name)
                and function.parameters[one].startswith(("int", "Annotated[int"))
            ),
            None,
        )
    covered = ("environment.pages", "environment.ends")
    if page is None:
        return
    for node in function.every(ast.BinOp):
        size = function.constant(node.right)
        if (
            isinstance(node.op, ast.FloorDiv)
            and re.fullmatch(r"len\(.+\)", ast.unparse(node.left))
            and isinstance(size, int)
            and size > 1
        ):
            parent = function.parent(node)
            is_more = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add)
            if not is_more:
                yield Slip(
                    node,
                    f"rounds down the number of pages in `{short(node)}`: a last page that is not full is not counted",
                    f"Round up: `-(-{short(node.left)} // {short(node.right)})`.",
                    covered_by=covered,
                )
    based = _base(function, page)
    for node in function.every(ast.Slice):
        lower = function.origin(node.lower) if node.lower is not None else None
        upper = function.origin(node.upper) if node.upper is not None else None
        if not (isinstance(lower, ast.BinOp) and isinstance(lower.op, ast.Mult)):
            continue
        step = next((one for one in map(function.constant, (lower.right, lower.left)) if isinstance(one, int)), None)
        is_sum = (
            isinstance(upper, ast.BinOp)
            and isinstance(upper.op, ast.Add)
            and ast.unparse(upper.left) in (ast.unparse(node.lower or upper), ast.unparse(lower))
        )
        size = function.constant(upper.right) if is_sum and isinstance(upper, ast.BinOp) else None
        if isinstance(step, int) and isinstance(size, int) and step != size:
            what = "rows between two pages are on no page" if step > size else "rows are on two pages"
            yield Slip(
                node,
                f"begins each page {step} rows after the previous page, but shows {size} rows: {what}",
                "Use one size for both.",
                covered_by=covered,
            )
        factor = lower.left if ast.unparse(lower.right) != page else lower.right
        text = ast.unparse(factor).strip("()")
        if (
            based == 1
            and text == page
            and page not in function.assigned
            and not any(isinstance(one, ast.AugAssign) for one in function.nodes)
        ):
            yield Slip(
                node,
                f"begins page 1 after the first {step} rows: `{page}` counts from 1, but 1 is not subtracted",
                f"Begin at `({page} - 1) * ...`.",
                covered_by=covered,
            )
        if based == 0 and text == f"{page} - 1":
            yield Slip(
                node,
                f"begins page 0 before the first row: `{page}` counts from 0, but 1 is subtracted",
                f"Begin at `{page} * ...`.",
                covered_by=covered,
            )


def _base(function: Function, name: str) -> int | None:
    """Return the lowest value of a parameter, according to its description, its bound, or its default."""
    text = get_described(function, name) or function.documented
    found = re.search(
        r"(?i)\b(?:from|starts? (?:at|with)|begins? (?:at|with)|first (?:page |one )?is|counted "
        r"from|numbered from)\s+(0|1|zero|one)\b",
        text,
    )
    if found:
        return {"0": 0, "zero": 0}.get(found[1].lower(), 1)
    low = find_limits(function, name)[0]
    if low in (0, 1):
        return int(low)
    return None


def calendar(function: Function, code: Code) -> Iterator[Slip]:
    """Find months of 30 days, years of 365 days, the same UTC offset for summer and winter, and the use of the
    machine's own time zone."""
    about = f"{function.documented} {function.node.name} {' '.join(function.parameters)}"
    uses_days = any(one.attr == "days" for one in function.every(ast.Attribute))
    for node in function.every(ast.Attribute):
        between = function.origin(node.value)
        if (
            node.attr == "seconds"
            and isinstance(between, ast.BinOp)
            and isinstance(between.op, ast.Sub)
            and not uses_days
        ):
            yield Slip(
                node,
                f"uses the seconds of `{short(between)}` without its days: durations that are negative or longer than "
                f"a day are wrong",
                "Use `.total_seconds()`.",
                covered_by=("environment.agreement",),
            )
    for call in function.every(ast.Call):
        name = ast.unparse(call.func)
        days = next((one.value for one in call.keywords if one.arg == "days"), call.args[0] if call.args else None)
        if name.split(".")[-1] == "timedelta" and days is not None:
            factors = [function.constant(one) for one in ast.walk(days) if isinstance(one, ast.Constant | ast.Name)]
            for length, word in ((30, "month"), (365, "year")):
                if (
                    length in factors
                    and re.search(rf"(?i){word}", about)
                    and not re.search(rf"\b{length}\b", function.documented)
                ):
                    yield Slip(
                        call,
                        f"uses {length} days as a {word} in `{short(call)}`",
                        f"Count calendar {word}s.",
                        covered_by=("environment.agreement",),
                    )
        hours = next((one.value for one in call.keywords if one.arg == "hours"), None)
        read = {one.id for one in function.every(ast.Name) if isinstance(one.ctx, ast.Load)}
        is_used = not any(
            call is value and name_ not in read for name_, values in function.assigned.items() for value in values
        )
        if (
            name.split(".")[-1] == "timedelta"
            and isinstance(hours, ast.Subscript)
            and is_used
            and function.mentions(r"\blocal\b")
        ) and re.search(r"(?i)utc|offset|zone|gmt", ast.unparse(hours.value)):
            yield Slip(
                call,
                f"uses one offset from UTC for the whole year, in `{short(call)}`: daylight saving time is ignored",
                "Use zoneinfo.ZoneInfo.",
                covered_by=("environment.agreement",),
            )
        is_local = name in ("time.localtime", "localtime", "time.ctime", "time.mktime") or (
            name.endswith("fromtimestamp") and len(call.args) == 1 and not call.keywords
        )
        if is_local and function.part == "environment":
            yield Slip(
                call,
                f"reads `{short(call)}` in the time zone of the machine",
                "Name the zone: `time.gmtime`, or `fromtimestamp(x, tz=...)`.",
                covered_by=("environment.same_elsewhere", "environment.clock"),
            )


def drawn_or_dated(function: Function, code: Code) -> Iterator[Slip]:
    """Find random numbers without a seed, and uses of the current date."""
    if re.search(r"\brandom\.seed\(", function.module.text):
        return
    for call in function.every(ast.Call):
        base = call.func.value if isinstance(call.func, ast.Attribute) else None
        module = getattr(function.constant(base), "__name__", "") if base is not None else ""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        is_drawn = module == "random" and (name in _DRAWS or (name == "Random" and not call.args))
        is_drawn = is_drawn or (
            module == "numpy.random" and (name in _DRAWS or (name == "default_rng" and not call.args))
        )
        if is_drawn:
            yield Slip(
                call,
                f"draws with `{short(call)}` without a seed: the number differs between processes and episodes",
                "Draw from `random.Random(...)` with the task's id or seed.",
                covered_by=("environment.randomness", "environment.same_elsewhere", "environment.same_twice"),
            )
        if module in ("date", "datetime") and name in ("today", "now", "utcnow"):
            yield Slip(
                call,
                f"reads the current date with `{short(call)}`: the same task is different tomorrow",
                "Read the day from the task.",
                covered_by=("environment.clock",),
            )


def units_differ(function: Function, code: Code) -> Iterator[Slip]:
    """Find a field that one tool divides by 1000 and another tool returns unchanged under the same name."""
    if not function.is_tool:
        return
    for name, key, scale, node in _measures(function):
        for other in code.of_class(function):
            for its_name, its_key, its_scale, _ in _measures(other) if other.is_tool and other is not function else ():
                if (name, key) == (its_name, its_key) and scale == 1 and its_scale != 1:
                    yield Slip(
                        node,
                        f"returns `{key}` unchanged as {name!r}, but {other.node.name} returns it divided by "
                        f"{1 / its_scale:g}",
                        "Return the same unit under the same name.",
                        covered_by=("environment.agreement",),
                    )


_UNITS: tuple[Mapping[str, str], ...] = tuple(
    {word: name for name, words in kinds.items() for word in words.split()}
    for kinds in (
        {
            "kg": "kg kilo kilos kilogram kilograms",
            "g": "g gram grams",
            "lb": "lb lbs pound pounds",
            "mg": "mg milligram milligrams",
        },
        {
            "km": "km kilometre kilometres kilometer kilometers",
            "mi": "mile miles mi",
            "cm": "cm centimetre centimetres centimeters",
        }
        | {"m": "metre metres meter meters", "mm": "mm millimetre millimetres millimeters", "ft": "ft feet foot"},
        {"cents": "cent cents pence", "euros": "euro euros eur dollar dollars usd pounds"},
        {
            "s": "second seconds sec secs",
            "min": "minute minutes mins",
            "h": "hour hours hrs",
            "d": "day days",
            "ms": "ms milliseconds",
        },
        {"C": "celsius centigrade", "F": "fahrenheit", "K": "kelvin"},
        {"l": "litre litres liter liters", "ml": "ml millilitre millilitres milliliters"},
    )
)


def unit_of(text: str) -> tuple[int, str] | None:
    """Return the one unit that a text mentions, with its dimension, or None if it mentions none or several."""
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower().replace("_", " "))
    found = {(at, table[one]) for at, table in enumerate(_UNITS) for one in words if one in table}
    return found.pop() if len(found) == 1 else None


def unit_of_another_name(function: Function, code: Code) -> Iterator[Slip]:
    """Find a tool that promises kilograms and returns the field `grams` unchanged."""
    promised = unit_of((ast.get_docstring(function.node) or "").partition("Args:")[0])
    for node in function.every(ast.Return, ast.Dict) if function.is_tool else ():
        for unit, value in [(promised, node.value)] if isinstance(node, ast.Return) else _pair_units(node):
            while (
                isinstance(value, ast.Call)
                and ast.unparse(value.func) in ("float", "int", "round", "str")
                and value.args
            ):
                value = value.args[0]
            read = None if value is None else function.origin(value)
            key = key_read(function, read) if read is not None else None
            own = unit_of(key) if key is not None else None
            if unit is not None and own is not None and unit[0] == own[0] and unit != own:
                yield Slip(
                    value or node,
                    f"returns `{key}` unchanged, but its unit is {own[1]} and not {unit[1]}, which the description or "
                    f"the name promises",
                    f"Convert it to {unit[1]}.",
                    {"field": key, "values": list(code.values.get(key or "", ()))[:4]},
                    covered_by=("environment.agreement", "data.labels"),
                )


def _pair_units(table: ast.Dict) -> Iterator[tuple[tuple[int, str] | None, ast.expr]]:
    """Yield the unit in the name of each key, or None, with the value."""
    for key, value in zip(table.keys, table.values, strict=True):
        yield unit_of(key.value) if isinstance(key, ast.Constant) and isinstance(key.value, str) else None, value


def undocumented_unit(function: Function, code: Code) -> Iterator[Slip]:
    """Find a conversion by a factor of 1000 of a number for which the tools and the prompt name only one unit."""
    texts = [*code.prompts, *(one.documented for one in code.functions if one.part == "environment")]
    words = {word for text in texts for word in re.findall(r"[a-z]+", text.lower())} | set(
        re.findall(r"[a-z]+", " ".join(code.values).lower())
    )
    named = {
        (at, table[one])
        for at, table in enumerate(_UNITS[:2] + _UNITS[5:])
        for one in words
        if len(one) > 2 and one in table
    }
    for node in function.every(ast.BinOp) if len(named) == 1 else ():
        is_scaled = isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mult) and function.constant(node.right) in (
            1000,
            0.001,
        )
        if (
            is_scaled
            and isinstance(function.parent(node), ast.Return)
            and not re.search(r"\bcubic|tonne|\bton|thousand|per mille", " ".join(words))
        ):
            yield Slip(
                node,
                f"converts to another unit in `{short(node)}`, but prompt and tools only name {named.copy().pop()[1]}",
                "Leave the number in the unit that the prompt requests.",
                covered_by=("data.labels",),
            )


def _measures(function: Function) -> Iterator[tuple[str, str, float, ast.AST]]:
    for table in function.every(ast.Dict):
        for name, value in zip(table.keys, table.values, strict=True):
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                continue
            scale, read = 1.0, value
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div | ast.Mult):
                factor = function.constant(value.right)
                if isinstance(factor, int | float) and factor:
                    scale, read = (1 / factor if isinstance(value.op, ast.Div) else float(factor)), value.left
            key = key_read(function, read)
            if key is not None:
                yield name.value, key, scale, value


def place_from_one(function: Function, code: Code) -> Iterator[Slip]:
    """Find a number that counts from 1 and is used as a list index."""
    for node in function.every(ast.Subscript):
        name = ast.unparse(node.slice)
        if not re.search(r"\bint\b", function.parameters.get(name, "")) or name in function.assigned:
            continue
        text = ast.unparse(function.node)
        is_guarded = (
            re.search(rf"\b{name} < 1\b|\b{name} (?:<=|not in|==) 0\b|\b1 <= {name}\b|in range\(1,", text) is not None
        )
        is_from_one = (_base(function, name) == 1 or is_guarded) and function.is_tool
        known = function.constant(function.origin(node.value))
        is_padded = isinstance(known, list | tuple) and bool(known) and known[0] in (None, "", 0)
        is_list = (isinstance(known, list | tuple) and not is_padded) or _is_list_of_task(function, code, node.value)
        if is_list and is_from_one and f"{name} - 1" not in text:
            yield Slip(
                node,
                f"uses `{name}`, which counts from 1, as an index of `{short(node.value)}`, which counts from 0",
                f"Write `{name} - 1`.",
                covered_by=("environment.agreement",),
            )


def _is_list_of_task(function: Function, code: Code, node: ast.AST) -> bool:
    """Return True if an expression is a list that occurs in a field or a table of the tasks."""
    own = [one for key in _fields_of(function, code, ast.unparse(node)) for one in code.fields.get(key, ())]
    key = key_read(function, function.origin(node))
    inner = [list(_at_key(field, key)) for field in code.fields.values()] if key is not None and not own else []
    return any(values and all(isinstance(one, list) for one in values) for values in (own, *inner))


def _at_key(value: Json, key: str) -> Iterator[Json]:
    """Yield the values that a key has anywhere in a value of the tasks."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name == key:
                yield one
            yield from _at_key(one, key)
    elif isinstance(value, list | tuple):
        for one in value:
            if isinstance(one, Mapping | list | tuple):
                yield from _at_key(one, key)


def _fields_of(function: Function, code: Code, place: str) -> Iterator[str]:
    for each in code.of_class(function):
        for one in each.every(ast.Assign, ast.AnnAssign):
            if (
                any(
                    ast.unparse(target) == place
                    for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
                )
                and one.value is not None
            ):
                yield from re.findall(r"\.fields\[['\"](\w+)['\"]\]", ast.unparse(one.value))


def float_in_state(function: Function, code: Code) -> Iterator[Slip]:
    """Find a sum of floats that is compared exactly."""
    if not function.is_tool:
        return
    states = _list_returned_states(function, code)
    for node in function.every(ast.AugAssign):
        place = ast.unparse(node.target)
        is_float = isinstance(node.value, ast.Name) and function.parameters.get(node.value.id) == "float"
        name = place.removeprefix("self.")
        wanted = {
            "values": [
                one
                for field in code.fields.values()
                for key, one in leaves(field)
                if key == name and isinstance(one, float)
            ][:4]
        }
        if (
            is_float
            and any(re.search(rf"(?<!round\(){re.escape(place)}\s*[,}}]", one) for one in states)
            and wanted["values"]
        ):
            yield Slip(
                node,
                f"sums floats in `{place}`, which `final_state` returns unchanged: 0.1 + 0.2 is not 0.3, so right "
                f"episodes differ from the reference",
                "Count in cents, or round it in `final_state`.",
                dict(wanted),
                covered_by=("environment.amounts", "data.unreachable"),
            )


def _list_returned_states(function: Function, code: Code) -> list[str]:
    """Return the expressions that `final_state` returns."""
    return [
        ast.unparse(one)
        for each in code.of_class(function)
        if each.node.name == "final_state"
        for one in each.every(ast.Return)
    ]


PATTERNS = (
    pages,
    calendar,
    drawn_or_dated,
    units_differ,
    unit_of_another_name,
    place_from_one,
    float_in_state,
)
PATTERNS_OF_TASKS = (calendar, drawn_or_dated, undocumented_unit)
