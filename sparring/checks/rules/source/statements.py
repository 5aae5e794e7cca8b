"""Patterns of mistakes in single statements: unused results, loops that end too early, shared defaults, and swapped
arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sparring.checks.rules.source.code import Code, Function, Slip
from sparring.checks.rules.source.logic import bodies, short

_PURE_TEXT = frozenset(
    [
        "strip",
        "lstrip",
        "rstrip",
        "lower",
        "upper",
        "title",
        "capitalize",
        "casefold",
        "removeprefix",
        "removesuffix",
        "zfill",
        "ljust",
        "rjust",
        "center",
        "swapcase",
    ]
)


_PURE_TABLE = frozenset(["sort_values", "dropna", "fillna", "drop_duplicates", "reset_index", "set_index", "astype"])


_PURE_OTHER = frozenset(
    ["union", "intersection", "difference", "symmetric_difference", "quantize", "isoformat", "copy"]
)


_OPPOSITE = re.compile(r"undo|revert|back|reverse|return|refund|opposite|swap|inverse|mirror")


def dropped_value(function: Function, code: Code) -> Iterator[Slip]:
    """Find a call or a comparison whose value is not used, although it has no other effect."""
    for node in function.every(ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        what = None
        if isinstance(value, ast.Compare | ast.BinOp | ast.GeneratorExp) and not isinstance(
            function.parent(node), ast.Try | ast.With
        ):
            what = "computes"
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            name, given = value.func.attr, value.args
            is_module = isinstance(value.func.value, ast.Name) and value.func.value.id in ("os", "shutil", "re")
            inplace = any(one.arg == "inplace" for one in value.keywords)
            is_text = (name in _PURE_TEXT and len(given) < 2) or (name in ("replace", "format") and len(given) == 2)
            if (
                not is_module
                and not inplace
                and not code.named(name)
                and (is_text or name in _PURE_TABLE or name in _PURE_OTHER)
            ):
                what = "calls"
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            called = function.constant(value.func)
            if (
                value.func.id in ("sorted", "reversed", "map", "filter", "round", "min", "max")
                and value.func.id not in function.bound
            ):
                what = "calls"
            elif isinstance(called, type) and issubclass(called, Exception):
                yield Slip(
                    node,
                    f"creates the error `{short(value)}`, but does not raise it, so nothing is refused",
                    "Write `raise` before it.",
                )
        if what:
            yield Slip(
                node,
                f"{what} `{short(value)}` and drops the value: the object itself does not change",
                "Assign the value, or return it.",
            )
    for node in function.every(ast.Return):
        called = function.constant(node.value.func) if isinstance(node.value, ast.Call) else None
        if isinstance(called, type) and issubclass(called, Exception):
            yield Slip(
                node,
                f"returns the error `{short(node.value)}` as a value instead of raising it",
                "Write `raise` in place of `return`.",
            )
    for node in function.every(ast.Assign):
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            name, plain = (
                value.func.attr,
                not value.args and all(one.arg in ("key", "reverse") for one in value.keywords),
            )
            is_adding = name in ("append", "extend", "insert") and same_place(node.targets[0], value.func.value)
            if (name == "sort" and plain) or name == "shuffle" or is_adding:
                yield Slip(
                    node,
                    f"uses the value of `{short(value)}`, which is None",
                    "Call it in a separate line, or use `sorted`.",
                )


def same_place(one: ast.AST, other: ast.AST) -> bool:
    """Return True if two expressions refer to the same variable or attribute, whether they read or write it."""
    return ast.unparse(one) == ast.unparse(other)


def dropped_check(function: Function, code: Code) -> Iterator[Slip]:
    """Find a call whose result is not used, although the called function does nothing but return an answer."""
    for node in function.every(ast.Expr):
        if not isinstance(node.value, ast.Call):
            continue
        target = node.value.func
        name = target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else None
        is_own = isinstance(target, ast.Name) or (
            isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("self", "cls")
        )
        called = code.named(name, function.owner) if name and is_own else []
        if len(called) == 1 and not called[0].is_tool and _only_answers(called[0]):
            yield Slip(
                node,
                f"calls `{short(node.value)}`, but does not use the result: {name} raises nothing and changes nothing",
                f"Use the value that {name} returns, or let {name} raise an error.",
            )


def _only_answers(function: Function) -> bool:
    if isinstance(function.node, ast.AsyncFunctionDef) or any(
        function.every(ast.Raise, ast.Yield, ast.Global, ast.Delete, ast.Assert)
    ):
        return False
    stores = [one for one in function.every(ast.Attribute, ast.Subscript) if isinstance(one.ctx, ast.Store)]
    returned = [one.value for one in function.every(ast.Return) if one.value is not None]
    is_answer = bool(returned) and all(
        isinstance(one, ast.Compare | ast.BoolOp | ast.Constant | ast.UnaryOp) for one in returned
    )
    return is_answer and not stores and not any(function.every(ast.Call, ast.Subscript))


def first_round_only(function: Function, code: Code) -> Iterator[Slip]:
    """Find a loop that always ends in its first iteration."""
    for loop in function.every(ast.For):
        last = loop.body[-1]
        inner = [one for statement in loop.body for one in ast.walk(statement)]
        if any(isinstance(one, ast.Continue) for one in inner) and not _adds_up(last, inner):
            continue
        branches = isinstance(last, ast.If) and bool(last.orelse) and _ends_all(last)
        goes = isinstance(last, ast.Return | ast.Break) and (
            _adds_up(last, inner) or any(isinstance(one, ast.If | ast.AugAssign) for one in loop.body)
        )
        if branches or goes:
            yield Slip(
                last,
                f"always ends the loop over `{short(loop.iter)}` in the first iteration",
                "Move the code for the case that nothing was found after the loop.",
            )


def _adds_up(last: ast.stmt, inner: list[ast.AST]) -> bool:
    """Return True if a loop ends by returning the sum that it computes."""
    sums = {ast.unparse(one.target) for one in inner if isinstance(one, ast.AugAssign)}
    read = {ast.unparse(one) for one in ast.walk(last) if isinstance(one, ast.Name)}
    return isinstance(last, ast.Return) and bool(sums & read)


def _ends_all(node: ast.If) -> bool:
    def ends(body: list[ast.stmt]) -> bool:
        last = body[-1]
        return isinstance(last, ast.Return | ast.Break) or (
            isinstance(last, ast.If) and bool(last.orelse) and _ends_all(last)
        )

    return ends(node.body) and ends(node.orelse)


def changed_while_read(function: Function, code: Code) -> Iterator[Slip]:
    """Find a list that loses members during a loop over it, or several rows that are the same list object."""
    for loop in function.every(ast.For):
        place = ast.unparse(loop.iter)
        if not isinstance(loop.iter, ast.Name | ast.Attribute | ast.Subscript):
            continue
        for body in (one for one in bodies(function)):
            for index, statement in enumerate(body):
                called = (
                    statement.value
                    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                    else None
                )
                changes = (
                    called is not None
                    and isinstance(called.func, ast.Attribute)
                    and called.func.attr in ("remove", "pop", "insert")
                    and ast.unparse(called.func.value) == place
                )
                is_inside = any(one is statement for one in ast.walk(loop))
                if changes and is_inside and not any(isinstance(one, ast.Return | ast.Break) for one in body[index:]):
                    yield Slip(
                        statement,
                        f"changes `{place}` while a loop iterates over it: the member after each removed member is "
                        f"skipped",
                        f"Loop over a copy, `list({place})`.",
                    )
    yield from _same_members(function, code)


def _same_members(function: Function, code: Code) -> Iterator[Slip]:
    """Yield tables whose rows are the same list object, if one of them is changed."""
    for node in function.every(ast.Assign):
        value, place = node.value, ast.unparse(node.targets[0])
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List):
            is_table = any(isinstance(one, ast.List | ast.Dict | ast.Set | ast.BinOp) for one in value.left.elts)
            if is_table and any(
                _is_deep(one, place) for each in (function, *code.of_class(function)) for one, _ in writes(each)
            ):
                yield Slip(
                    value,
                    f"creates `{short(value)}`, whose members are the same object: changing one changes all",
                    "Create the members in a comprehension.",
                )


def _is_deep(node: ast.AST, place: str) -> bool:
    """Return True if a write changes a member of a variable or an attribute."""
    inner = (
        node.func.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        else getattr(node, "value", None)
    )
    return isinstance(inner, ast.Subscript) and root(inner) == place


def stripped_letters(function: Function, code: Code) -> Iterator[Slip]:
    """Find `strip("kg")`, which removes letters instead of a suffix."""
    for call in function.every(ast.Call):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("strip", "lstrip", "rstrip")
            and len(call.args) == 1
        ):
            text = function.constant(call.args[0])
            letters = [one for one in text if one.isalnum()] if isinstance(text, str) else []
            if len(letters) > 1 and len(set(text)) > 1 and "a-z" not in text and not text.isdigit():
                better = "removeprefix" if call.func.attr == "lstrip" else "removesuffix"
                yield Slip(
                    call,
                    f"calls `{short(call)}`, which removes the letters of {text!r} in any order, not the text {text!r}",
                    f"Use `{better}`.",
                )


def swapped_arguments(function: Function, code: Code) -> Iterator[Slip]:
    """Find `move(target, source)` if the function is `move(source, target)`."""
    for call in function.every(ast.Call):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
        called = code.named(name, function.owner) if name else []
        if len(called) != 1 or _OPPOSITE.search(f"{function.node.name} {name}"):
            continue
        names = list(called[0].parameters)
        given = [one.id if isinstance(one, ast.Name) else None for one in call.args]
        for index, one in enumerate(given[: len(names)]):
            at = names.index(one) if one in names else index
            if at > index and at < len(given) and given[at] == names[index]:
                yield Slip(
                    call,
                    f"calls `{short(call)}`, but {called[0].name} takes `{names[index]}` before `{one}`: the "
                    f"arguments are swapped",
                    "Pass them by name.",
                )


def shared_default(function: Function, code: Code) -> Iterator[Slip]:
    """Find a default list or table to which the function writes, and functions that see only a loop's last value."""
    for name, value in function.defaults.items():
        is_table = isinstance(value, ast.List | ast.Dict | ast.Set) or (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id in ("list", "dict", "set")
            and not value.args
        )
        if is_table and any(place == name for _, place in writes(function)):
            yield Slip(
                value,
                f"writes to the default of `{name}`, which all calls share: what one episode adds is still there in "
                f"the next",
                "Use None as the default, and create the value in the body.",
            )
    yield from _late_binding(function)


