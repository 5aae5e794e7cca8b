"""Patterns of mistakes in how rows and files are named: keys, list indices, SQL, inconsistent tables, and the order of
sets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from sparring.checks.rules.source.code import Code, Function, Slip
from sparring.checks.rules.source.logic import short
from sparring.checks.rules.source.state import find_sql

_FOLDS = frozenset(
    [
        "lower",
        "upper",
        "casefold",
        "title",
        "capitalize",
        "swapcase",
        "encode",
        "decode",
        "replace",
        "translate",
        "normalize",
        "removeprefix",
        "removesuffix",
    ]
)


def index_of_another_list(function: Function, code: Code) -> Iterator[Slip]:
    """Find `self.rows[names.index(x)]` if the names are in a different order than the rows."""
    for node in function.every(ast.Subscript):
        call = function.origin(node.slice)
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "index"):
            continue
        listed = function.origin(call.func.value)
        source = listed.generators[0].iter if isinstance(listed, ast.ListComp) else listed
        source = function.origin(source)
        name = getattr(source.func, "attr", getattr(source.func, "id", "")) if isinstance(source, ast.Call) else ""
        sorts = name == "sorted" or any(
            "sorted(" in ast.unparse(one) for each in code.named(name, function.owner) for one in each.every(ast.Return)
        )
        if name and sorts and ast.unparse(function.origin(node.value)) != ast.unparse(source):
            yield Slip(
                node,
                f"uses an index of `{short(source)}`, which is sorted, as an index of `{short(node.value)}`, which is "
                f"not",
                "Look up the row by its key in the list that contains it.",
                covered_by=("environment.writes_reach", "data.unreachable"),
            )


def key_written_otherwise(function: Function, code: Code) -> Iterator[Slip]:
    """Find a table that is filled using one form of a name, but searched using another form."""
    for node in function.every(ast.Call, ast.Subscript, ast.Compare):
        place, key = _looked_up(node)
        asked = _folded(function, code, key) if place and key is not None else None
        if asked is None or not asked[1]:
            continue
        filled = [each for one in code.of_class(function) for each in _fills(one, code, place)]
        if filled and all(one != asked[0] for one in filled) and any(filled):
            yield Slip(
                node,
                f"looks up names in `{place}` {_form(asked[0])}, but the table is filled with names "
                f"{_form(next(filter(None, filled)))}: names with different forms are never found",
                "Build both keys with the same function.",
                cause=f"{function.name} {place}",
                covered_by=("environment.found",),
            )


def _form(folds: tuple[str, ...]) -> str:
    return f"after {', '.join(folds)}" if folds else "as they are given"


def _looked_up(node: ast.AST) -> tuple[str, ast.AST | None]:
    place, key = None, None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        place, key = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        place, key = node.value, node.slice
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
        place, key = node.comparators[0], node.left
    text = "" if place is None else ast.unparse(place)
    return (text, key) if re.fullmatch(r"self\.\w+", text) else ("", None)


def _fills(function: Function, code: Code, place: str) -> Iterator[tuple[str, ...]]:
    for node in function.every(ast.Assign, ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if ast.unparse(target) == place and isinstance(node.value, ast.DictComp):
                yield _folds(function, code, node.value.key)
            elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == place:
                yield _folds(function, code, target.slice)


def _folded(function: Function, code: Code, key: ast.AST) -> tuple[tuple[str, ...], bool] | None:
    """Return the changes that are made to a key before it is looked up, and True if the key comes from a parameter."""
    inner = key
    while isinstance(inner, ast.Call):
        inner = (
            inner.func.value
            if isinstance(inner.func, ast.Attribute) and not inner.args
            else (inner.args or [inner.func])[0]
        )
    if (
        isinstance(inner, ast.Name)
        and inner.id not in function.parameters
        and len(function.assigned.get(inner.id, [])) == 1
    ):
        return _folded(function, code, function.assigned[inner.id][0]) if inner is key else None
    is_parameter = isinstance(inner, ast.Name) and inner.id in function.parameters
    if is_parameter and inner.id in function.assigned:  # type: ignore[union-attr]
        key = function.assigned[inner.id][-1]  # type: ignore[union-attr]
    return _folds(function, code, key), is_parameter


def _folds(function: Function, code: Code, key: ast.AST) -> tuple[str, ...]:
    """Return the functions that change a text's letters before it becomes a key, the last function first. The user's
    own short functions are included, together with the functions that they call."""
    found: list[str] = []
    while isinstance(key, ast.Call):
        if isinstance(key.func, ast.Attribute) and (key.func.attr in _FOLDS or key.func.attr == "strip"):
            found += [key.func.attr] if key.func.attr != "strip" else []
            key = key.func.value
            continue
        name = getattr(key.func, "attr", getattr(key.func, "id", ""))
        called = code.named(name, function.owner)
        if len(called) == 1 and len(key.args) == 1:
            body = [one for one in called[0].node.body if not isinstance(one, ast.Expr)]
            if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
                found += _folds(called[0], code, body[0].value)
            else:
                found.append(name)
            key = key.args[0]
        else:
            break
    return tuple(found)


def prefix_for_key(function: Function, code: Code) -> Iterator[Slip]:
    """Find code that tests for one key, but then uses all keys that begin with this key."""
    asked = {
        (ast.unparse(node.left), ast.unparse(node.comparators[0]))
        for node in function.every(ast.Compare)
        if isinstance(node.ops[0], ast.In | ast.NotIn)
    }
    for call in function.every(ast.Call):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("startswith", "endswith")
            and len(call.args) == 1
        ):
            name, loop = ast.unparse(call.args[0]), function.parent(call)
            while loop is not None and not isinstance(
                loop, ast.For | ast.DictComp | ast.ListComp | ast.SetComp | ast.GeneratorExp
            ):
                loop = function.parent(loop)
            over = (
                "" if loop is None else ast.unparse(loop.iter if isinstance(loop, ast.For) else loop.generators[0].iter)
            )  # type: ignore[union-attr]
            place = re.sub(r"\.(?:items|keys)\(\)$|^list\((.*)\)$", r"\1", over)
            if name in function.parameters and (name, place) in asked:
                yield Slip(
                    call,
                    f"tests for the whole key `{name}`, but then uses every member of `{place}` that "
                    f"{call.func.attr.replace('swith', 's with')} it",
                    f"Compare with `== {name}`.",
                    covered_by=("environment.writes_reach", "data.unreachable"),
                )


def order_of_a_set(function: Function, code: Code) -> Iterator[Slip]:
    """Find code that depends on the order of a set or a folder, or on `hash`, which differ between processes."""
    covered = ("environment.same_elsewhere",)
    for node in function.every(ast.Call, ast.Subscript, ast.Return):
        inner = None
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) in ("list", "tuple")
        ) or (
            isinstance(node, ast.Return)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "list"
            and function.is_tool
        ):
            inner = (node.value.args or [None])[0]
        elif (
            isinstance(node, ast.Call)
            and (ast.unparse(node.func) == "next" or getattr(node.func, "attr", "") == "join")
            and len(node.args) == 1
        ):
            inner = node.args[0]
            if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "iter":
                inner = inner.args[0]
            elif ast.unparse(node.func) == "next":
                inner = None
        if inner is not None and _is_set(function, inner):
            yield Slip(
                node,
                f"depends on the order of a set in `{short(node)}`, which differs from process to process",
                "Sort it.",
                covered_by=covered,
            )
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "hash"
            and "hash" not in function.bound
            and function.node.name != "__hash__"
        ):
            yield Slip(
                node,
                f"uses `{short(node)}`: for texts, the number differs between processes",
                "Use the text itself as a seed, or `zlib.crc32`.",
                covered_by=covered,
            )
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") in ("iterdir", "glob", "rglob", "listdir")
            and function.part == "environment"
        ):
            parent, is_ordered = node, any(getattr(one.func, "attr", "") == "sort" for one in function.every(ast.Call))
            while isinstance(parent, ast.expr | ast.comprehension):
                name = ast.unparse(parent.func) if isinstance(parent, ast.Call) else ""
                is_ordered = (
                    is_ordered
                    or isinstance(parent, ast.DictComp | ast.SetComp)
                    or name in ("sorted", "set", "any", "all", "len", "sum", "max", "min")
                )
                parent = function.parent(parent)
            if not is_ordered and isinstance(parent, ast.Return):
                yield Slip(
                    node,
                    f"returns `{short(node)}` in the order of the file system, which differs between machines",
                    "Sort it.",
                    covered_by=covered,
                )


def _is_set(function: Function, node: ast.AST) -> bool:
    node = function.origin(node)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitAnd | ast.BitOr | ast.Sub) and (
            _is_set(function, node.left) or _is_set(function, node.right)
        )
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("set", "frozenset")
    )


def sql_slips(function: Function, code: Code) -> Iterator[Slip]:
    """Find mistakes in SQL: LIKE for a whole value, a statement without WHERE, `= NULL`, OR next to AND, and a column
    that only one tool compares ignoring case."""
    for node, sql in find_sql(function):
        call = function.parent(node)
        given = {
            one.id
            for each in (call.args[1:] if isinstance(call, ast.Call) else ())
            for one in ast.walk(each)
            if isinstance(one, ast.Name)
        }
        raw = given & set(function.parameters) - set(function.assigned)
        if (
            (
                re.search(r"(?i)\blike\s+[?:]", sql)
                and not re.search(r"(?i)\bescape\b", sql)
                and "%" not in ast.unparse(call or node)
            )
            and raw
            and not function.mentions(r"wildcard|pattern|%|part of|contains|begins")
        ):
            yield Slip(
                node,
                f"compares `{min(raw)}` with LIKE: `_` and `%` in the value stand for any characters, so another row "
                f"may be found",
                "Use `=`, with lower() on both sides if case does not matter.",
                covered_by=("environment.found",),
            )
        if (
            re.match(r"(?i)\s*(?:update|delete)\b", sql)
            and not re.search(r"(?i)\bwhere\b", sql)
            and function.is_tool
            and function.parameters
        ) and not function.mentions(r"\ball\b|every|each|everything|empty|clear"):
            yield Slip(
                node,
                f"changes every row: `{sql.strip()[:60]}` has no WHERE",
                "Name the row in a WHERE.",
                covered_by=("data.unreachable",),
            )
        where = re.split(r"(?i)\bwhere\b", sql, maxsplit=1)[1:]
        if where and re.search(r"(?i)(?:[^<>!]=|!=|<>)\s*null\b", where[0]):
            yield Slip(
                node, f"compares with NULL by `=` in `{where[0].strip()[:60]}`, which is never true", "Write IS NULL."
            )
        flat = re.sub(r"\([^()]*\)", "", re.sub(r"(?i)between\s+\S+\s+and", "between", where[0])) if where else ""
        if re.search(r"(?i)\band\b", flat) and re.search(r"(?i)\bor\b", flat):
            yield Slip(
                node,
                f"mixes AND and OR without parentheses in `{where[0].strip()[:80]}`: AND binds more tightly than OR",
                "Put parentheses around the OR.",
            )
        for column in re.findall(r"(?i)\b(\w+)\s*=\s*\?", where[0]) if where and function.is_tool else ():
            for other in code.of_class(function):
                shared = set(other.parameters) & raw
                folded = any(
                    re.search(
                        rf"(?i)\b(?:lower|upper)\(\s*{column}\s*\)\s*=|\b{column}\b\s*=\s*\?\s*collate\s+nocase", each
                    )
                    for _, each in find_sql(other)
                )
                if (
                    folded
                    and other.is_tool
                    and column.lower() in shared
                    and not re.search(rf"(?i)\(\s*{column}\s*\)", where[0])
                ):
                    yield Slip(
                        node,
                        f"compares {column} exactly, but {other.node.name} ignores its case: one of them finds values "
                        f"that the other does not find",
                        "Compare in the same way in both.",
                        covered_by=("environment.writes_lost",),
                    )


def written_into_sql(function: Function, code: Code) -> Iterator[Slip]:
    """Find `f"... WHERE name = '{name}'"`, in which an apostrophe in the value ends the quoted text."""
    for node in function.every(ast.JoinedStr, ast.Call, ast.BinOp):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "\0" for one in node.values)
            parts = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            text, parts = (
                re.sub(r"\{\w*\}", "\0", str(function.constant(node.func.value))),
                [*node.args, *(one.value for one in node.keywords)],
            )
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            text, parts = str(function.constant(node.left)).replace("%s", "\0"), [node.right]
        else:
            continue
        given = {one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)} & set(
            function.parameters
        )
        raw = {one for one in given if "str" in function.parameters[one] and "Literal" not in function.parameters[one]}
        is_sql = (
            re.search(r"(?is)\b(?:select\b.+\bfrom|update\b.+\bset|insert\s+into|delete\s+from)\b", text) is not None
        )
        is_escaped = any("replace(" in ast.unparse(part) for part in parts) or ".replace(" in ast.unparse(function.node)
        if is_sql and re.search(r"'[^'\0]*\0[^']*'", text) and raw and not is_escaped and function.tools:
            yield Slip(
                node,
                f"writes `{min(raw)}` into the SQL between quotes: an apostrophe, as in O'Hara, ends the text, and "
                f"the statement fails or does something else",
                "Pass it as a parameter: `execute('... = ?', (value,))`.",
                covered_by=("environment.tools_answer",),
            )


def replaces_the_file(function: Function, code: Code) -> Iterator[Slip]:
    """Find a tool that should append to a file, but opens it in a mode that overwrites it."""
    first = (ast.get_docstring(function.node) or "").partition("\n")[0]
    if not (re.match(r"(?:append|add)(?:_|$)|log_", function.node.name) or re.match(r"(?i)(?:append|add)s?\b", first)):
        return
    reads = any(
        getattr(call.func, "attr", "") in ("read_text", "read", "readlines", "read_bytes")
        for call in function.every(ast.Call)
    )
    for call in function.every(ast.Call):
        modes = [
            function.constant(one)
            for one in (*call.args[:2], *(each.value for each in call.keywords if each.arg == "mode"))
        ]
        opens = ast.unparse(call.func).split(".")[-1] == "open" and any(
            isinstance(one, str) and re.fullmatch("wb?t?", one) for one in modes
        )
        if (opens or getattr(call.func, "attr", "") == "write_text") and not reads:
            yield Slip(
                call,
                f"replaces the file with `{short(call)}`, although it should add to it",
                "Open it with mode 'a'.",
                covered_by=("data.unreachable",),
            )


def tables_that_disagree(function: Function, code: Code) -> Iterator[Slip]:
    """Find two tables of a module that should be inverses of each other but disagree, and units that are missing from a
    table."""
    tables: Mapping[str, dict] = {
        name: one for name, one in function.module.namespace.items() if isinstance(one, dict) and len(one) > 1
    }
    for node in function.every(ast.Name):
        table = tables.get(node.id, {}) if node.id not in function.bound else {}
        for name, other in tables.items() if table else ():
            try:
                is_inverse = (
                    set(table) == set(other.values())
                    and set(table.values()) == set(other)
                    and not set(table) & set(table.values())
                )
                wrong = [key for key in table if other[table[key]] != key] if is_inverse else []
            except TypeError:
                continue
            if wrong:
                yield Slip(
                    node,
                    f"reads `{node.id}`, which disagrees with `{name}`: {wrong[0]!r} is {table[wrong[0]]!r} in one "
                    f"table, but {table[wrong[0]]!r} is {other[table[wrong[0]]]!r} in the other",
                    f"Derive one from the other: `{{value: key for key, value in {name}.items()}}`.",
                    cause=" ".join(sorted((node.id, name))),
                    covered_by=("environment.offers",),
                )
    for call in function.every(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and len(call.args) == 2:
            table, default, parent = (
                function.constant(call.func.value),
                function.constant(call.args[1]),
                function.parent(call),
            )
            numbers = list(table.values()) if isinstance(table, dict) else []
            is_numbers = len(numbers) > 1 and all(isinstance(one, int | float) for one in numbers)
            is_factor = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult | ast.Div | ast.FloorDiv)
            wider = [
                (name, set(other) - set(table))
                for name, other in tables.items()
                if is_numbers and set(table) < set(other) and all(other[key] == table[key] for key in table)
            ]
            if is_factor and default in numbers and default not in (0, 1) and wider:
                name, missing = wider[0]
                yield Slip(
                    call,
                    f"uses {default!r} for keys that `{ast.unparse(call.func.value)}` does not have, such as "
                    f"{min(missing, key=str)!r}, which {name} has",
                    f"Use {name}, and raise an error for a missing key.",
                    covered_by=("environment.agreement", "environment.amounts"),
                )


PATTERNS = (
    index_of_another_list,
    key_written_otherwise,
    prefix_for_key,
    order_of_a_set,
    sql_slips,
    written_into_sql,
    tables_that_disagree,
    replaces_the_file,
)
