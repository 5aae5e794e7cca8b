"""Patterns of mistakes in what rewards pay for: repeated or refused calls, lost games, numbers far from the correct
number, and sums that leave out a part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sparring.checks.rules.source.code import Code, Function, Slip
from sparring.checks.rules.source.grading import find_keys, find_origins
from sparring.checks.rules.source.logic import short


def paid_again(function: Function, code: Code) -> Iterator[Slip]:
    """Find a part of the reward that is given for each call, even if the same call is repeated."""
    text = ast.unparse(function.node)
    for node in function.every(ast.Call):
        name = ast.unparse(node.func)
        if name not in ("len", "sum") or len(node.args) != 1 or function.node.name.startswith("scor"):
            continue
        is_counted = _goes_through_calls(function, node.args[0]) and not isinstance(
            function.origin(node.args[0]), ast.Attribute
        )
        if (
            not is_counted
            or not _is_paid(function, node)
            or re.search(r"\bset\(|\.add\(|\bCounter\(|\bmin\(|\bdict\.fromkeys\(", text)
        ):
            continue
        yield Slip(
            node,
            f"pays for each call that `{short(node)}` counts, even for equal calls: repeating a call earns without "
            f"limit",
            "Count different calls, `len({...})`, and at most as many as are needed, `min(...)`.",
            covered_by=("reward.mutations", "reward.policies", "policies.everything"),
        )


def _goes_through_calls(function: Function, node: ast.AST) -> bool:
    """Return True if an expression iterates over the calls of an episode."""
    node = function.origin(node)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _goes_through_calls(function, node.generators[0].iter)
    return isinstance(node, ast.Attribute) and node.attr == "transitions"


def _is_paid(function: Function, node: ast.AST) -> bool:
    """Return True if the return value grows with a number: the number is returned, added or multiplied, not subtracted
    or compared."""
    parent = function.parent(node)
    if isinstance(parent, ast.Return):
        return True
    if isinstance(parent, ast.BinOp):
        is_taken_off = isinstance(parent.op, ast.Sub) and parent.right is node
        is_divisor = isinstance(parent.op, ast.Div | ast.Pow | ast.Mod) and parent.right is node
        factors = [function.constant(one) for one in (parent.left, parent.right)]
        is_negative = isinstance(parent.op, ast.Mult) and any(
            isinstance(one, int | float) and one < 0 for one in factors
        )
        return not (is_taken_off or is_divisor or is_negative) and _is_paid(function, parent)
    if isinstance(parent, ast.AugAssign):
        return isinstance(parent.op, ast.Add) and _is_returned(function, ast.unparse(parent.target))
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        return _is_returned(function, parent.targets[0].id)
    return False


def _is_returned(function: Function, name: str) -> bool:
    uses = [one for one in function.every(ast.Name) if one.id == name and isinstance(one.ctx, ast.Load)]
    return any(not isinstance(function.parent(one), ast.Compare) and _is_paid(function, one) for one in uses)


def paid_for_the_end(function: Function, code: Code) -> Iterator[Slip]:
    """Find a reward that checks only whether the game is over, which is also true when the game is lost."""
    ways = [
        (one, re.findall(r"final_state(?:\[|\.get\()['\"](\w+)['\"]", ast.unparse(one.value)))
        for one in function.every(ast.Return)
        if one.value is not None
    ]
    keys = {key for _, each in ways for key in each}
    if (
        len(keys) != 1
        or "final_state" not in ast.unparse(function.node)
        or ast.unparse(function.node).count("final_state") != 1
    ):
        return
    (key,) = keys
    state = [one for one in code.functions if one.node.name == "final_state" and one.owner is not None]
    done = [one for one in code.functions if one.node.name == "is_done" and one.owner is not None]
    if len(state) != 1 or len(done) != 1:
        return
    held = {
        name.value: ast.unparse(value)
        for table in state[0].every(ast.Dict)
        for name, value in zip(table.keys, table.values, strict=True)
        if isinstance(name, ast.Constant)
    }
    over = held.get(key, "")
    if [ast.unparse(one.value) for one in done[0].every(ast.Return) if one.value is not None] != [over]:
        return
    sets = [
        (one, each)
        for each in code.of_class(state[0])
        for one in each.every(ast.Assign)
        if any(ast.unparse(target) == over for target in one.targets) and each.constant(one.value) is True
    ]
    others = {place for place in held.values() if place.startswith("self.") and place != over}
    won = [
        place
        for place in others
        if any(
            ast.unparse(target) == place and each.constant(one.value) is True
            for each in code.of_class(state[0])
            for one in each.every(ast.Assign)
            for target in one.targets
        )
    ]
    if len(sets) > 1 and won:
        yield Slip(
            ways[0][0],
            f"pays for `{key}`, which is true whenever the episode is over: {len(sets)} places set it, but not all of "
            f"them set `{min(won)}`",
            f"Read `{min(won)}` instead.",
            covered_by=("reward.policies",),
        )


def refused_is_paid(function: Function, code: Code) -> Iterator[Slip]:
    """Find rewards that check calls only by tool and arguments, even if the calls were refused."""
    text = ast.unparse(function.node)
    names = {one.value for one in function.every(ast.Constant) if isinstance(one.value, str)}
    tools = [one for one in code.functions if one.is_tool and one.node.name in names and _refuses(one)]
    asks = re.search(r"['\"](?:error|result)['\"]|final_state|\b(?:ok|success)", text) is not None
    for node in (
        function.every(ast.Attribute) if tools and not asks and not function.node.name.startswith("scor") else ()
    ):
        if node.attr == "transitions" and re.search(r"['\"]arguments['\"]", text):
            yield Slip(
                node,
                f"pays for calls of {tools[0].node.name} by their arguments, not by their result: a refused call "
                f"counts like a successful call",
                "Require that `error` is None and that the result is not a refusal, or read the final state.",
                covered_by=("reward.mutations",),
            )
            return


def _refuses(function: Function) -> bool:
    """Return True if a tool may refuse a call, and otherwise changes something."""
    refuses = any(function.every(ast.Raise)) or re.search(
        r"return f?['\"](?i:error|no |cannot|refused|not )", ast.unparse(function.node)
    )
    stores = any(
        isinstance(one.ctx, ast.Store | ast.Del) for one in function.every(ast.Attribute, ast.Subscript)
    ) or re.search(
        r"self\.\w+(?:\[.+\])?\.(?:append|add|update|remove|pop|discard)\(|\.execute\(", ast.unparse(function.node)
    )
    return bool(refuses) and bool(stores)


def tolerance_takes_all(function: Function, code: Code) -> Iterator[Slip]:
    """Find a tolerance that is as wide as the range of the reference answers, or that grows with the answer."""
    origins = find_origins(function, code)
    for node, compared, tolerance in _tolerances(function):
        wanted = [
            float(one)
            for each in compared
            for key in find_keys(function, each)
            for one in code.fields.get(key, ())
            if isinstance(one, int | float) and not isinstance(one, bool)
        ]
        number, width = function.constant(tolerance), max(wanted, default=0.0) - min(wanted, default=0.0)
        if len(set(wanted)) > 2 and isinstance(number, int | float) and number >= width / 2:
            yield Slip(
                node,
                f"accepts numbers that are {number:g} off in `{short(node)}`, but all references are between "
                f"{min(wanted):g} and {max(wanted):g}: one number is right for most tasks",
                "Use a tolerance that is small compared with the differences between the answers.",
                {"references": list(sorted(set(wanted))[:6])},
                covered_by=("policies.everything", "data.imbalance"),
            )
        is_product = isinstance(tolerance, ast.BinOp) and isinstance(tolerance.op, ast.Mult)
        sides = [one for one in (tolerance.left, tolerance.right) if origins.of(one)] if is_product else []  # type: ignore[union-attr]
        if sides and all(origins.of(one) == {"given"} for one in sides):
            yield Slip(
                node,
                f"uses a tolerance that grows with the given answer, in `{short(node)}`",
                "Use a share of the reference as the tolerance.",
            )


def _tolerances(function: Function) -> Iterator[tuple[ast.AST, list[ast.expr], ast.expr]]:
    """Yield the parts of `abs(a - b) < c` and `isclose(a, b, abs_tol=c)`: the whole expression, the compared values,
    and the tolerance."""
    for node in function.every(ast.Compare):
        left, right = (function.origin(one) for one in (node.left, node.comparators[0]))
        is_distance = isinstance(left, ast.Call) and ast.unparse(left.func) in ("abs", "math.fabs") and bool(left.args)
        if is_distance and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt | ast.LtE):
            inner = left.args[0]  # type: ignore[union-attr]
            yield node, [inner.left, inner.right] if isinstance(inner, ast.BinOp) else [inner], right  # type: ignore[misc]
    for call in function.every(ast.Call):
        if ast.unparse(call.func).endswith("isclose"):
            yield from ((call, call.args[:2], one.value) for one in call.keywords if one.arg in ("abs_tol", "atol"))


def paid_by_default(function: Function, code: Code) -> Iterator[Slip]:
    """Find `.get("done", True)`, which treats a missing value as success."""
    origins = find_origins(function, code)
    for call in function.every(ast.Call):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "get"
            and len(call.args) == 2
            and "given" in origins.of(call.func.value)
        ):
            value = function.constant(call.args[1])
            if value is True or (isinstance(value, float) and value >= 1.0):
                yield Slip(
                    call,
                    f"uses {value!r} for a missing value, in `{short(call)}`: an episode without the value is paid",
                    "Use False or 0 for a missing value.",
                )


def counts_forgotten(function: Function, code: Code) -> Iterator[Slip]:
    """Find lists with duplicate members that are compared as sets."""
    for node in function.every(ast.Compare):
        sides = [function.origin(one) for one in (node.left, node.comparators[0])]
        if not isinstance(node.ops[0], ast.Eq) or not all(
            isinstance(one, ast.Call) and ast.unparse(one.func) == "set" and one.args for one in sides
        ):
            continue
        for side in sides:
            assert isinstance(side, ast.Call)
            lists = [
                one
                for key in find_keys(function, side.args[0])
                for one in code.fields.get(key, ())
                if isinstance(one, list)
            ]
            doubled = [one for one in lists if len({repr(each) for each in one}) < len(one)]
            if doubled:
                yield Slip(
                    node,
                    f"compares as sets, but {len(doubled)} of {len(lists)} references contain a member twice: the "
                    f"number of occurrences is ignored",
                    "Compare sorted lists, or Counter(...).",
                    {"references": doubled[:2]},
                )


def left_out_of_the_sum(function: Function, code: Code) -> Iterator[Slip]:
    """Find a part of the reward that is computed and never used."""
    read = {one.id for one in function.every(ast.Name) if isinstance(one.ctx, ast.Load)}
    for name, values in function.assigned.items():
        if (
            name not in read
            and not name.startswith("_")
            and not any(name in one.names for one in function.every(ast.Nonlocal, ast.Global))
        ):
            yield Slip(
                values[-1],
                f"computes `{name}`, but does not use it",
                f"Add `{name}` to the returned value, or remove it.",
            )


def limits_swapped(function: Function, code: Code) -> Iterator[Slip]:
    """Find `max(1.0, x)` for a value that should be at most 1."""
    for call in function.every(ast.Call):
        name = ast.unparse(call.func)
        if name not in ("max", "min") or len(call.args) != 2 or call.keywords:
            continue
        outer = [value for one in call.args if isinstance(value := function.constant(one), int | float)]
        inner = next(
            (
                one
                for one in call.args
                if isinstance(one, ast.Call) and ast.unparse(one.func) in ("max", "min") and one.func != call.func
            ),
            None,
        )
        limits = [
            value for one in (inner.args if inner else ()) if isinstance(value := function.constant(one), int | float)
        ]
        is_other = inner is not None and ast.unparse(inner.func) != name
        low, high = (outer, limits) if name == "max" else (limits, outer)
        if is_other and len(low) == len(high) == 1 and low[0] > high[0]:
            yield Slip(call, f"always returns {outer[0]!r} in `{short(call)}`", "Swap the limits.")
        is_returned = isinstance(function.parent(call), ast.Return) and not is_other
        if is_returned and outer and ((name == "max" and outer[0] == 1) or (name == "min" and outer[0] == 0)):
            yield Slip(
                call,
                f"never returns {'less' if name == 'max' else 'more'} than {outer[0]!r}, in `{short(call)}`",
                f"Write `{'min' if name == 'max' else 'max'}`.",
            )


PATTERNS = (
    paid_again,
    paid_for_the_end,
    refused_is_paid,
    tolerance_takes_all,
    paid_by_default,
    counts_forgotten,
    left_out_of_the_sum,
    limits_swapped,
)