def _late_binding(function: Function) -> Iterator[Slip]:
    """Yield functions that are created in a loop and see only its last value."""
    for loop in function.every(ast.For):
        targets = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        for one in (one for statement in loop.body for one in ast.walk(statement)):
            if isinstance(one, ast.Lambda):
                own = {each.arg for each in one.args.args}
                late = {each.id for each in ast.walk(one.body) if isinstance(each, ast.Name)} & (targets - own)
                parent = function.parent(one)
                is_kept = isinstance(parent, ast.Assign | ast.Dict) or (
                    isinstance(parent, ast.Call)
                    and getattr(parent.func, "attr", "") in ("append", "setdefault")
                    and one in parent.args
                )
                if late and is_kept:
                    yield Slip(
                        one,
                        f"keeps functions that use `{min(late)}` of the loop: each of them sees the last value",
                        f"Bind it: `lambda ..., {min(late)}={min(late)}:`.",
                    )


WRITING = frozenset(
    [
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "remove",
        "discard",
        "clear",
        "sort",
        "reverse",
        "appendleft",
        "popleft",
    ]
)


def writes(function: Function) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes at which a function changes an object in place, with the outermost name or attribute: `bag` or
    `self.bag`."""
    for node in function.nodes:
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            place = root(node.value if isinstance(node, ast.Subscript) or ast.unparse(node.value) != "self" else node)
            if place and not (isinstance(node, ast.Attribute) and place == ast.unparse(node)):
                yield node, place
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITING:
            place = root(node.func.value)
            if place:
                yield node, place
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name | ast.Attribute):
            yield node, ast.unparse(node.target)


def root(node: ast.AST) -> str | None:
    """Return `self.bag` for `self.bag[0].name`, or None for other expressions."""
    while isinstance(node, ast.Subscript | ast.Attribute) and ast.unparse(getattr(node, "value", node)) not in (
        "self",
        "cls",
    ):
        node = node.value
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else None


def unfilled_text(function: Function, code: Code) -> Iterator[Slip]:
    """Find `"no account {name}"` without the prefix `f`."""
    for node in function.every(ast.Constant):
        if not isinstance(node.value, str) or "{" not in node.value:
            continue
        parent = function.parent(node)
        names = set(re.findall(r"(?<!\{)\{([a-z_][a-z_0-9]*)(?:[.\[!:][^{}]*)?\}(?!\})", node.value)) & function.bound
        is_used = isinstance(parent, ast.Return | ast.Raise) or (
            isinstance(parent, ast.Call) and node in parent.args and _is_error_or_list(function, parent)
        )
        if names and is_used:
            yield Slip(
                node,
                f"returns the text {node.value[:60]!r} unchanged: `{{{min(names)}}}` is not filled in",
                "Write an f before the quotation mark.",
            )


def _is_error_or_list(function: Function, call: ast.Call) -> bool:
    called = function.constant(call.func)
    return (isinstance(called, type) and issubclass(called, Exception)) or getattr(call.func, "attr", "") == "append"


def doubled_key(function: Function, code: Code) -> Iterator[Slip]:
    """Find a key that appears twice in a table."""
    for node in function.every(ast.Dict):
        yield from doubled(node)


def doubled(node: ast.Dict) -> Iterator[Slip]:
    keys = [ast.dump(one) for one in node.keys if isinstance(one, ast.Constant)]
    for key in node.keys:
        if isinstance(key, ast.Constant) and keys.count(ast.dump(key)) > 1:
            yield Slip(
                node,
                f"names the key {key.value!r} twice in one table: the first value is lost",
                "Remove one of them.",
            )
            return


PATTERNS = (
    dropped_value,
    dropped_check,
    first_round_only,
    changed_while_read,
    stripped_letters,
    swapped_arguments,
    shared_default,
    unfilled_text,
    doubled_key,
)
