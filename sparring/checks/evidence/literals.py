"""Constants that a tool's own code compares with its arguments. Calls with these values reach the branches of the
code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from sparring.types import Json

LONGEST = 80
"""The maximum length of a string that counts as a value."""


def find_compared(method: Any) -> dict[str, list[Json]]:
    """Return the texts and numbers in a function, grouped by the argument that they are compared with ("" for anything
    else). The result is empty if the source cannot be read."""
    try:
        function = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return {}
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    arguments = {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}
    outside = getattr(inspect.unwrap(method), "__globals__", {})
    found: dict[str, list[Json]] = {}
    for node in ast.walk(function):
        for name, value in _list_compared(node, arguments, outside):
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return found


def _list_compared(node: ast.AST, arguments: set[str], outside: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        named = {one.id for side in sides for one in ast.walk(side) if isinstance(one, ast.Name)} & arguments
        for side in sides:
            for value in _list_constants(side, outside):
                yield (next(iter(named)) if len(named) == 1 else ""), value
    elif isinstance(node, ast.match_case) and isinstance(node.pattern, ast.MatchValue):
        for value in _list_constants(node.pattern.value, outside):
            yield "", value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        for part in node.args if node.func.attr in ("startswith", "endswith") else ():
            for value in _list_constants(part, outside):
                yield node.func.value.id, value


def _list_constants(node: ast.AST, outside: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the constants of an expression: literals, and the values of names and collections in the module."""
    for one in ast.walk(node):
        value = one.value if isinstance(one, ast.Constant) else None
        if isinstance(one, ast.Name):
            value = outside.get(one.id)
        values = list(value)[:20] if isinstance(value, list | tuple | dict | set | frozenset) else [value]
        for each in values:
            is_text = isinstance(each, str) and 0 < len(each) <= LONGEST
            if is_text or (isinstance(each, int | float) and not isinstance(each, bool)):
                yield each
