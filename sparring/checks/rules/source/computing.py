"""Compute expressions of the user's code on the tasks' values, if they read one field of the tasks and nothing else."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import ModuleType
from typing import Any

from sparring.checks.rules.source.code import UNKNOWN, Code, Function
from sparring.types import Json

_PURE: tuple[Any, ...] = (
    int,
    float,
    str,
    len,
    abs,
    round,
    min,
    max,
    sum,
    sorted,
    bool,
    list,
    set,
    tuple,
    Decimal,
    date,
    datetime,
    time,
    timedelta,
)
_MODULES = frozenset({"re", "datetime", "math", "decimal", "string", "json", "unicodedata", "fractions"})
_METHODS = frozenset(
    [
        "strip",
        "lstrip",
        "rstrip",
        "lower",
        "upper",
        "title",
        "casefold",
        "split",
        "rsplit",
        "splitlines",
        "replace",
        "removeprefix",
        "removesuffix",
        "startswith",
        "endswith",
        "partition",
        "rpartition",
        "isdigit",
        "isalpha",
        "zfill",
        "fromisoformat",
        "strptime",
        "isoformat",
        "date",
        "quantize",
        "group",
        "groups",
        "encode",
        "decode",
        "join",
        "find",
        "index",
        "count",
        "get",
    ]
)
MOST = 300

_NOT_PLAIN = (
    ast.Lambda,
    ast.Await,
    ast.Yield,
    ast.NamedExpr,
    ast.ListComp,
    ast.GeneratorExp,
    ast.SetComp,
    ast.DictComp,
)
"""Expressions with names of their own, or with other effects than a value."""


def computed(function: Function, code: Code, expression: ast.expr) -> Iterator[tuple[str, list[tuple[Json, Any]]]]:
    """Yield the field that the expression reads, with a pair (value, result or exception) for each of its values. Yield
    nothing if the expression reads more than one field."""
    whole = _filled_in(function, expression)
    keys = {key for one in ast.walk(whole) if (key := key_read(function, one)) is not None and code.values.get(key)}
    if len(keys) != 1:
        return
    key = keys.pop()
    tree: Any = _Replaced(function, key).visit(copy.deepcopy(whole))
    names = _collect_names(function, tree)
    if names is None:
        return
    compiled = compile(ast.fix_missing_locations(ast.Expression(tree)), "<source>", "eval")
    pairs: list[tuple[Json, Any]] = []
    for value in list(dict.fromkeys(one for one in code.values[key] if isinstance(one, str | int | float)))[:MOST]:
        try:
            pairs.append((value, eval(compiled, {**names, "_value": value})))
        except Exception as error:  # noqa: BLE001 - it is the result
            pairs.append((value, error))
    if pairs:
        yield key, pairs


def _collect_names(function: Function, tree: ast.AST) -> dict[str, Any] | None:
    """Return the values of the names in an expression, or None if the expression may do more than compute a value."""
    names: dict[str, Any] = {}
    for one in ast.walk(tree):
        if isinstance(one, _NOT_PLAIN) or (isinstance(one, ast.Call) and not _is_pure(function, one.func)):
            return None
        if isinstance(one, ast.Name) and one.id != "_value":
            value = function.constant(one)
            names[one.id] = getattr(builtins, one.id, UNKNOWN) if value is UNKNOWN else value
            if names[one.id] is UNKNOWN or (one.id in function.bound and value is UNKNOWN):
                return None
    return names


def key_read(function: Function, node: ast.AST) -> str | None:
    """Return `price` for `row["price"]`, `row.get("price")` and `row.price`."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ):
        return node.slice.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        value = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        return value if isinstance(value, str) else None
    is_plain = (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node.value) not in ("self", "cls")
    )
    return node.attr if is_plain and not isinstance(function.parent(node), ast.Call) else None  # type: ignore[union-attr]


def _filled_in(function: Function, expression: ast.expr) -> ast.expr:
    """Return the expression with local names replaced by the expressions that are assigned to them."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            found = function.origin(node)
            return node if found is node else copy.deepcopy(found)

    return Fill().visit(copy.deepcopy(expression))


class _Replaced(ast.NodeTransformer):
    """A transformer that renames the field read by an expression to `_value`."""

    def __init__(self, function: Function, key: str) -> None:
        self._function, self._key = function, key

    def visit(self, node: ast.AST) -> ast.AST:
        if key_read(self._function, node) == self._key:
            return ast.Name(id="_value", ctx=ast.Load())
        return self.generic_visit(node)


def _is_pure(function: Function, called: ast.AST) -> bool:
    value = (
        function.constant(called)
        if not isinstance(called, ast.Name)
        else getattr(builtins, called.id, function.constant(called))
    )
    if value is not UNKNOWN and any(value is one for one in _PURE):
        return True
    if isinstance(called, ast.Attribute):
        base = function.constant(called.value)
        if isinstance(base, ModuleType):
            return base.__name__ in _MODULES
        return called.attr in _METHODS
    return isinstance(called, ast.Name) and getattr(value, "__module__", None) in _MODULES
