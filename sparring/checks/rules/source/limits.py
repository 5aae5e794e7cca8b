"""Patterns that compare limits in code and in tables with the limits that descriptions and the prompt name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sparring.checks.rules.source.code import UNKNOWN, Code, Function, Slip
from sparring.checks.rules.source.logic import short

_BELOW = r"(?:more than|over|above|exceed(?:s|ing)?|greater than|higher than|larger than|at most|up to|"
_BELOW += r"no more than|not more than|maximum of|max\.? of)"


_FROM = r"(?:at least|less than|below|under|fewer than|no less than|minimum of|smaller than|lower than)"


def limit_on_the_other_side(function: Function, code: Code) -> Iterator[Slip]:
    """Find `>= 500` if a description or the prompt states "more than 500"."""
    nodes = {limit: node for node in function.every(ast.Compare, ast.Call) for limit, _ in _sides(function, node)}
    if not nodes:
        return
    texts = [*code.prompts, function.documented]
    sides = _find_stated_sides(texts)
    own = _limits(code, function.part)
    for limit, node in nodes.items():
        if limit >= 3 and len(sides.get(limit, ())) == 1 and own[limit] and not own[limit] & sides[limit]:
            phrase = next(
                one
                for text in texts
                for one in re.findall(
                    rf"(?i)[^.\n]{{0,60}}(?<![\d.,]){limit:,.10g}(?!\d)[^.\n]{{0,30}}|[^.\n]{{0,60}}(?<![\d.,]){limit:.10g}(?!\d)[^.\n]{{0,30}}",
                    text,
                )
            )
            yield Slip(
                node,
                f"puts exactly {limit:g} on the wrong side of the limit: `{short(node)}`, but the description or the "
                f'prompt has "{phrase.strip()}"',
                "Write the comparison as it is described.",
                {"text": phrase.strip()},
                covered_by=("environment.limits", "environment.described", "data.labels"),
            )


def _find_stated_sides(texts: Sequence[str]) -> dict[float, set[str]]:
    """Return the limits that texts name, and the side to which each limit belongs."""
    sides: dict[float, set[str]] = {}
    for text in texts:
        for words, side in ((_BELOW, "below"), (_FROM, "above")):
            for found in re.findall(
                rf"(?i)\b{words}(?:\s+and\s+including)?\s+[$€£]?\s?(\d[\d,]*(?:\.\d+)?)(?![\d.:/-]*\d)", text
            ):
                sides.setdefault(float(found.replace(",", "")), set()).add(side)
        for found, word in re.findall(
            r"(?i)(?<![\w.,])(\d[\d,]*(?:\.\d+)?)\s*(?:\w+\s+)?(?:or|and)\s+(more|over|above|higher|less|fewer|below|under|lower)\b",
            text,
        ):
            sides.setdefault(float(found.replace(",", "")), set()).add(
                "above" if word.lower() in ("more", "over", "above", "higher") else "below"
            )
    return sides


def other_number(function: Function, code: Code) -> Iterator[Slip]:
    """Find `> 1000` if the prompt states "over 2000", and neither the prompt nor a description contains 1000."""
    text = " ".join([*code.prompts, *(one.documented for one in code.functions)])
    stated = {float(one.replace(",", "")) for one in re.findall(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w-])", text)}
    phrases = re.findall(
        rf"(?i)\b(?:{_BELOW}|{_FROM})\s+[$€£]?\s?(\d[\d,]*(?:\.\d+)?)\s?(?!\d)([a-z]*)", " ".join(code.prompts)
    )
    used = {
        float(one.value)
        for each in code.functions
        for one in each.every(ast.Constant)
        if type(one.value) in (int, float)
    }
    used |= {limit for each in code.functions for node in each.every(ast.Compare) for limit, _ in _sides(each, node)}
    unused = {(float(one.rstrip(",").replace(",", "")), unit) for one, unit in phrases} - {
        (one, unit) for one in used for _, unit in phrases
    }
    for node in function.every(ast.Compare) if len(unused) == 1 else ():
        own = [limit for limit, _ in _sides(function, node) if limit >= 10 and limit not in stated]
        ((number, unit),) = unused
        if own and number >= 10 and not _is_drawn(function, node) and 0.1 <= own[0] / number <= 10:
            yield Slip(
                node,
                f"compares with {own[0]:g} in `{short(node)}`, but the prompt has {number:g} {unit}".rstrip(),
                "Write the number of the prompt, or correct the prompt.",
                covered_by=("data.labels", "environment.limits"),
            )
            return


def _is_drawn(function: Function, node: ast.AST) -> bool:
    return re.search(r"\b(?:rng|random|len|seed|time|count)\b", ast.unparse(node)) is not None


def _limits(code: Code, part: str) -> dict[float, set[str]]:
    """Return the constants that values are compared with, and the side to which each constant belongs."""
    if f"limits {part}" not in code.shared:
        own: dict[float, set[str]] = {}
        for each in code.functions:
            for node in each.every(ast.Compare, ast.Call) if each.part == part else ():
                for limit, side in _sides(each, node):
                    own.setdefault(limit, set()).add(side)
        code.shared[f"limits {part}"] = own
    return code.shared[f"limits {part}"]


def _sides(function: Function, node: ast.Compare | ast.Call) -> Iterator[tuple[float, str]]:
    """Yield the limits that a value is compared with, and the side to which each limit belongs. The limits come from
    constants or from a table."""
    if isinstance(node, ast.Call):
        limits = function.constant(node.args[0]) if len(node.args) == 2 else UNKNOWN
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ("bisect", "bisect_left", "bisect_right") and isinstance(limits, list | tuple):
            yield from ((float(one), "below" if name == "bisect_left" else "above") for one in _numbers(limits))
        return
    if len(node.ops) != 1 or type(node.ops[0]) not in (ast.Lt, ast.LtE, ast.Gt, ast.GtE):
        return
    left, right, operator = node.left, node.comparators[0], type(node.ops[0])
    if _limits_at(function, left) and not _limits_at(function, right):
        left, right = right, left
        operator = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}[operator]
    is_value = isinstance(left, ast.Name | ast.Subscript) or (
        isinstance(left, ast.Attribute) and ast.unparse(left.value) != "self"
    )
    is_length = isinstance(left, ast.Name) and any(
        isinstance(one, ast.Call) and ast.unparse(one.func) == "len" for one in ast.walk(function.origin(left))
    )
    for limit in _limits_at(function, right) if is_value and not is_length else ():
        yield limit, "below" if operator in (ast.Gt, ast.LtE) else "above"


def _limits_at(function: Function, node: ast.AST) -> list[float]:
    """Return the constant value of an expression, or the values that it takes in a loop over a constant table."""
    value = function.constant(node)
    if value is not UNKNOWN or not isinstance(node, ast.Name):
        return _numbers([value])
    for loop in function.every(ast.For, ast.comprehension):
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        column = next((at for at, one in enumerate(targets) if ast.unparse(one) == node.id), None)
        if column is not None:
            rows = _rows_of(function, loop.iter)
            cells = [
                one[column] if isinstance(loop.target, ast.Tuple) else one for one in rows if _fits(one, loop.target)
            ]
            return _numbers(cells)
    return []


def _rows_of(function: Function, node: ast.AST) -> list[Any]:
    """Return the members of a constant table over which a loop iterates, also through `sorted` or `.items()`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sorted", "reversed", "list") and node.args:
        node = node.args[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items":
        value = function.constant(node.func.value)
        return list(value.items()) if isinstance(value, dict) else []
    value = function.constant(node)
    return list(value) if isinstance(value, list | tuple | dict) else []


def _fits(row: Any, target: ast.AST) -> bool:
    return not isinstance(target, ast.Tuple) or (isinstance(row, list | tuple) and len(row) == len(target.elts))


def _numbers(values: Sequence[Any]) -> list[float]:
    return [float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)]


PATTERNS = (limit_on_the_other_side, other_number)
