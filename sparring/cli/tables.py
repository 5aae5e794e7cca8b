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

    greedy = {one.label for one in evaluations if one.temperature == 0}
    # Sampled rows come first, because users get sampled answers.
    rows = sorted(evaluations, key=lambda one: one.label in greedy)
    differences = sorted(comparisons, key=lambda one: one.after in greedy)
    console = Console()
    console.table(*result_table(rows, title=title))
    for table in (outcome_table(rows), pass_table(rows), comparison_table(rows, differences)):
        if table is not None:
            console.table(*table)
    for line in notes(evaluations, comparisons):
        say(line)


def format_evidence(evidence: Mapping[str, Any]) -> str:
    """Return evidence as the text of a table cell, with long values truncated. The JSON document contains the full
    values."""
    lines = [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in evidence.items()]
    return "\n".join(line if len(line) <= 160 else f"{line[:157]}..." for line in lines)
