"""Patterns of mistakes in rewards and scorers: what they accept, what they leave out, and which parts of the answer
they read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from sparring.checks.rules.source.code import Code, Function, Slip, field_key
from sparring.checks.rules.source.logic import short
from sparring.types import Json

_REFERENCE = re.compile(r"\.fields\b")
_GIVEN = re.compile(r"\.messages\b|\.transitions\b|\.final_state\b|\.turns\b")
_NUMBERS_ONLY = re.compile(r"[-+?\\d.,()\[\]*:{}0-9|$£€s]*")


class Origins:
    """The local names in a function that hold the task's reference, and those that hold the episode's answer."""

    def __init__(self, function: Function, code: Code, *, is_inner: bool = False) -> None:
        self.function, self._code = function, code
        self._names: dict[str, set[str]] = {name: set() for name in function.parameters}
        for caller, call in () if is_inner else _calls(code).get(function.node.name, ()):
            if caller is not function:
                outer = Origins(caller, code, is_inner=True)
                pairs = [
                    *zip(function.parameters, call.args, strict=False),
                    *((one.arg, one.value) for one in call.keywords if one.arg),
                ]
                for name, value in pairs:
                    self._names.setdefault(name, set()).update(outer.of(value))
        for _ in range(3):
            for node in function.every(ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension):
                value = node.iter if isinstance(node, ast.For | ast.comprehension) else node.value
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if (
                        isinstance(target, ast.Tuple)
                        and isinstance(value, ast.Tuple)
                        and len(target.elts) == len(value.elts)
                    ):
                        for one, its in zip(target.elts, value.elts, strict=True):
                            self._bind(one, its)
                    elif value is not None:
                        self._bind(target, value)

    def _bind(self, target: ast.AST, value: ast.AST) -> None:
        for one in ast.walk(target):
            if isinstance(one, ast.Name):
                self._names.setdefault(one.id, set()).update(self.of(value))

    def of(self, node: ast.AST) -> set[str]:
        """Return the origins of an expression: `reference`, `given`, both or neither."""
        text = ast.unparse(node)
        found = {"reference"} if _REFERENCE.search(text) else set()
        found |= {"given"} if _GIVEN.search(text) else set()
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                found |= self._names.get(one.id, set())
                for called in self._code.named(one.id) if isinstance(self.function.parent(one), ast.Call) else ():
                    inner = ast.unparse(called.node)
                    found |= {"reference"} if _REFERENCE.search(inner) else {"given"} if _GIVEN.search(inner) else set()
        return found

    def is_text(self, node: ast.AST, depth: int = 3) -> bool:
        """Return True if an expression is the text of a message or a part of it, here or in a user function."""
        node = self.function.origin(node)
        while True:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr
                in ("strip", "lower", "upper", "casefold", "rstrip", "lstrip", "replace", "removesuffix")
            ):
                node = self.function.origin(node.func.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and node.args:
                node = self.function.origin(node.args[0])
            elif isinstance(node, ast.BoolOp):
                node = self.function.origin(node.values[0])
            elif isinstance(node, ast.IfExp):
                node = self.function.origin(node.body)
            else:
                break
        text = ast.unparse(node)
        if re.search(r"\[['\"]content['\"]\]$|\.get\(['\"]content['\"](?:, ['\"]{2})?\)$|\.content$", text):
            return True
        if re.search(r"\.group\(|\[1\]$", text) is not None and "given" in self.of(node):
            return True
        return depth > 0 and (self._returns_text(node, depth) or self._is_given_text(node, depth))

    def _returns_text(self, node: ast.AST, depth: int) -> bool:
        """Return True if a called function returns the text of a message."""
        called = (
            self._code.named(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else []
        )
        return len(called) == 1 and any(
            one.value is not None and find_origins(called[0], self._code).is_text(one.value, depth - 1)
            for one in called[0].every(ast.Return)
        )

    def _is_given_text(self, node: ast.AST, depth: int) -> bool:
        """Return True if a call to this function passes the text of a message as this parameter."""
        names = list(self.function.parameters)
        if not isinstance(node, ast.Name) or node.id not in names:
            return False
        at = names.index(node.id)
        return any(
            find_origins(caller, self._code).is_text(call.args[at], depth - 1)
            for caller, call in _calls(self._code).get(self.function.node.name, ())
            if caller is not self.function and len(call.args) > at
        )


def find_origins(function: Function, code: Code) -> Origins:
    known = code.shared.setdefault("origins", {})
    if function not in known:
        known[function] = Origins(function, code)
    return known[function]


def _calls(code: Code) -> dict[str, list[tuple[Function, ast.Call]]]:
    """Return the calls in rewards and scorers, keyed by the name of the called function."""
    if "calls" not in code.shared:
        found: dict[str, list[tuple[Function, ast.Call]]] = {}
        for one in code.functions:
            for call in one.every(ast.Call) if one.part == "graders" else ():
                found.setdefault(getattr(call.func, "attr", getattr(call.func, "id", "")), []).append((one, call))
        code.shared["calls"] = found
    return code.shared["calls"]


def find_keys(function: Function, node: ast.AST) -> list[str]:
    """Return the fields of a task that an expression reads."""
    return re.findall(r"\.fields(?:\[|\.get\()['\"](\w+)['\"]", ast.unparse(function.origin(node)))


def part_for_whole(function: Function, code: Code) -> Iterator[Slip]:
    """Find graders that accept the reference anywhere in an answer, as a common prefix, or in a message that a tool
    echoed."""
    origins = find_origins(function, code)
    for node in function.every(ast.Compare):
        left, right = node.left, node.comparators[0]
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In):
            wanted, seen = origins.of(left), origins.of(right)
            if (
                wanted == {"reference"}
                and "given" in seen
                and re.search(r"\[['\"]result['\"]\]|\.get\(['\"]result['\"]", ast.unparse(right))
            ):
                yield Slip(
                    node,
                    f"pays for `{short(left)}` anywhere in a tool's result: a tool that repeats its arguments is also "
                    f"paid",
                    "Check the tool, its arguments and its success, or check the final state.",
                )
            elif wanted == {"reference"} and origins.is_text(right):
                yield Slip(
                    node,
                    f"accepts `{short(left)}` anywhere in the text as the answer: 1 is in 10, and a list of all "
                    f"answers contains the right one",
                    "Extract the answer from the text, and compare it as a whole.",
                )
            texts = [one for key in find_keys(function, right) for one in code.fields.get(key, ())]
            parts = [one for one in texts if isinstance(one, str)]
            if origins.is_text(left) and seen == {"reference"} and parts:
                where = (
                    ""
                    if len(parts) == len(texts)
                    else f" in {len(parts)} of {len(texts)} tasks, in which it is not a list"
                )
                yield Slip(
                    node,
                    f"accepts any part of `{short(right)}`{where}: `in` finds {parts[0][:2]!r} in {parts[0]!r}",
                    "Compare with `==`." if not where else "Use a list in each task.",
                    {"references": parts[:4]},
                )
        cuts = [_first_part(function, one) for one in (left, right)]
        others = [one for one in function.every(ast.Compare) if one is not node and "[" in ast.unparse(one)]
        if (
            len(node.ops) == 1
            and isinstance(node.ops[0], ast.Eq)
            and None not in cuts
            and cuts[0] == cuts[1]
            and not others
        ):
            yield Slip(
                node, f"compares only the first {cuts[0]} characters, in `{short(node)}`", "Compare the whole values."
            )
    for call in function.every(ast.Call):
        if (
            (
                isinstance(call.func, ast.Attribute)
                and call.func.attr in ("startswith", "endswith")
                and len(call.args) == 1
            )
            and {*origins.of(call.args[0])} == {"reference"}
            and origins.is_text(call.func.value)
        ):
            yield Slip(
                call,
                f"accepts a text that {call.func.attr.replace('swith', 's with')} `{short(call.args[0])}` as the "
                f"answer",
                "Compare the whole text.",
            )


def _first_part(function: Function, node: ast.AST) -> int | None:
    is_cut = (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Slice)
        and node.slice.lower is None
        and node.slice.upper is not None
    )
    value = function.constant(node.slice.upper) if is_cut else None  # type: ignore[union-attr]
    return value if isinstance(value, int) and value > 0 else None


def share_of_one_side(function: Function, code: Code) -> Iterator[Slip]:
    """Find scores that divide the number of correct items only by the number of given items, or only by the number of
    required items."""
    origins = find_origins(function, code)
    for node in function.every(ast.BinOp):
        divisor = function.origin(node.right)
        if not isinstance(node.op, ast.Div) or not (
            isinstance(divisor, ast.Call) and ast.unparse(divisor.func) == "len" and divisor.args
        ):
            continue
        above = function.origin(node.left)
        if not _counts_shared_items(above) or _compares_whole(function, origins):
            continue
        below = origins.of(divisor.args[0])
        if below == {"reference"} and "final_state" in _whole_text(function, above):
            continue  # a list of actions is not a list of guesses
        others = _list_counted(function, [divisor.args[0], *_list_arguments(above)])
        if len(below) != 1 or any(origins.of(one) != below for one in others):
            continue
        what = (
            "missing items are not counted: a single safe item earns everything"
            if below == {"given"}
            else "additional items are not counted: a list of everything earns everything"
        )
        yield Slip(
            node,
            f"divides the number of right items only by `{short(divisor)}`, so {what}",
            "Divide by the union of both, or use F1.",
        )


def _counts_shared_items(node: ast.AST) -> bool:
    is_set = any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.BitAnd) for one in ast.walk(node))
    return is_set or ".intersection(" in ast.unparse(node)


def _list_counted(function: Function, known: Sequence[ast.AST]) -> list[ast.expr]:
    """Return the expressions whose length the function reads, except the known ones."""
    lengths = [one for one in function.every(ast.Call) if ast.unparse(one.func) == "len" and len(one.args) == 1]
    return [call.args[0] for call in lengths if not any(one is call.args[0] for one in known)]


def _list_arguments(node: ast.AST) -> list[ast.expr]:
    return [one for call in ast.walk(node) if isinstance(call, ast.Call) for one in call.args]


def _whole_text(function: Function, node: ast.AST) -> str:
    """Return an expression as text, with its names replaced by what they stand for."""
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    return " ".join([ast.unparse(node), *(ast.unparse(function.origin(one)) for one in names)])


def _compares_whole(function: Function, origins: Origins) -> bool:
    """Return True if a function also requires that the answer is exactly the reference."""
    return any(
        isinstance(one.ops[0], ast.Eq)
        and {*origins.of(one.left), *origins.of(one.comparators[0])} == {"given", "reference"}
        for one in function.every(ast.Compare)
    )


def unpaired(function: Function, code: Code) -> Iterator[Slip]:
    """Find `all(... for a, b in zip(given, wanted))` with lists of different lengths, and `all()` of an empty
    sequence."""
    origins = find_origins(function, code)
    text = ast.unparse(function.node)
    for call in function.every(ast.Call):
        name = ast.unparse(call.func)
        loop = (
            call.args[0]
            if name in ("all", "sum") and call.args and isinstance(call.args[0], ast.GeneratorExp | ast.ListComp)
            else None
        )
        if loop is None:
            continue
        through = loop.generators[0].iter
        if isinstance(through, ast.Call) and ast.unparse(through.func) == "zip" and not through.keywords:
            yield from _pairs_of_lists(origins, through, text)
        # The content of the initial final state is not known here.
        elif (
            name == "all"
            and origins.of(through) == {"given"}
            and _decides(function, call)
            and "final_state" not in text
        ):
            yield from _true_for_nothing(function, call, through)


def _pairs_of_lists(origins: Origins, through: ast.Call, text: str) -> Iterator[Slip]:
    """Yield a `zip` of given and required items if the code does not compare their numbers."""
    kinds = [origins.of(one) for one in through.args]
    parts = [ast.unparse(one) for one in through.args]
    if (
        {"given"} in kinds
        and {"reference"} in kinds
        and not any(re.search(rf"len\({re.escape(one)}\)", text) for one in parts)
    ):
        yield Slip(
            through,
            f"compares the pairs of `{short(through)}`, but nothing after the end of the shorter list",
            "Pass `strict=True` after comparing the lengths, or compare the lists.",
        )


def _true_for_nothing(function: Function, call: ast.Call, through: ast.expr) -> Iterator[Slip]:
    """Yield an `all()` over given items if the code does not test whether there are any."""
    place = ast.unparse(through).partition("(")[0].removesuffix(".items").removesuffix(".values")
    if not any(
        re.search(rf"(?<![\w.]){re.escape(place)}(?![\w.(])", ast.unparse(test)) for test in _tests(function, call)
    ):
        yield Slip(
            call,
            f"is true for an empty `{short(through)}` in `{short(call)}`: an episode that does nothing is paid",
            "Require that it is not empty, or iterate over the required items.",
        )


def _decides(function: Function, call: ast.AST) -> bool:
    """Return True if a call is the whole return value."""
    node = function.parent(call)
    while isinstance(node, ast.Call | ast.IfExp | ast.keyword | ast.Dict):
        node = function.parent(node)
    return isinstance(node, ast.Return)


def _tests(function: Function, call: ast.AST) -> list[ast.AST]:
    tests = [one.test for one in function.every(ast.If, ast.IfExp)]
    return [
        *tests,
        *(one for one in function.every(ast.BoolOp)),
        *(one for one in function.every(ast.Call) if ast.unparse(one.func) in ("len", "bool")),
    ]


def pattern_cuts_answers(function: Function, code: Code) -> Iterator[Slip]:
    """Find a regular expression that does not match the tasks' own reference answers."""
    keys = {key for one in function.every(ast.Subscript, ast.Call) for key in find_keys(function, one)}
    answers = [
        one
        for key in sorted(keys)
        for one in code.fields.get(key, ())
        if isinstance(one, str | int | float) and not isinstance(one, bool)
    ]
    for call, pattern in _patterns(function):
        cut: list[Json] = []
        lost: list[Json] = []
        read = 0
        for answer in dict.fromkeys(answers):
            found = pattern.search(_written(pattern.pattern, str(answer)))
            text = (
                None
                if found is None
                else found[1]
                if pattern.groups == 1
                else found[0]
                if pattern.groups == 0
                else str(answer)
            )
            if text is None:
                lost.append(answer)
            elif (
                _number(text) is not None and _number(str(answer)) is not None and _number(text) != _number(str(answer))
            ):
                cut.append((answer, text))
            else:
                read += 1
        is_number = all(_number(str(one)) is not None for one in answers)
        if cut and (read or len(cut) < len(answers)):
            yield Slip(
                call,
                f"reads {cut[0][1]!r} from the right answer {cut[0][0]!r} with `{pattern.pattern}`: for {len(cut)} of "
                f"{len(set(answers))} tasks, it does not read the whole right answer",
                "Let the pattern match the whole answer, up to the closing tag.",
                {"pattern": pattern.pattern, "answers": [one for one, _ in cut[:4]]},
            )
        elif lost and read and is_number:
            yield Slip(
                call,
                f"does not find the right answer {lost[0]!r} with `{pattern.pattern}`, nor the right answers of "
                f"{len(lost)} of {len(set(answers))} tasks",
                "Let the pattern match each form of the answers.",
                {"pattern": pattern.pattern, "answers": lost[:4]},
            )


