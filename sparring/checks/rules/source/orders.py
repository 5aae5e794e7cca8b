"""Patterns of mistakes in order: the wrong end is used, the wrong item is left out, or ties are broken differently from
the description."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sparring.checks.rules.source.code import Code, Function, Slip
from sparring.checks.rules.source.logic import short

_LOW = r"\b(?:cheapest|lowest|smallest|least|shortest|nearest|closest|earliest|minimum|fewest|oldest)\b"
_HIGH = r"\b(?:highest|largest|biggest|longest|most expensive|dearest|farthest|latest|newest|most recent|maximum)\b"
_GOOD = r"score|relevan|rank|hits|rating|match|overlap|similar|count|point"
_BAD = r"distance|price|cost|error|penalt|time|duration"
_COVERED = ("environment.claims", "environment.described", "environment.ends")
_LEFT_OUT = (
    r"\b(?:without|except(?: for)?|leav\w+ out|left out|dropp?\w*|ignor\w+|discard\w*|not counting|minus|disregard\w*)"
)
_LEFT_OUT += r"\s+(?:(?:the|its|their|his|her|your|a|one|single)\s+)*"
_WORST, _BEST = r"(?:lowest|worst|smallest|minimum|weakest)\b", r"(?:highest|best|largest|maximum|strongest)\b"
_TIE = r"(?:\bties?\b|\btied\b|\bequal\b|\bequally\b|\bsame\b|\bdraw\b)"
_FIRST_OF = (
    r"(?:alphabetical\w*|earlie(?:r|st)|late(?:r|st)|lower|lowest|smaller|smallest|first (?:listed|in|by|name)|then by)"
)
_TIE_RULE = re.compile(rf"(?i){_TIE}[^.;\n]{{0,60}}?\b{_FIRST_OF}|\b{_FIRST_OF}[^.;\n]{{0,40}}?\bon (?:a )?ties?\b")
_THEN = re.compile(
    r"(?i)\bby\s+(?:the\s+)?([\w ]{3,30}?)(?:,| and)+\s*(?:then|after that|secondly|next)(?:\s+by)?\s+(?:the\s+)?([\w "
    r"]{3,30})"
)
_PLAIN = frozenset(["the", "number", "of", "their", "its", "then", "and", "by"])


def other_end(function: Function, code: Code) -> Iterator[Slip]:
    """Find code that chooses the most expensive item although the description names the cheapest, or that returns the
    worst item first although the description names the best."""
    text = (ast.get_docstring(function.node) or "").partition("Args:")[0]
    low, high = re.search(_LOW, text, re.IGNORECASE), re.search(_HIGH, text, re.IGNORECASE)
    best = re.search(r"(?i)\b(?:best|most relevant|closest match\w*|highest)\b[^.]{0,20}\bfirst\b", text)
    if not function.is_tool or (best is None and (low is None) == (high is None)):
        return
    found = [(call, *one) for call in function.every(ast.Call) if (one := _chosen(function, call)) is not None]
    takes = any(
        isinstance(one.slice, ast.Slice) or function.constant(one.slice) == 0 for one in function.every(ast.Subscript)
    )
    if len(found) != 1 or any(function.constant(one.slice) == -1 for one in function.every(ast.Subscript)):
        return
    call, falls, key = found[0]
    wants_high = high is not None
    if best is not None:
        is_good, is_bad = re.search(_GOOD, key), re.search(_BAD, key)
        if (is_good is None) == (is_bad is None):
            return
        wants_high = is_good is not None
    if (best is not None or takes or "sort" not in ast.unparse(call)) and falls != wants_high:
        word = (best or low or high)[0]  # type: ignore[index]
        yield Slip(
            call,
            f"uses the wrong end in `{short(call)}`: its description has {word!r}",
            "Reverse the order.",
            covered_by=_COVERED,
        )


def _chosen(function: Function, call: ast.Call) -> tuple[bool, str] | None:
    """Return the key by which a call sorts or chooses, and True if the largest value comes first, or None for other
    calls."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    options = {one.arg: one.value for one in call.keywords}
    if name not in ("min", "max", "sorted", "sort", "nlargest", "nsmallest") or (
        name in ("min", "max")
        and "key" not in options
        and not isinstance(call.args[0] if len(call.args) == 1 else None, ast.GeneratorExp)
    ):
        return None
    falls = name in ("max", "nlargest") or function.constant(options.get("reverse")) is True
    key = options.get("key")
    body = key.body if isinstance(key, ast.Lambda) else key
    first = body.elts[0] if isinstance(body, ast.Tuple) else body
    text = "" if first is None else ast.unparse(first).lower()
    return falls != (isinstance(first, ast.UnaryOp) and isinstance(first.op, ast.USub)), text


def other_one_left_out(function: Function, code: Code) -> Iterator[Slip]:
    """Find code that leaves out the highest value, although according to a description or the prompt the lowest value
    is left out."""
    left_out = {one: node for node in function.nodes if (one := _leaves_out(function, node)) is not None}
    if len(left_out) != 1:
        return
    what, node = left_out.popitem()
    texts = [function.documented, *code.prompts]
    stated = {
        word for word, words in (("lowest", _WORST), ("highest", _BEST)) for text in texts if _is_left_out(words, text)
    }
    if len(stated) == 1 and what not in stated:
        yield Slip(
            node,
            f"leaves out the {what} value in `{short(node)}`, but the description or the prompt leaves out the "
            f"{stated.pop()} value",
            "Leave out the other end.",
        )


