"""Tables that several commands show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparring.cli.command import say
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.evaluation.comparison import Comparison
    from sparring.evaluation.evaluation import Evaluation


def show_evaluations(
    evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison], *, title: str = "held-out tasks"
) -> None:
    from sparring.evaluation.tables import comparison_table, notes, outcome_table, pass_table, result_table

    console = Console()
    console.table(*result_table(evaluations, title=title))
    for table in (outcome_table(evaluations), pass_table(evaluations), comparison_table(evaluations, comparisons)):
        if table is not None:
            console.table(*table)
    for line in notes(evaluations, comparisons):
        say(line)


def evidence_lines(evidence: Mapping[str, Any]) -> str:
    """Evidence for a cell of a table; the JSON document has all of it."""
    lines = [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in evidence.items()]
    return "\n".join(line if len(line) <= 160 else f"{line[:157]}..." for line in lines)
