"""Patterns of mistakes in what tools keep and change: shared tables, caches, numbers, access, swallowed errors, and
lost changes."""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from sparring.checks.rules.source.code import UNKNOWN, Code, Function, Slip
from sparring.checks.rules.source.computing import computed
from sparring.checks.rules.source.logic import short
from sparring.checks.rules.source.statements import writes
from sparring.types import Json

_BEGINS = ("reset", "__init__", "__post_init__")


_SQL = re.compile(r"\s*(?:SELECT|UPDATE|DELETE|INSERT|REPLACE|WITH)\b", re.IGNORECASE)


_PLAIN = (ast.Pass, ast.Continue)


def swallowed_error(function: Function, code: Code) -> Iterator[Slip]:
    """Find `except ...: return 0`, which turns a failure into a value."""
    for handler in function.every(ast.ExceptHandler):
        if len(handler.body) != 1:
            continue
        way, kind = handler.body[0], "every error" if handler.type is None else ast.unparse(handler.type)
        is_broad = handler.type is None or re.search(r"\b(?:Base)?Exception\b|\w\.Error\b", kind) is not None
        value = _find_constant(function, way)
        if isinstance(way, ast.Pass) and is_broad:
            yield Slip(
                way,
                f"ignores {kind}: a failed call looks like a successful one",
                "Do not catch the error, or raise an error that names what is wrong.",
            )
        failing = failing_values(function, code, handler)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_empty = value is None or (isinstance(value, str | list | dict | tuple) and not value)
        if (
            value is True
            or (is_number and not _mentions(function, value))
            or (is_broad and is_empty and not _mentions(function, value))
        ):
            if failing is not None and not failing[1]:
                continue
            example = f" (so {failing[1][0]!r} of `{failing[0]}` becomes {value!r})" if failing else ""
            yield Slip(
                way,
                f"turns {kind} into {value!r}: a failure looks like a result{example}",
                "Do not catch the error, or raise an error that names what is wrong.",
                covered_by=("environment.tools_answer",) if is_empty else (),
            )


def _find_constant(function: Function, statement: ast.stmt) -> Any:
    """Return the constant that a statement returns or assigns, or UNKNOWN."""
    if isinstance(statement, ast.Return):
        return None if statement.value is None else function.constant(statement.value)
    return function.constant(statement.value) if isinstance(statement, ast.Assign) else UNKNOWN


def failing_values(function: Function, code: Code, handler: ast.ExceptHandler) -> tuple[str, list[Json]] | None:
    """Return the field that the body of a `try` statement reads, and the tasks' values for which the body fails. Return
    None if this cannot be determined."""
    holder = function.parent(handler)
    last = holder.body[-1] if isinstance(holder, ast.Try) else None
    value = last.value if isinstance(last, ast.Return | ast.Assign) else None
    if value is None or len(holder.body) != 1:  # type: ignore[union-attr]
        return None
    return next(
        iter(
            [
                (key, [one for one, result in pairs if isinstance(result, Exception)])
                for key, pairs in computed(function, code, value)
            ]
        ),
        None,
    )


def _mentions(function: Function, value: Any) -> bool:
    words = {None: r"null|none|nothing", "": r"empty|blank"}.get(value) if value is None or value == "" else None
    if isinstance(value, list | dict | tuple):
        words = r"empty|no rows|nothing"
    return (
        function.mentions(words or rf"(?<![\w.]){re.escape(str(value))}(?![\w.])|zero|default|unreadable|invalid")
        or "_or_" in function.node.name
    )


def number_given_again(function: Function, code: Code) -> Iterator[Slip]:
    """Find `len(self.jobs) + 1` as the number of a new job, if jobs can be removed."""
    for call in function.every(ast.Call):
        place = ast.unparse(call.args[0]) if ast.unparse(call.func) == "len" and call.args else ""
        if not place.startswith("self."):
            continue
        keys = {ast.unparse(call)} | {
            name
            for name, given in function.assigned.items()
            if any(one is call for each in given for one in ast.walk(each))
        }
        is_kept = any(
            where == place
            and keys & {ast.unparse(one) for one in ast.walk(node)}
            and not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Del))
            for node, where in writes(function)
        )
        shrinks = [one for one in code.of_class(function) if one.node.name not in _BEGINS and any(_shrinks(one, place))]
        if is_kept and shrinks:
            yield Slip(
                call,
                f"numbers a new member of `{place}` by the count of members: after {shrinks[0].node.name} removes "
                f"one, a number is assigned twice, and the existing member is overwritten or found in place of the "
                f"new one",
                "Use a separate counter that never decreases.",
                covered_by=("environment.identifiers",),
            )
    yield from _row_number_given_again(function, code)


def _row_number_given_again(function: Function, code: Code) -> Iterator[Slip]:
    """Yield `count(*)` as the number of a new row, if rows can be deleted."""
    tables = find_sql(function)
    counted = {one for _, sql in tables for one in re.findall(r"(?i)\bcount\(\s*\*\s*\)\s+from\s+(\w+)", sql)}
    for node, sql in tables:
        into = re.match(r"(?i)\s*insert\s+into\s+(\w+)", sql)
        deletes = [
            one
            for one in code.of_class(function)
            for _, each in find_sql(one)
            if into and re.match(rf"(?i)\s*delete\s+from\s+{into[1]}\b", each)
        ]
        if into and into[1] in counted and deletes:
            yield Slip(
                node,
                f"numbers a new row of {into[1]} by the count of rows, but {deletes[0].node.name} deletes rows: a "
                f"number is assigned twice",
                "Use max(id) + 1 of all rows that ever existed, or a counter.",
                covered_by=("environment.identifiers",),
            )


def _shrinks(function: Function, place: str) -> Iterator[bool]:
    for node, where in writes(function):
        is_del = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Del)
        is_call = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("pop", "remove", "discard", "popitem", "popleft")
        )
        yield where == place and (is_del or is_call)
    for node in function.every(ast.Assign):
        yield ast.unparse(node.targets[0]) == place and any(
            isinstance(one, ast.comprehension) and one.ifs for one in ast.walk(node.value)
        )


def stale_cache(function: Function, code: Code) -> Iterator[Slip]:
    """Find a cached result that a tool does not invalidate when it changes the cached data."""
    for node in function.every(ast.If, ast.Return):
        found = _kept_in(node)
        fills = (
            [
                function.parent(one)
                for one, place in writes(function)
                if place == found and isinstance(one, ast.Subscript)
            ]
            if found
            else []
        )
        returns = any(
            found and one.value is not None and found in ast.unparse(one.value) for one in function.every(ast.Return)
        )
        if found is None or not fills or not returns or function.node.name in _BEGINS:
            continue
        read = _tables(function, "from|join")
        sources = " ".join(ast.unparse(function.origin(one.value)) for one in fills if isinstance(one, ast.Assign))
        attributes = set(re.findall(r"self\.(\w+)", sources)) - {found.removeprefix("self.")}
        methods = {one.node.name for one in code.of_class(function)}
        for other in code.of_class(function):
            if other is function or other.node.name in (*_BEGINS, "close") or other.part != "environment":
                continue
            called = {one.attr for one in other.every(ast.Attribute)} & methods
            near = [other, *(one for one in code.of_class(function) if one.node.name in called)]
            if any(
                ast.unparse(one) == found for each in near if each is not function for one in each.every(ast.Attribute)
            ):
                continue
            changed = _tables(other, "update|into|delete from") & read
            own = {place.removeprefix("self.") for _, place in writes(other) if place.startswith("self.")} & attributes
            if changed or own:
                what = min(changed or own)
                yield Slip(
                    node,
                    f"returns values from the cache `{found}`, but {other.node.name} changes {what} without clearing "
                    f"the cache: the old value is returned after the change",
                    f"Clear `{found}` in {other.node.name}.",
                    covered_by=("environment.stale_reads",),
                )
                return


def _kept_in(node: ast.AST) -> str | None:
    test = node.test if isinstance(node, ast.If) else None
    for one in ast.walk(test) if test is not None else ():
        if isinstance(one, ast.Compare) and len(one.ops) == 1 and isinstance(one.ops[0], ast.In | ast.NotIn):
            place = ast.unparse(one.comparators[0])
            if re.fullmatch(r"self\.\w+", place):
                return place
    return None


def granted_to_any(function: Function, code: Code) -> Iterator[Slip]:
    """Find access that is granted for individual names, but checked only as a whole: `if not self.granted`."""
    for node in function.every(ast.If):
        test = (
            node.test.operand if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not) else node.test
        )
        place = ast.unparse(test)
        refuses = any(isinstance(one, ast.Raise | ast.Return) for one in node.body)
        if (
            not re.fullmatch(r"self\.\w+", place)
            or not refuses
            or any(place in ast.unparse(one) and isinstance(one, ast.Compare) for one in function.nodes)
        ):
            continue
        for other in code.of_class(function):
            shared = _find_added(other, place) & set(function.parameters)
            if shared and other is not function and any(one.id == min(shared) for one in function.every(ast.Name)):
                yield Slip(
                    node,
                    f"tests whether `{place}` is empty, but {other.node.name} adds a single `{min(shared)}` to it: "
                    f"after the first, every `{min(shared)}` passes",
                    f"Test whether `{min(shared)}` is in `{place}`.",
                    covered_by=("environment.access",),
                )
                break


def _find_added(function: Function, place: str) -> set[str]:
    """Return the parameters that a function adds to a list or set."""
    return {
        one.id
        for call, where in writes(function)
        if where == place and isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("add", "append")
        for one in call.args
        if isinstance(one, ast.Name) and one.id in function.parameters
    }


def shared_between_episodes(function: Function, code: Code) -> Iterator[Slip]:
    """Find tables of the class or the module to which a tool writes, and shallow copies of such tables."""
    covered = ("environment.same_twice", "environment.isolation", "environment.carried_over", "environment.order")
    related = code.of_class(function)
    for node, place in writes(function):
        if function.owner is not None and re.fullmatch(r"self\.\w+", place) and not isinstance(node, ast.AugAssign):
            name = place.removeprefix("self.")
            is_own = any(name in one.module.attributes_set(one.owner) for one in related if one.owner is not None)
            values = function.module.class_values(function.owner)
            value = None if name in values.get("persists", ()) else values.get(name)
            if not is_own and isinstance(value, list | dict | set | deque | Counter):
                yield Slip(
                    node,
                    f"writes to `{place}`, a table of the class that no `reset` creates again: all episodes share it",
                    f"Create `{place}` in `reset`.",
                    cause=place,
                    covered_by=covered,
                )
        elif re.fullmatch(r"\w+", place) and place not in function.bound:
            value = function.module.namespace.get(place)
            is_table = isinstance(value, list | dict | set | deque | Counter) or type(value).__name__ == "DataFrame"
            is_memo = isinstance(node, ast.Subscript) and any(
                isinstance(one, ast.Compare) and ast.unparse(one.comparators[0]) == place for one in function.nodes
            )
            if is_table and not is_memo:
                yield Slip(
                    node,
                    f"writes to the module's `{place}`: all episodes share it",
                    "Keep the table in the object, and create it in `reset`.",
                    cause=place,
                    covered_by=covered,
                )
    for call in function.every(ast.Call):
        if (
            ast.unparse(call.func) == "next"
            and call.args
            and isinstance(function.constant(call.args[0]), itertools.count)
        ):
            yield Slip(
                call,
                f"counts with `{short(call)}`, which continues from episode to episode",
                "Create the counter in `reset`.",
                covered_by=covered,
            )
    for node in function.every(ast.Assign):
        place, value = ast.unparse(node.targets[0]), function.origin(node.value)
        name, is_copy = _source_table(value)
        table = function.constant(name) if name is not None else None
        if (
            not re.fullmatch(r"self\.\w+", place)
            or name is None
            or (not isinstance(table, list | dict | set) and type(table).__name__ != "DataFrame")
        ):
            continue
        members = (
            list(table.values() if isinstance(table, dict) else table) if isinstance(table, list | dict | set) else []
        )
        is_deep = any(
            isinstance(one, list | dict | set)
            or (hasattr(one, "__dict__") and not callable(one) and not _is_frozen(one))
            for one in members
        )
        for one in related:
            hit = next(
                (each for each, where in writes(one) if _reaches(one, each, where, place, related, is_copy=is_copy)),
                None,
            )
            if hit is not None and (is_deep or not is_copy):
                how = "a shallow copy of" if is_copy else "no copy of"
                yield Slip(
                    node,
                    f"uses {how} `{ast.unparse(name)}`, and {one.node.name} writes to its rows: the changes of one "
                    f"episode are still there in the next",
                    "Make a deep copy.",
                    covered_by=covered,
                )
                break