def _is_left_out(words: str, text: str) -> bool:
    behind = r"(?:\s+\w+){0,3}\s+(?:is|are|do(?:es)? not|counts? not)\s+(?:\w+\s+)?(?:dropped|left out|ignored|discarded|count)"
    return re.search(rf"(?i){_LEFT_OUT}{words}|\b{words}{behind}", " ".join(text.split())) is not None


def _leaves_out(function: Function, node: ast.AST) -> str | None:
    """Return the end, `lowest` or `highest`, that an expression leaves out: `sorted(x)[1:]`, `x.remove(max(x))`,
    `sum(x) - min(x)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        value, low, high = function.origin(node.value), node.slice.lower, node.slice.upper
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "sorted" and (low is None) != (high is None):
            options = {one.arg: function.constant(one.value) for one in value.keywords}
            at = function.constant(high if low is None else low)
            is_first = low is not None and isinstance(at, int) and at > 0
            is_last = high is not None and isinstance(at, int) and at < 0
            if is_first or is_last:
                return "lowest" if is_first != (options.get("reverse") is True) else "highest"
    call = (
        node.args[0]
        if isinstance(node, ast.Call) and node.args and getattr(node.func, "attr", "") == "remove"
        else None
    )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and ast.unparse(node.left).startswith("sum("):
        call = node.right
    if isinstance(call, ast.Call) and ast.unparse(call.func) in ("min", "max") and len(call.args) == 1:
        return "lowest" if ast.unparse(call.func) == "min" else "highest"
    return None


def other_tie_break(function: Function, code: Code) -> Iterator[Slip]:
    """Find sort keys that are in a different order than in a description or the prompt."""
    texts = [function.documented] if function.is_tool else [*code.prompts, function.documented]
    calls = [
        (call, key.body)
        for call in function.every(ast.Call)
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in ("min", "max", "sorted", "sort")
        for key in (one.value for one in call.keywords if one.arg == "key")
        if isinstance(key, ast.Lambda)
    ]
    for call, body in calls:
        keys = body.elts if isinstance(body, ast.Tuple) else []
        for first, second in (found.groups() for text in texts for found in _THEN.finditer(" ".join(text.split()))):
            at, then = _place_of(first, keys), _place_of(second, keys)
            if at is not None and then is not None and then < at:
                yield Slip(
                    call,
                    f"orders by `{short(keys[then])}` before `{short(keys[at])}`, but the description or the prompt "
                    f"has {first.strip()!r} before {second.strip()!r}",
                    "Put the keys into the described order.",
                )
                return


def _place_of(words: str, keys: list[ast.expr]) -> int | None:
    """Return the index of the key that the words name, or None if they name no key or several keys."""
    wanted = {_stem(one) for one in words.lower().split()} - _PLAIN
    scores = []
    for key in keys:
        own = {_stem(part) for name in re.findall(r"[A-Za-z]+", ast.unparse(key)) for part in name.lower().split("_")}
        own |= (
            {"difference", "diff"}
            if any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub) for one in ast.walk(key))
            else set()
        )
        scores.append((len(wanted & own), -len(own)))
    best = max(scores, default=(0, 0))
    return scores.index(best) if best[0] and scores.count(best) == 1 else None


def _stem(word: str) -> str:
    return re.sub(r"(?:s|es)$", "", word) if len(word) > 3 else word


def tie_not_broken(function: Function, code: Code) -> Iterator[Slip]:
    """Find `max(votes, key=votes.get)` if the prompt states how ties are broken, but no code uses a second key."""
    if function.part != "tasks" or f"ties {function.module.file}" in code.shared:
        return
    rule = next(
        (found for text in code.prompts if (found := _TIE_RULE.search(" ".join(text.split()))) is not None), None
    )
    if rule is None:
        return
    for call in function.every(ast.Call):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        key = next((one.value for one in call.keywords if one.arg == "key"), None)
        if name not in ("min", "max", "sorted", "sort") or key is None:
            continue
        source = function.origin(call.args[0]) if call.args else ast.Constant(None)
        is_sorted = "sorted(" in ast.unparse(source) or (
            isinstance(key, ast.Lambda) and isinstance(key.body, ast.Tuple)
        )
        others = "sorted(" in ast.unparse(function.node).replace(ast.unparse(call), "") or ".sort(" in ast.unparse(
            function.node
        )
        is_plain = not isinstance(key, ast.Lambda) or isinstance(key.body, ast.Subscript | ast.Call)
        if not is_sorted and not others and is_plain and name in ("min", "max"):
            yield Slip(
                call,
                f"uses the first of several equal items in `{short(call)}`, but the prompt has a rule for ties: "
                f"{rule[0][:60]!r}",
                "Add the rule as a second key: `key=lambda x: (..., ...)`.",
                covered_by=("environment.ties",),
            )


PATTERNS = (other_end, other_one_left_out, other_tie_break)
PATTERNS_OF_TASKS = (other_one_left_out, other_tie_break, tie_not_broken)
