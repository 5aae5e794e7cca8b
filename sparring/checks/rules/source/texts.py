"""Patterns that compare code with what its descriptions and the prompt promise: defaults, rounding, limits, and
complete texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from sparring.checks.rules.source.code import UNKNOWN, Code, Function, Slip
from sparring.checks.rules.source.computing import computed
from sparring.checks.rules.source.logic import short

_WORDS = {
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
    "twenty": 20,
}


_NUMBER = rf"(-?\d+(?:[.,]\d+)*|{'|'.join(_WORDS)})"


_LEFT_OUT = r"(?:when|if|where|unless)\s+(?:it\s+is\s+|none\s+is\s+|not\s+)?"
_LEFT_OUT += r"(?:left out|omitted|given|named|set|absent|missing|specified|empty)"


_DEFAULT = re.compile(
    rf"(?i)\bdefault(?:s|\s+value)?(?:\s+is|\s+to|\s+of|\s*[:=])?\s+['\"`]?([\w.-]+)"
    rf"|['\"`]?\b([\w.-]+?)['\"`]?,?\s+(?:by default|{_LEFT_OUT})"
)


def default_differs(function: Function, code: Code) -> Iterator[Slip]:
    """Find a default that differs from the default in the description."""
    for name in function.parameters if function.is_tool else ():
        stated = _DEFAULT.search(get_described(function, name))
        real, node = _real_default(function, name)
        if stated is None or real is UNKNOWN or real is None:
            continue
        word = (stated[1] or stated[2]).strip(".").lower()
        value: Any = _WORDS.get(word, word)
        is_number = (
            isinstance(real, int | float)
            and not isinstance(real, bool)
            and re.fullmatch(r"-?\d+(?:\.\d+)?", str(value)) is not None
        )
        is_choice = isinstance(real, str | bool) and (
            f"'{word}'" in function.parameters[name].lower() or word in ("true", "false", "yes", "no")
        )
        differs = (
            float(value) != real
            if is_number
            else is_choice and word not in (str(real).lower(), "yes" if real is True else "no" if real is False else "")
        )
        if differs:
            yield Slip(
                node,
                f"uses {real!r} if `{name}` is left out, but its description has {word}",
                "Make both the same.",
                {"described": get_described(function, name)[:200]},
                covered_by=("environment.claims", "environment.described", "environment.ends"),
            )


def get_described(function: Function, name: str) -> str:
    """Return the description of a parameter, including its continuation lines."""
    found = re.search(
        rf"^\s*(?:[-*]\s*)?`?{name}`?\s*(?:\([^)]*\))?\s*:\s*(.+(?:\n(?!\s*\w+\s*(?:\([^)]*\))?:).+)*)",
        function.documented,
        re.MULTILINE,
    )
    return " ".join(found[1].split()) if found else ""


def _real_default(function: Function, name: str) -> tuple[Any, ast.AST]:
    """Return the value that a parameter has if a call leaves it out, and the node that defines this value."""
    if name not in function.defaults:
        return UNKNOWN, function.node
    value = function.constant(function.defaults[name])
    for node in function.every(ast.BoolOp, ast.IfExp, ast.If) if value is None else ():
        if (
            isinstance(node, ast.BoolOp)
            and isinstance(node.op, ast.Or)
            and ast.unparse(node.values[0]) == name
            and len(node.values) == 2
        ):
            return function.constant(node.values[1]), node
        test = ast.unparse(node.test) if isinstance(node, ast.If | ast.IfExp) else ""
        if isinstance(node, ast.IfExp) and test in (f"{name} is None", f"not {name}"):
            return function.constant(node.body), node
        if isinstance(node, ast.IfExp) and test in (f"{name} is not None", name):
            return function.constant(node.orelse), node
        sets = node.body[0] if isinstance(node, ast.If) and test in (f"{name} is None", f"not {name}") else None
        if isinstance(sets, ast.Assign) and ast.unparse(sets.targets[0]) == name:
            return function.constant(sets.value), sets
    return value, function.defaults[name]


def cut_off(function: Function, code: Code) -> Iterator[Slip]:
    """Find decimals that are cut off, or rounded differently, although the description promises to round or mentions a
    mean."""
    rounds = function.mentions(
        r"\bround(?:s|ed|ing)?\b(?!\s+(?:down|off to zero))|nearest|to the cent"
    ) and not function.mentions(r"rounded down|cut off|truncat")
    means = function.mentions(r"\b(?:average|mean)\b") and not function.mentions(
        r"\bwhole\b|round|nearest|integer|without decimals|floor"
    )
    for call in function.every(ast.Call):
        inner = call.args[0] if len(call.args) == 1 and not call.keywords else None
        if ast.unparse(call.func) in ("int", "math.floor", "floor", "math.trunc") and isinstance(inner, ast.BinOp):
            scale = function.constant(inner.right) if isinstance(inner.op, ast.Mult) else None
            is_scaled = isinstance(scale, int | float) and scale in (10, 100, 1000, 10000)
            pairs = next((pairs for _, pairs in computed(function, code, inner)), [])
            off = [
                (value, result)
                for value, result in pairs
                if isinstance(result, int | float)
                and abs(result - round(result)) < 1e-6
                and int(result) != round(result)
            ]
            if is_scaled and off:
                yield Slip(
                    call,
                    f"loses a unit in `{short(call)}`: {off[0][0]!r} becomes {int(off[0][1])}, because a float is "
                    f"slightly smaller than the product. This happens for {len(off)} of {len(pairs)} values",
                    "Use `round(...)`, or Decimal from the text.",
                    covered_by=("environment.amounts", "environment.computed"),
                )
            elif (is_scaled or isinstance(inner.op, ast.Div)) and rounds and not _adds_half(inner):
                yield Slip(
                    call,
                    f"cuts off decimals in `{short(call)}` although its description promises to round",
                    "Round: `round(...)`, or quantize a Decimal.",
                    covered_by=("environment.amounts", "environment.computed"),
                )
            elif isinstance(inner.op, ast.Div) and means:
                yield Slip(
                    call,
                    f"cuts off the decimals of a mean, in `{short(call)}`",
                    "Return the mean with its decimals, or state in the description that it is a whole number.",
                )
        if ast.unparse(call.func) == "round" and len(call.args) == 1 and means and _is_mean(function, call.args[0]):
            yield Slip(
                call,
                f"rounds a mean to a whole number in `{short(call)}`, which its description does not state",
                "Keep the decimals.",
                covered_by=("environment.ties",),
            )
    for node in function.every(ast.BinOp):
        if (
            isinstance(node.op, ast.FloorDiv)
            and (means or rounds)
            and ast.unparse(node.left).startswith("sum(")
            and "len(" in ast.unparse(node.right)
        ):
            yield Slip(
                node,
                f"cuts off the decimals of a mean, in `{short(node)}`",
                "Divide with `/`, and round if the description promises it.",
                covered_by=("environment.amounts", "environment.computed"),
            )
    for node in function.every(ast.FormattedValue):
        form = ast.unparse(node.format_spec) if node.format_spec is not None else ""
        if re.search(r"\.0f|^f?['\"]d", form) and means and _is_mean(function, node.value):
            yield Slip(
                node,
                f"writes the mean `{short(node.value)}` without decimals, which its description does not state: "
                f"different means look equal",
                "Write enough decimals.",
                covered_by=("environment.ties",),
            )


_HALF_UP = r"\b(?:half|halves)[- ]?(?:an? \w+ )?(?:is |are |goes |go )?(?:always )?(?:rounded )?up(?:wards?)?\b"
_HALF_UP += r"|away from zero|commercial"
_HALF_EVEN = r"\b(?:half|halves)[- ](?:\w+ )?(?:is |are |goes |go )?(?:rounded )?(?:to )?(?:the )?(?:nearest )?even\b"
_HALF_EVEN += r"|\bbanker'?s'? rounding"


def rounded_otherwise(function: Function, code: Code) -> Iterator[Slip]:
    """Find halves that are rounded to even although a description promises to round halves up, or vice versa. For code
    that creates the tasks, the prompt serves as the description."""
    texts = [("its description", function.documented)]
    if function.part == "tasks" and not function.tools:
        texts += [("the prompt", " ".join(one.split())) for one in code.prompts]
    for where, text in texts:
        promises_up, promises_even = (re.search(one, text, re.IGNORECASE) for one in (_HALF_UP, _HALF_EVEN))
        if bool(promises_up) != bool(promises_even):
            for call in function.every(ast.Call):
                does = _halves(function, call, may_tidy=where == "the prompt")
                promised = "up" if promises_up else "to even"
                if does not in (None, promised):
                    yield Slip(
                        call,
                        f"rounds half {does} with `{short(call)}`, but {where} promises half {promised}",
                        f"Quantize a Decimal with {'ROUND_HALF_UP' if promises_up else 'ROUND_HALF_EVEN'}.",
                        {"promised": (promises_up or promises_even)[0]},  # type: ignore[index]
                        covered_by=("environment.amounts", "environment.computed"),
                    )
            return


def _halves(function: Function, call: ast.Call, *, may_tidy: bool) -> str | None:
    """Return the direction in which a call rounds halves, or None if the call does not round. If `may_tidy` is True, a
    `round` of a random number, a plain name, a sum or a unit conversion does not count, because it creates no
    halves."""
    name, text = ast.unparse(call.func), ast.unparse(call)
    if "ROUND_HALF_UP" in text and name.endswith("quantize"):
        return "up"
    is_plain = len(call.args) == 1 and not call.keywords and "getcontext" not in function.module.text
    if name.endswith(".quantize") and (is_plain or "ROUND_HALF_EVEN" in text):
        return "to even"
    inner = function.origin(call.args[0]) if call.args else None
    if name in ("int", "math.floor", "floor") and isinstance(inner, ast.BinOp) and _adds_half(inner):
        return "up"
    if name != "round" or inner is None or not may_tidy:
        return "to even" if name == "round" else None
    is_drawn = re.search(r"\b(?:rng|random|uniform|gauss|randint|choice)\b", ast.unparse(inner))
    if not isinstance(inner, ast.BinOp) or is_drawn or not isinstance(inner.op, ast.Mult | ast.Div):
        return None
    is_scaled = isinstance(inner.op, ast.Mult) and any(
        function.constant(one) in (10, 100, 1000) for one in (inner.left, inner.right)
    )
    return None if is_scaled else "to even"


def _adds_half(node: ast.BinOp) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in (0.5, "0.5") for one in ast.walk(node))


def _is_mean(function: Function, node: ast.AST) -> bool:
    text = ast.unparse(function.origin(node))
    return re.search(r"\bsum\(.*/\s*len\(|\bmean\(", text) is not None


def find_limits(function: Function, name: str) -> tuple[float | None, float | None]:
    """Return the lowest and the highest value of a parameter, according to its annotation or its description."""
    given = next((one for one in (*function.node.args.args, *function.node.args.kwonlyargs) if one.arg == name), None)
    for call in ast.walk(given.annotation) if given is not None and given.annotation is not None else ():
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in ("Bounded", "Field", "Interval"):
            limits = {one.arg: function.constant(one.value) for one in call.keywords}
            low, high = limits.get("ge"), limits.get("le")
            return (low if isinstance(low, int | float) else None), (high if isinstance(high, int | float) else None)
    found = re.search(r"(?<![\w.-])(\d+)\s+(?:to|through|up to)\s+(\d+)(?![\w.%-])", get_described(function, name))
    return (float(found[1]), float(found[2])) if found else (None, None)


def limit_refused(function: Function, code: Code) -> Iterator[Slip]:
    """Find code that refuses the first or last allowed value of a parameter."""
    for name in function.parameters if function.is_tool else ():
        low, high = find_limits(function, name)
        if low is None and high is None:
            continue
        for node in function.every(ast.Compare):
            parts = [node.left, *node.comparators]
            for one, operator, other in zip(parts, node.ops, parts[1:], strict=False):
                is_range = (
                    isinstance(operator, ast.In | ast.NotIn)
                    and isinstance(other, ast.Call)
                    and ast.unparse(other.func) == "range"
                )
                if is_range and ast.unparse(one) == name and isinstance(other, ast.Call) and len(other.args) in (1, 2):
                    missed = _find_missed(function, other, low, high)
                    if missed is not None:
                        yield _refusal(node, name, missed)
                        continue
                value = function.constant(other) if ast.unparse(one) == name else None
                refuses = isinstance(holder := function.parent(node), ast.If) and isinstance(holder.body[0], ast.Raise)
                is_last = value == high and isinstance(operator, ast.GtE)
                is_first = value == low and isinstance(operator, ast.LtE)
                if refuses and isinstance(value, int | float) and (is_last or is_first):
                    yield _refusal(node, name, value)


def _find_missed(function: Function, numbers: ast.Call, low: float | None, high: float | None) -> float | None:
    """Return the limit that a `range` does not contain, although it is one step away, or None."""
    first = function.constant(numbers.args[0]) if len(numbers.args) == 2 else 0
    if function.constant(numbers.args[-1]) == high:
        return high
    return low if low is not None and isinstance(first, int) and first == low + 1 else None


def _refusal(node: ast.AST, name: str, value: float) -> Slip:
    return Slip(
        node,
        f"refuses `{name}` = {value:g} in `{short(node)}`, which its schema or description allows",
        "Include the limit.",
        cause=f"{name} {value}",
        covered_by=("environment.limits", "environment.ends", "data.unreachable"),
    )


def other_count(function: Function, code: Code) -> Iterator[Slip]:
    """Find a number of items that differs between the code and the description, such as the first five instead of the
    first ten."""
    if not function.is_tool:
        return
    found = re.findall(
        rf"(?i)\b(?:first|last|top|at most|up to|no more "
        rf"than|the)\s+{_NUMBER}\s+(?!characters|letters|digits|decimals|words)(?:\w+)",
        function.documented.partition("Args:")[0],
    )
    stated = {int(one) for one in (str(_WORDS.get(one.lower(), one)) for one in found) if one.isdigit()}
    cuts = _find_cuts(function)
    if len(stated) == 1 and len(cuts) == 1 and stated != set(cuts) and next(iter(stated)) > 1:
        count, (value, node) = stated.pop(), cuts.popitem()
        yield Slip(
            node,
            f"uses {value} in `{short(node)}`, but its description has {count}",
            "Make both the same.",
            covered_by=("environment.claims", "environment.described", "environment.ends"),
        )


def _find_cuts(function: Function) -> dict[int, ast.AST]:
    """Return the numbers of items that the code takes from the beginning of a list."""
    cuts: dict[int, ast.AST] = {}
    for node in function.every(ast.Subscript, ast.Call):
        value = UNKNOWN
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and node.slice.lower is None
            and node.slice.step is None
        ):
            value = function.constant(node.slice.upper) if node.slice.upper is not None else UNKNOWN
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") in ("head", "fetchmany", "most_common")
            and node.args
        ):
            value = function.constant(node.args[0])
        if isinstance(value, int) and value > 0:
            cuts[value] = node
    return cuts


def cut_text(function: Function, code: Code) -> Iterator[Slip]:
    """Find a string that is truncated before it is stored."""
    for node in function.every(ast.Subscript):
        if (
            isinstance(node.slice, ast.Slice)
            and node.slice.lower is None
            and isinstance(node.value, ast.Name)
            and function.is_tool
        ):
            length = function.constant(node.slice.upper) if node.slice.upper is not None else UNKNOWN
            is_text = function.parameters.get(node.value.id) == "str" and node.value.id not in function.assigned
            parent = function.parent(node)
            is_stated = function.mentions(rf"\b{length}\b|\bcut\b|truncat|shorten|\bfirst\b|at most|up to|character")
            if (
                is_text
                and isinstance(length, int)
                and length >= 8
                and not is_stated
                and not isinstance(parent, ast.Compare)
            ):
                yield Slip(
                    node,
                    f"keeps only the first {length} characters of `{node.value.id}`, which its description does not "
                    f"state",
                    "Keep the whole text, or refuse longer texts.",
                    covered_by=("environment.writes_lost", "data.unreachable"),
                )


def more_than_one_letter(function: Function, code: Code) -> Iterator[Slip]:
    """Find a tool that takes one letter and never checks how many it received."""
    text = ast.unparse(function.node)
    for name in function.parameters if function.is_tool and function.owner is not None else ():
        is_one = re.match(
            r"(?i)(?:a|one|a single|exactly one)\s+(?:letter|character|digit)\b", get_described(function, name)
        )
        asks = re.search(r"\blen\(|fullmatch|\.index\(|\.find\(|ord\(|==|not in |string\.", text)
        spreads = re.search(
            rf"for \w+ in {name}\b|(?:update|issuperset|issubset|set|union)\({name}\)|\+= {name}\b", text
        )
        if is_one and spreads and not asks and "Literal" not in function.parameters[name]:
            yield Slip(
                function.node,
                f"accepts any number of letters in one call for `{name}`, which is described as {is_one[0]!r}",
                f"Refuse other lengths: `if len({name}) != 1:`.",
                covered_by=("environment.described",),
            )


PATTERNS = (
    default_differs,
    cut_off,
    rounded_otherwise,
    limit_refused,
    other_count,
    cut_text,
    more_than_one_letter,
)
PATTERNS_OF_TASKS = (rounded_otherwise,)
