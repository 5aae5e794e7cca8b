"""Reference answers that follow from what tools say in most tasks, and in a few do not, for no reason that can be seen."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from sparring.checks.golds import Golds
from sparring.checks.rows import decimals, is_equal, number_of
from sparring.checks.sources import Read
from sparring.findings import Finding, Severity
from sparring.types import Json

MOST = 0.75
"""Share of the tasks whose answer a value must be, before the others are called wrong."""
FEWEST = 8
"""Such tasks, and twice as many answers as this part of it."""
FEWEST_OTHERS = 2
MOST_NUMBERS = 16
"""Of a task, that are added, subtracted and multiplied."""
MOST_KINDS = 8
"""Values of a text by which tasks may be told apart."""


def few_that_differ(golds: Golds, reads: Sequence[Read]) -> Iterator[Finding]:
    """A finding for each part of the answer that one value is in most tasks, and for no visible reason not in the others."""
    values = {read.task.id: _values(read) for read in reads}
    for part in golds.labels():
        labels = {
            name: (gold.parts or {}).get(part) for name, gold in golds.by_task.items() if name in values and gold.parts
        }
        best = _best(part, labels, values)
        if best is None:
            continue
        name, same, others = best
        seen = {task: _visible(one) for task, one in values.items() if task in same or task in others}
        if len(others) < FEWEST_OTHERS or _are_apart(seen, same, others):
            continue
        shown = [{"task": task, "reference_answer": labels[task], name: values[task][name]} for task in others[:4]]
        what = f"the reference answer{f' {part!r}' if part else ''}"
        yield Finding(
            rule="data.labels",
            severity=Severity.WARNING,
            symptom=f"{name} is {what} in {len(same)} of {len(same) + len(others)} tasks and not in the other {len(others)}, "
            f"which no visible feature separates: {shown[0][name]!r} for {labels[others[0]]!r} in task {others[0]}.",
            evidence={"part": part, "value": name, "others": shown},
            change="Correct these reference answers, or let the prompt or a tool show what they follow from.",
            confirm="The value is the reference answer in every task, or a visible feature separates the others.",
        )


def _values(read: Read) -> dict[str, Json]:
    """What tools say in a task, and what is made of two of their numbers, by name."""
    found: dict[str, Json] = {}
    for (tool, roles), name, _, value in read.scalars():
        if not any(role[0] == "answer" for _, role in roles):
            asked = ", ".join(" ".join(role) for _, role in roles)
            found[f"{name or 'what'} of {tool}({asked})"] = value
    for (tool, roles), _, rows in read.rows():
        asked = ", ".join(" ".join(role) for _, role in roles)
        if any(role[0] == "answer" for _, role in roles):
            continue
        found[f"the number of rows of {tool}({asked})"] = len(rows)
        for column in rows[0] if rows else ():
            numbers = [one[0] for row in rows if (one := number_of(row.get(column))) is not None]
            if len(numbers) == len(rows):
                for kind, compute in (("sum", math.fsum), ("mean", fmean), ("least", min), ("most", max)):
                    found[f"the {kind} of {column!r} in {tool}({asked})"] = round(compute(numbers), 9)
    numbers = {
        name: one[0] for name, value in found.items() if not isinstance(value, bool) and (one := number_of(value))
    }
    numbers |= {
        " ".join(role): one[0]
        for role, value in read.values.items()
        if role[0] == "prompt" and (one := number_of(value))
    }
    for (first, one), (second, other) in itertools.combinations(list(numbers.items())[:MOST_NUMBERS], 2):
        found[f"{first} + {second}"] = round(one + other, 9)
        found[f"{first} - {second}"] = round(one - other, 9)
        found[f"{second} - {first}"] = round(other - one, 9)
        found[f"{first} x {second}"] = round(one * other, 9)
    return found


def _best(
    part: str, labels: Mapping[str, Json], values: Mapping[str, Mapping[str, Json]]
) -> tuple[str, list[str], list[str]] | None:
    """The value that is the answer most often, with the tasks in which it is and in which it is not; None where some value always
    is, and where none is often."""
    best: tuple[str, list[str], list[str]] | None = None
    names: dict[str, int] = defaultdict(int)
    for task in labels:
        for name in values[task]:
            names[name] += 1
    for name, count in names.items():
        known = [task for task in labels if name in values[task]]
        if count < 0.9 * len(labels):
            continue
        same = [task for task in known if _is_answer(values[task][name], labels[task])]
        distinct = {str(labels[task]) for task in same}
        if len(same) == len(known) and len(same) >= FEWEST:
            return None
        if len(same) < max(FEWEST, MOST * len(known)) or len(distinct) < len(same) / 3:
            continue
        if best is None or len(same) > len(best[1]):
            best = (name, same, [task for task in known if task not in same])
    return best


def _is_answer(value: Json, label: Json) -> bool:
    """Whether a value is an answer, as exactly as that is written."""
    first, second = number_of(value), number_of(label)
    if first is None or second is None or isinstance(value, bool):
        return is_equal(value, label)
    return abs(first[0] - second[0]) <= 0.51 * 10.0 ** -decimals(label)


def _visible(values: Mapping[str, Json]) -> Mapping[str, Json]:
    return {name: value for name, value in values.items() if value is not None and not isinstance(value, list | dict)}


def _are_apart(seen: Mapping[str, Mapping[str, Json]], same: Sequence[str], others: Sequence[str]) -> bool:
    """Whether something that can be seen is otherwise in all of the few tasks: a number above or below, or a text or two."""
    kinds: list[str] = []
    for name in dict.fromkeys(name for one in seen.values() for name in one):
        mine, theirs = ([seen[task].get(name) for task in tasks] for tasks in (others, same))
        numbers = [[found[0] for one in values if (found := number_of(one)) is not None] for values in (mine, theirs)]
        is_numeric = len(numbers[0]) == len(mine) and len(numbers[1]) == len(theirs)
        if is_numeric and (min(numbers[0]) > max(numbers[1]) or max(numbers[0]) < min(numbers[1])):
            return True
        if len({str(one) for one in (*mine, *theirs)}) <= MOST_KINDS:
            kinds.append(name)
    for first, second in itertools.combinations_with_replacement(kinds, 2):
        mine, theirs = (
            {(str(seen[task].get(first)), str(seen[task].get(second))) for task in tasks} for tasks in (others, same)
        )
        if not mine & theirs:
            return True
    return False