def _patterns(function: Function) -> Iterator[tuple[ast.Call, re.Pattern[str]]]:
    for call in function.every(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in (
            "search",
            "findall",
            "match",
            "fullmatch",
            "finditer",
        ):
            continue
        value = function.constant(call.func.value)
        if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
            yield call, value
        elif (
            ast.unparse(call.func.value) in ("re", "regex")
            and call.args
            and isinstance(text := function.constant(call.args[0]), str)
        ):
            try:
                yield call, re.compile(text, re.DOTALL)
            except re.error:
                continue


def _written(pattern: str, answer: str) -> str:
    """Return the answer as the pattern expects it: between its tags, or after its words."""
    tag = re.search(r"<([a-zA-Z_]+)>", pattern)
    return f"<{tag[1]}>{answer}</{tag[1]}>" if tag else answer


def _number(text: str) -> float | None:
    text = text.replace(",", "").strip()
    return float(text) if re.fullmatch(r"-?\d+(?:\.\d+)?", text) else None


def first_number(function: Function, code: Code) -> Iterator[Slip]:
    """Find code that reads the first number in a message as the answer."""
    origins = find_origins(function, code)
    for call, pattern in _patterns(function):
        attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        text = next((one for one in call.args if origins.is_text(one)), None)
        firsts = [
            one
            for one in function.every(ast.Subscript)
            if function.constant(one.slice) == 0 and function.origin(one.value) is call
        ]
        takes_first = attribute == "search" or (attribute == "findall" and bool(firsts))
        if text is not None and takes_first and r"\d" in pattern.pattern and _NUMBERS_ONLY.fullmatch(pattern.pattern):
            yield Slip(
                call,
                f"reads the first number in the text as the answer, with `{pattern.pattern}`: another number before "
                f"the answer is read in its place",
                "Request the answer in a tag, and read all of it.",
            )


def folded_on_one_side(function: Function, code: Code) -> Iterator[Slip]:
    """Find a lower-case answer that is compared with references containing capitals."""
    origins = find_origins(function, code)
    for node in function.every(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.In):
            continue
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            folded = function.origin(one)
            fold = _name_fold(folded)
            inner = ast.unparse(function.origin(other))
            keys = find_keys(function, other)
            values = [each for key in keys for each in code.fields.get(key, ()) if isinstance(each, str)]
            wrong = [each for each in values if fold and getattr(each, fold)() != each]
            if (
                wrong
                and "given" in origins.of(one)
                and not re.search(r"\.(?:lower|upper|casefold|title)\(", inner)
                and len(keys) == 1
                and re.search(r"\]$|\)$", inner)
            ):
                yield Slip(
                    node,
                    f"compares `{short(folded)}` with the reference {wrong[0]!r}, which {fold}() never returns: "
                    f"{len(wrong)} of {len(values)} right answers are rejected",
                    f"Write `.{fold}()` on both sides.",
                    {"references": wrong[:4]},
                )


def _name_fold(node: ast.AST) -> str:
    """Return `lower` for `text.lower()`, and "" for an expression that does not change the case of a text."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.args:
        return ""
    return node.func.attr if node.func.attr in ("lower", "upper", "casefold", "title") else ""


def text_against_number(function: Function, code: Code) -> Iterator[Slip]:
    """Find a string from the answer that is compared with a reference number. The two are never equal."""
    origins = find_origins(function, code)
    for node in function.every(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
            continue
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            place = function.origin(other)
            key = field_key(place)
            values = code.fields.get(key or "", ())
            if values and all(type(each) in (int, float) for each in values) and origins.is_text(one):
                yield Slip(
                    node,
                    f"compares the text `{short(one)}` with the reference {values[0]!r}, a number: they are never "
                    f"equal",
                    "Convert the text to a number, and count anything else as wrong.",
                    {"references": list(values[:4])},
                )


PATTERNS = (
    part_for_whole,
    share_of_one_side,
    unpaired,
    pattern_cuts_answers,
    first_number,
    folded_on_one_side,
    text_against_number,
)