def _is_frozen(value: object) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _source_table(value: ast.AST) -> tuple[ast.AST | None, bool]:
    """Return the module's table that an expression refers to or copies, and True if the expression copies one level of
    the table."""
    if isinstance(value, ast.Name):
        return value, False
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func)
        if (
            name in ("dict", "list", "copy.copy", "copy")
            and len(value.args) == 1
            and isinstance(value.args[0], ast.Name)
        ):
            return value.args[0], True
        if (
            isinstance(value.func, ast.Attribute)
            and value.func.attr == "copy"
            and isinstance(value.func.value, ast.Name)
            and not value.args
        ):
            return value.func.value, True
    if isinstance(value, ast.Dict) and value.keys == [None] and isinstance(value.values[0], ast.Name):
        return value.values[0], True
    return None, False


def _reaches(
    function: Function, node: ast.AST, where: str, place: str, related: list[Function], *, is_copy: bool
) -> bool:
    """Return True if a write changes a variable or an attribute, or one of its rows."""
    if where == place:
        inner = (
            node.func.value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else getattr(node, "value", None)
        )
        return not is_copy or (inner is not None and ast.unparse(inner) != place)
    if where.startswith("self.") or isinstance(node, ast.AugAssign):
        return False
    sources = [ast.unparse(one) for one in function.assigned.get(where, [])]
    sources += [
        ast.unparse(loop.iter)
        for loop in function.every(ast.For)
        if where in {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    ]
    givers = {one.node.name for one in related if any(ast.unparse(each) == place for each in one.every(ast.Attribute))}
    return any(
        source.startswith(place) or ((match := re.match(r"self\.(\w+)\(", source)) is not None and match[1] in givers)
        for source in sources
    )


def find_sql(function: Function) -> list[tuple[ast.AST, str]]:
    """Return the SQL statements in a function, with module constants substituted."""
    found = []
    for node in function.every(ast.Constant, ast.BinOp, ast.JoinedStr, ast.Name):
        parent = function.parent(node)
        if isinstance(parent, ast.JoinedStr | ast.BinOp | ast.Expr) or (
            isinstance(node, ast.Name) and not isinstance(parent, ast.Call)
        ):
            continue
        text = (
            "".join(str(one.value) if isinstance(one, ast.Constant) else "?" for one in node.values)
            if isinstance(node, ast.JoinedStr)
            else function.constant(node)
        )
        if isinstance(text, str) and _SQL.match(text):
            found.append((node, text))
    return found


def _tables(function: Function, before: str) -> set[str]:
    return {one.lower() for _, sql in find_sql(function) for one in re.findall(rf"(?i)\b(?:{before})\s+(\w+)", sql)}


def unused(function: Function, code: Code) -> Iterator[Slip]:
    """Find an argument that is never read, and a new value that is computed but not stored."""
    body = [
        one for one in function.node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]
    is_stub = not body or (len(body) == 1 and isinstance(body[0], ast.Raise | ast.Pass | ast.Return))
    read = {one.id for one in function.every(ast.Name) if isinstance(one.ctx, ast.Load | ast.Del)}
    if function.is_tool and not is_stub and "locals" not in read:
        for name in function.parameters:
            if name not in read and not name.startswith("_"):
                yield Slip(
                    function.node,
                    f"never reads its argument `{name}`",
                    "Use it, or remove it from the signature.",
                    covered_by=("environment.arguments_ignored",),
                )
    for node in function.every(ast.Assign, ast.AugAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        is_sum = isinstance(node, ast.AugAssign) or isinstance(node.value, ast.BinOp)
        if isinstance(target, ast.Name) and is_sum and target.id not in read and not target.id.startswith("_"):
            is_outside = any(target.id in one.names for one in function.every(ast.Global, ast.Nonlocal))
            if not is_outside:
                yield Slip(
                    node,
                    f"computes `{target.id}`, but never uses it: nothing changes",
                    "Store the value where it belongs.",
                )
    yield from _attributes_set_in_vain(function, code)


def _attributes_set_in_vain(function: Function, code: Code) -> Iterator[Slip]:
    """Yield attributes that are set, but have a different name where they are read."""
    if function.owner is None or function.node.name in _BEGINS or not function.tools:
        return
    known = _attributes_read(function, code)
    for node in function.every(ast.Attribute):
        near = difflib.get_close_matches(
            node.attr, known & function.module.attributes_set(function.owner), n=1, cutoff=0.6
        )
        if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self" and node.attr not in known and near:
            yield Slip(
                node,
                f"sets `self.{node.attr}`, which no code reads (code reads `self.{near[0]}`): the change is lost",
                "Set the attribute that the tools and `final_state` read.",
            )


def _attributes_read(function: Function, code: Code) -> set[str]:
    key = f"read {function.module.file}"
    if key not in code.shared:
        code.shared[key] = _all_read(function)
    return code.shared[key]


def _all_read(function: Function) -> set[str]:
    found = set()
    for one in ast.walk(function.module.tree):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load):
            found.add(one.attr)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found.add(one.value)
    if found & {"__dict__", "asdict"} or any(
        isinstance(one, ast.Name) and one.id in ("vars", "asdict", "getattr") for one in ast.walk(function.module.tree)
    ):
        found |= {one.attr for one in ast.walk(function.module.tree) if isinstance(one, ast.Attribute)}
    return found


def no_answer(function: Function, code: Code) -> Iterator[Slip]:
    """Find a path through a tool that ends without a `return`."""
    kind = "" if function.node.returns is None else ast.unparse(function.node.returns)
    returns = [one for one in function.every(ast.Return) if one.value is not None]
    if (
        not function.is_tool
        or not returns
        or not re.match(r"(?:str|int|float|bool|list|dict|tuple)\b", kind)
        or "None" in kind
    ):
        return
    if _falls(function.node.body) and not any(function.every(ast.Yield)):
        yield Slip(
            function.node,
            f"promises {kind}, but one path ends without a `return`: the result is null",
            "Return or raise at the end of this path.",
        )


def _falls(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return False
    if isinstance(last, ast.If):
        return not last.orelse or _falls(last.body) or _falls(last.orelse)
    if isinstance(last, ast.With | ast.AsyncWith):
        return _falls(last.body)
    if isinstance(last, ast.Try):
        return (not last.finalbody or _falls(last.finalbody)) and (
            _falls(last.orelse or last.body) or any(_falls(one.body) for one in last.handlers)
        )
    if isinstance(last, ast.Match):
        is_whole = any(
            isinstance(one.pattern, ast.MatchAs) and one.pattern.pattern is None and one.guard is None
            for one in last.cases
        )
        return not is_whole or any(_falls(one.body) for one in last.cases)
    if isinstance(last, ast.While) and isinstance(last.test, ast.Constant) and last.test.value:
        return any(isinstance(one, ast.Break) for one in ast.walk(last))
    return not isinstance(last, ast.Assert)


PATTERNS = (
    swallowed_error,
    number_given_again,
    stale_cache,
    granted_to_any,
    shared_between_episodes,
    unused,
    no_answer,
)
