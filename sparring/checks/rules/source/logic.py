"""Patterns of mistakes in conditions: they are always true, are never reached, or have the same result in both
cases."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator, Sequence
from types import FunctionType

from sparring.checks.rules.source.code import Code, Function, Slip

_TESTS = (ast.If, ast.While, ast.IfExp, ast.Assert)


def same(one: ast.AST, other: ast.AST) -> bool:
    return ast.dump(one) == ast.dump(other)


def always_true(function: Function, code: Code) -> Iterator[Slip]:
    """Find `x == "a" or "b"`, in which a constant is next to a comparison."""
    for node in function.every(ast.BoolOp):
        if not any(isinstance(one, ast.Compare) for one in node.values):
            continue
        for part in node.values[1:]:
            value = function.constant(part)
            is_value = isinstance(value, str | int | float | enum.Enum) and not isinstance(value, bool) and bool(value)
            is_name = isinstance(part, ast.Constant | ast.Attribute) or (
                isinstance(part, ast.Name) and part.id.isupper()
            )
            if is_value and is_name and (isinstance(node.op, ast.Or) or _is_test(function, node)):
                always = "so the condition is always true" if isinstance(node.op, ast.Or) else "so it decides nothing"
                yield Slip(
                    node,
                    f"has a condition in which `{short(part)}` is not compared with anything, {always}",
                    "Write the comparison out, or use `in (...)`.",
                )


def _is_test(function: Function, node: ast.AST) -> bool:
    parent = function.parent(node)
    if isinstance(parent, ast.UnaryOp):
        return _is_test(function, parent)
    return (isinstance(parent, _TESTS) and getattr(parent, "test", None) is node) or (
        isinstance(parent, ast.comprehension) and node in parent.ifs
    )


def text_for_choice(function: Function, code: Code) -> Iterator[Slip]:
    """Find `kind in ("travel")` and `role in "admin"`, which test for letters instead of members."""
    for node in function.every(ast.Compare):
        for operator, right in zip(node.ops, node.comparators, strict=True):
            text = right.value if isinstance(right, ast.Constant) else None
            if (
                not isinstance(operator, ast.In | ast.NotIn)
                or not isinstance(text, str)
                or isinstance(node.left, ast.Constant)
            ):
                continue
            source = ast.get_source_segment(function.module.text, node) or ""
            is_in_brackets = re.search(r"\bin\s*\(\s*['\"][^'\"]*['\"]\s*\)", source) is not None
            is_word = (
                re.fullmatch(r"[a-z]{4,}(?:[ ,|_-]+[a-z]+)*", text) is not None
                and text not in "abcdefghijklmnopqrstuvwxyz"
            )
            is_whole = isinstance(node.left, ast.Attribute | ast.Subscript) or (
                isinstance(node.left, ast.Name) and function.parameters.get(node.left.id, "").startswith("str")
            )
            is_letters = len(set(text)) == len(text) and not re.search(r"[aeiou][^aeiou]", text)
            if is_in_brackets or (is_word and is_whole and not is_letters):
                yield Slip(
                    node,
                    f"tests whether `{short(node.left)}` is in the text {text!r}, which is true for each part of the "
                    f"text, such as {text[:2]!r} and the empty text",
                    "Compare with `==`, or write a tuple with a comma.",
                )


def decided_condition(function: Function, code: Code) -> Iterator[Slip]:
    """Find conditions that have the same result for every value: `x != 1 or x != 2`, `x < 1 and x > 5`, the same
    operand twice."""
    for node in function.every(ast.BoolOp):
        dumps = [ast.dump(one) for one in node.values]
        if len(set(dumps)) < len(dumps) and not any(
            isinstance(one, ast.Call) for part in node.values for one in ast.walk(part)
        ):
            yield Slip(
                node, f"tests the same condition twice in `{short(node)}`", "Correct the second part of the condition."
            )
            continue
        parts = [found for one in node.values if (found := _bound(function, one)) is not None]
        for index, (left, sign, limit) in enumerate(parts):
            for other, second, another in parts[index + 1 :]:
                verdict = (
                    _together(sign, limit, second, another, is_or=isinstance(node.op, ast.Or))
                    if left == other
                    else None
                )
                if verdict is not None:
                    yield Slip(
                        node,
                        f"has the condition `{short(node)}`, which is always {verdict}",
                        "Swap `and` and `or`, or the limits.",
                    )
    yield from _compared_with_itself(function)
    for node in function.every(ast.Assert, ast.If):
        if isinstance(node.test, ast.Tuple) and node.test.elts:
            yield Slip(node, "tests a tuple, which is always true", "Remove the parentheses.")


def _compared_with_itself(function: Function) -> Iterator[Slip]:
    for node in function.every(ast.Compare):
        is_one = len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.Lt | ast.Gt | ast.LtE | ast.GtE | ast.Is)
        is_place = isinstance(node.left, ast.Attribute | ast.Subscript | ast.Name)
        if is_one and is_place and same(node.left, node.comparators[0]):
            yield Slip(node, f"compares `{short(node.left)}` with itself", "Compare with the other value.")


def _bound(function: Function, node: ast.AST) -> tuple[str, str, object] | None:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    value = function.constant(node.comparators[0])
    sign = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}.get(
        type(node.ops[0])
    )
    is_plain = isinstance(value, str | int | float | enum.Enum) and not isinstance(value, bool)
    has_call = any(isinstance(one, ast.Call) for one in ast.walk(node.left))
    return (ast.dump(node.left), sign, value) if sign and is_plain and not has_call else None


def _together(sign: str, limit: object, other: str, another: object, *, is_or: bool) -> str | None:
    if is_or:
        return "true" if sign == other == "!=" and limit != another else _covers(sign, limit, other, another)
    if sign == other == "==" and limit != another:
        return "false"
    return "false" if _excludes(sign, limit, other, another) or _excludes(other, another, sign, limit) else None


def _excludes(sign: str, limit: object, other: str, another: object) -> bool:
    numbers = isinstance(limit, int | float) and isinstance(another, int | float)
    return numbers and sign in ("<", "<=") and other in (">", ">=") and limit < another  # type: ignore[operator]


def _covers(sign: str, limit: object, other: str, another: object) -> str | None:
    if not (isinstance(limit, int | float) and isinstance(another, int | float)):
        return None
    if sign in (">", ">=") and other in ("<", "<="):
        sign, limit, other, another = other, another, sign, limit
    return "true" if sign in ("<", "<=") and other in (">", ">=") and limit > another else None


def unreached_branch(function: Function, code: Code) -> Iterator[Slip]:
    """Find the steps of a scale if their order prevents the second step from being reached: `if x > 10 ... elif x >
    100`."""
    for chain in _chains(function):
        seen: list[tuple[str, str, object]] = []
        for test in chain:
            found = _bound(function, test)
            twice = any(same(test, earlier) for earlier in chain[: chain.index(test)]) and not isinstance(
                test, ast.Call
            )
            for left, sign, limit in seen if found else ():
                assert found is not None
                twice = twice or (left == found[0] and _implied(found[1], found[2], sign, limit))
            if twice:
                yield Slip(
                    test,
                    f"never reaches the branch `{short(test)}`: an earlier condition is true in all these cases",
                    "Test the narrower condition first.",
                )
            if found:
                seen.append(found)


def _implied(sign: str, limit: object, by: str, earlier: object) -> bool:
    if not (isinstance(limit, int | float) and isinstance(earlier, int | float)):
        return sign == by == "==" and limit == earlier
    if sign == "==":
        return {"<": limit < earlier, "<=": limit <= earlier, ">": limit > earlier, ">=": limit >= earlier}.get(
            by, False
        )
    if sign[0] != by[0] or sign[0] not in "<>":
        return False
    is_narrower = limit > earlier if sign[0] == ">" else limit < earlier
    return is_narrower or (limit == earlier and (sign == by or by.endswith("=")))


def _chains(function: Function) -> Iterator[list[ast.expr]]:
    """Yield lists of conditions in which each condition is evaluated only if the previous ones were false."""
    for body in bodies(function):
        chain: list[ast.expr] = []
        for statement in body:
            if not isinstance(statement, ast.If):
                chain = []
                continue
            ladder = [statement]
            while len(ladder[-1].orelse) == 1 and isinstance(ladder[-1].orelse[0], ast.If):
                ladder.append(ladder[-1].orelse[0])
            chain = [*chain, *(one.test for one in ladder)]
            yield chain
            if ladder[-1].orelse or not all(_ends(one.body) for one in ladder):
                chain = []


def bodies(function: Function) -> Iterator[list[ast.stmt]]:
    """Yield all statement lists in a function."""
    yield function.node.body
    for node in function.every(ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler):
        for name in ("body", "orelse", "finalbody"):
            if getattr(node, name, None):
                yield getattr(node, name)


def _ends(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def same_either_way(function: Function, code: Code) -> Iterator[Slip]:
    """Find branches that are equal, and functions that always return the same Boolean."""
    for node in function.every(ast.IfExp, ast.If):
        body, other = ([node.body], [node.orelse]) if isinstance(node, ast.IfExp) else (node.body, node.orelse)
        if body and other and [ast.dump(one) for one in body] == [ast.dump(one) for one in other]:
            yield Slip(node, "does the same whether or not its condition is true", "Write the code for the other case.")
    ways = [one.value for one in function.every(ast.Return) if _holder(function, one) is function.node]
    values = [one.value if isinstance(one, ast.Constant) else None for one in ways]
    if len(ways) > 1 and all(isinstance(one, bool) for one in values) and len(set(values)) == 1:
        yield Slip(
            function.node,
            f"returns {values[0]} in every case, so it decides nothing",
            "Return the other value in the cases that it has to refuse.",
        )


def _holder(function: Function, node: ast.AST) -> ast.AST | None:
    holder = function.parent(node)
    while holder is not None and not isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        holder = function.parent(holder)
    return holder


def forgotten_call(function: Function, code: Code) -> Iterator[Slip]:
    """Find a method that is used in place of its return value: `if self.is_open:`."""
    methods = {one.node.name for one in code.of_class(function)}
    methods -= {one.node.name for one in code.of_class(function) if one.node.decorator_list}
    for node in function.every(ast.Attribute, ast.Name):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == "self":
            own = set() if function.owner is None else function.module.attributes_set(function.owner)
            is_function = node.attr in methods - own
        else:
            value = function.constant(node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else None
            is_function = isinstance(value, FunctionType)
        parent = function.parent(node)
        is_value = isinstance(parent, ast.Compare | ast.FormattedValue | ast.BinOp | ast.BoolOp) or (
            isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
        )
        if is_function and (is_value or _is_test(function, node)):
            is_identity = isinstance(parent, ast.Compare) and any(
                isinstance(one, ast.Is | ast.IsNot) for one in parent.ops
            )
            if not is_identity and not (isinstance(parent, ast.BoolOp) and not _is_test(function, parent)):
                yield Slip(
                    node,
                    f"uses the function `{short(node)}` in place of its value: it is not called, and always counts as "
                    f"true",
                    "Add the parentheses of the call.",
                )


def short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 70 else f"{text[:67]}..."


PATTERNS = (
    always_true,
    text_for_choice,
    decided_condition,
    unreached_branch,
    same_either_way,
    forgotten_call,
)
