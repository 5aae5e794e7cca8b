"""Rounding errors in amounts of money: a number should change by the amount in a row, but sometimes it is off by a
cent."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.legal_calls import SLOW_SECONDS
from sparring.checks.evidence.returned_rows import count_decimals, parse_number
from sparring.checks.evidence.snapshots import STATE, Change, View
from sparring.checks.evidence.stored_values import is_number
from sparring.checks.evidence.task_rows import find_tables
from sparring.checks.evidence.write_probes import LOOK, Bench
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

MOST_ROWS = 12
"""The maximum number of rows of one task for which a tool is called."""
FEW_CENTS = 0.025
"""The largest difference from an amount that truncated decimals can explain."""
HARD = ("19.99", "4.35", "8.20", "64.10", "16.40", "1.15")
"""Amounts whose product with 100 is slightly below a whole number in binary floating point."""
FEWEST = 3
"""The minimum number of exact changes before an inexact change is reported."""


async def find_nearly_moved(benches: Sequence[Bench]) -> list[Finding]:
    """Return a finding for each tool whose result usually changes by the amount in the row that the call names, but
    sometimes by a cent more or less.

    The task's own amounts are tried first, then amounts that are inexact in binary floating point.
    """
    if not benches or benches[0].subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    exact: dict[str, set[float]] = defaultdict(set)
    off: dict[str, list[dict[str, Json]]] = defaultdict(list)
    for bench in [*benches, *(replace(one, task=_with_hard_amounts(one.task)) for one in benches)]:
        for bases in bench.bases.values():
            for call, before, after, amounts in await _moves(bench, bases[0].call):
                for one in before.changes_to(after):
                    if (
                        one.path[0] == STATE
                        or not is_number(one.after)
                        or not (one.before is None or is_number(one.before))
                    ):
                        continue
                    by = round(abs(one.after - (one.before or 0)), 6)
                    near = min(amounts, key=lambda amount: abs(amount - by))
                    if math.isclose(near, by, abs_tol=1e-6):
                        exact[one.path[0]].add(by)
                    elif abs(near - by) < FEW_CENTS:
                        off[one.path[0]].append(_shown(bench, call, one, near))
    return [_finding(reader, seen, len(exact[reader])) for reader, seen in off.items() if len(exact[reader]) >= FEWEST]


def _with_hard_amounts(task: Task) -> Task:
    """Return a copy of the task in which the numbers with two decimals in its rows are replaced by the amounts in
    HARD."""
    hard = itertools.cycle(HARD)

    def changed(value: Json, *, is_row: bool = False) -> Json:
        if isinstance(value, Mapping):
            return {name: changed(item, is_row=True) for name, item in value.items()}
        if isinstance(value, list):
            return [changed(item, is_row=True) for item in value]
        if is_row and isinstance(value, str) and re.fullmatch(r"\d+\.\d\d", value):
            return next(hard)
        return float(next(hard)) if is_row and isinstance(value, float) and 0 < count_decimals(value) <= 2 else value

    return replace(task, fields={name: changed(value) for name, value in task.fields.items()})


async def _moves(bench: Bench, base: Call) -> list[tuple[Call, View, View, set[float]]]:
    """Call a tool once for each row of the task's data, all in one episode. Return each call, the views before and
    after it, and the amounts of its row. The list is empty if the call does not have exactly one argument, or if fewer
    than two rows fit this argument."""
    if len(base.arguments) != 1:
        return []
    calls: list[tuple[Call, set[float]]] = []
    for value, amounts in _amounts(bench, str(*base.arguments.values())):
        call = Call(base.tool, dict.fromkeys(base.arguments, value))
        if bench.is_allowed(call):
            calls.append((call, amounts))
    if len(calls) < 2:
        return []
    played = await bench.run([LOOK, *(step for call, _ in calls[:MOST_ROWS] for step in (call, LOOK))])
    return [
        (call, before, after, amounts)
        for (call, amounts), (before, after) in zip(calls, itertools.pairwise(played.views), strict=False)
    ]


def _amounts(bench: Bench, like: str) -> Iterator[tuple[str, set[float]]]:
    """Yield the names of the rows of the table that contains the value `like`, with the decimal numbers in each row."""
    for _, rows in find_tables(bench.task.fields):
        for name in rows[0]:
            if like in [row.get(name) for row in rows]:
                for row in rows:
                    cells = [
                        found[0]
                        for value in row.values()
                        if count_decimals(value) and (found := parse_number(value)) is not None
                    ]
                    if cells and isinstance(row.get(name), str):
                        yield str(row[name]), set(cells)
                return


def _shown(bench: Bench, call: Call, change: Change, amount: float) -> dict[str, Json]:
    return {"task": bench.task.id, "call": str(call), "amount": amount, "changed": change.as_json()}


def _finding(reader: str, seen: Sequence[dict[str, Json]], num_exact: int) -> Finding:
    return Finding(
        rule="environment.amounts",
        severity=Severity.WARNING,
        symptom=f"{reader} does not change by exactly the amount for {len(seen)} of {len(seen) + num_exact} rows: "
        f"cents are lost, for example from {seen[0]['amount']} after {seen[0]['call']}.",
        evidence={"tool": reader, "seen": list(seen[:4])},
        change="Round when decimals become cents (round(x * 100), not int(x * 100)), or use Decimal.",
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )
