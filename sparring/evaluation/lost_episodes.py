"""The check that an evaluation has not lost too many episodes. If it has, the remaining episodes are not a fair sample
of the tasks."""

from __future__ import annotations

from collections import Counter

from sparring.errors import ServiceError
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.report import EvaluationReport
from sparring.ledger.attempts import list_lost_attempts

MOST_REASONS = 3
"""The number of reasons that a message lists. The ledger contains all of them."""


def refuse_lost(report: EvaluationReport, max_lost_share: float) -> None:
    """Raise ServiceError if a row of the report lost more than `max_lost_share` of its episodes."""
    beyond = [one for one in report.evaluations if one.lost_share > max_lost_share]
    if not beyond:
        return
    rows = "; ".join(f"{one.name} ({one.setting}) lost {_share(one)}" for one in beyond)
    labels = {one.label for one in beyond}
    by_start: dict[str, Counter[str]] = {}
    for id, reason, detail in list_lost_attempts(report.path.parent.parent / "ledger.sqlite", "held_out"):
        start = id.split("/")[1]
        by_start.setdefault(start, Counter())[f"{reason}: {detail}"] += 1
    # Only the newest start of each row: the ledger also has earlier evaluations under the same label.
    newest = {start.rpartition("@")[0]: found for start, found in by_start.items()}
    found = sum((reasons for label, reasons in newest.items() if label in labels), Counter[str]())
    reasons = "; ".join(f"{text:.200} ({count} attempts)" for text, count in found.most_common(MOST_REASONS))
    raise ServiceError(
        f"{rows}: more than rollout.max_lost_share = {max_lost_share:g}, so the remaining episodes are not a fair "
        f"sample of the tasks. The reasons: {reasons or 'none is in the ledger'}. The report {report.path} is written, "
        "with bounds. Fix these causes and evaluate again, or allow a larger share with rollout.max_lost_share=SHARE."
    )


def _share(one: Evaluation) -> str:
    return f"{one.num_lost} of {one.num_lost + sum(one.samples)} episodes ({one.lost_share:.0%})"
