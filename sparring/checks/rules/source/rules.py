"""The rules that read the user's source: one for the environment and the tasks, and one for the reward and the
scorer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.source import (
    copies,
    data,
    grading,
    keys,
    limits,
    logic,
    measures,
    orders,
    payments,
    state,
    statements,
    texts,
)
from sparring.checks.rules.source.code import Code, Function, Part, Slip, read_code
from sparring.findings import Finding, Severity

Pattern: TypeAlias = Callable[[Function, Code], Iterator[Slip]]
_PYTHON = (*logic.PATTERNS, *statements.PATTERNS)
PATTERNS: Mapping[Part, Sequence[Pattern]] = {
    "environment": (
        *_PYTHON,
        *texts.PATTERNS,
        *limits.PATTERNS,
        *measures.PATTERNS,
        *state.PATTERNS,
        *keys.PATTERNS,
        *data.PATTERNS,
        *copies.PATTERNS,
        *orders.PATTERNS,
    ),
    "graders": (
        *_PYTHON,
        *grading.PATTERNS,
        *payments.PATTERNS,
        orders.other_one_left_out,
        orders.other_tie_break,
        measures.calendar,
    ),
    "tasks": (
        *_PYTHON,
        *texts.PATTERNS_OF_TASKS,
        *limits.PATTERNS,
        *measures.PATTERNS_OF_TASKS,
        *data.PATTERNS_OF_TASKS,
        *copies.PATTERNS_OF_TASKS,
        *orders.PATTERNS_OF_TASKS,
        keys.order_of_a_set,
    ),
}


async def source_of_environment(subject: Subject) -> Iterable[Finding]:
    """The code of the environment and of the tasks has no mistake that is visible in the source.

    The rule reads the user's own functions that tools and tasks use, without running them. It searches for conditions
    that are always true, errors that are converted to a number, stale caches, duplicate numbers, keys that are looked
    up in a different form than they were written, and arguments and changes that are lost. It also compares the
    functions with descriptions, prompts and the tasks' own values. This covers defaults, limits (including those in
    tables), units, rounding, pages, weekdays, ties, which of several items is left out, numbers sorted as text, and
    -999 in a mean. It does not repeat what an earlier rule has reported.
    """
    return findings(subject, "environment.source", ("environment", "tasks"))


async def source_of_graders(subject: Subject) -> Iterable[Finding]:
    """The code of the reward and the scorer has no mistake that is visible in the source.

    The rule reads the user's own functions without running them. It searches for graders that accept the reference
    answer anywhere in a message, shares that count only one of two lists, patterns that do not match all of the tasks'
    reference answers, lists of different lengths that are compared in pairs, and `all()` of an empty sequence. It also
    searches for parts that are computed but not used, rewards for repeated or refused calls and for lost games, and
    tolerances that are as wide as the range of the answers. It does not read the functions of Sparring or of libraries.
    """
    return findings(subject, "reward.source", ("graders",))


def findings(subject: Subject, rule: str, parts: Sequence[Part]) -> list[Finding]:
    """Return the likely mistakes in these parts of the code, except those that other rules have reported."""
    if "source" not in subject.shared:
        subject.shared["source"] = read_code(subject)
    code: Code = subject.shared["source"]
    found: dict[tuple[str, str, str], tuple[Function, Slip]] = {}
    for function in code.functions:
        for name, slip in slips(function, code) if function.part in parts else ():
            cause = slip.cause or str(_line(function, slip))
            found.setdefault((function.module.file, cause, name), (function, slip))
    reported: list[Finding] = [one for one in subject.shared.get("found", ()) if one.severity is not Severity.NOTE]
    return [_finding(rule, *one) for one in found.values() if not any(_covers(before, *one) for before in reported)]


def slips(function: Function, code: Code) -> Iterator[tuple[str, Slip]]:
    """Yield the likely mistakes in a function, with the names of the patterns that found them."""
    for pattern in PATTERNS[function.part]:
        for slip in pattern(function, code):
            yield pattern.__name__, slip


def _covers(before: Finding, function: Function, slip: Slip) -> bool:
    """Return True if a finding has the same cause as the mistake: it names the same line, or it names the tool and its
    rule covers the mistake."""
    words = f"{before.symptom} {json.dumps(dict(before.evidence), default=str)}"
    if re.search(rf"\b{re.escape(_place(function, slip))}\b", words):
        return True
    names = function.tools or (function.node.name,)
    is_named = any(re.search(rf"\b{re.escape(one)}\b", words) for one in names) or not function.tools
    return before.rule in slip.covered_by and is_named


def _finding(rule: str, function: Function, slip: Slip) -> Finding:
    place = _place(function, slip)
    tools = f" (of {', '.join(function.tools)})" if function.tools and not function.is_tool else ""
    return Finding(
        rule=rule,
        severity=Severity.WARNING,
        symptom=f"{function.name}{tools} {slip.symptom} ({place}).",
        evidence={
            "line": place,
            "code": function.module.lines[_line(function, slip) - 1].strip()[:160],
            **slip.evidence,
        },
        change=f"{place}: {slip.change}",
        confirm=f"Run `sparring check RECIPE --only {rule.partition('.')[0]}` again: the finding is gone.",
    )


def _line(function: Function, slip: Slip) -> int:
    return getattr(slip.node, "lineno", function.node.lineno)


def _place(function: Function, slip: Slip) -> str:
    return f"{Path(function.module.file).name}:{_line(function, slip)}"
