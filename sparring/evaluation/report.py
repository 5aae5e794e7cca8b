"""The file of an evaluation, with the policies evaluated on the same tasks and the differences between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.errors import DataError
from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.evaluation import Evaluation
from sparring.findings import Finding
from sparring.metering.usage import EndpointUsage
from sparring.pages.html import table
from sparring.run_folders.formats import require_format
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import create_folder, write_private
from sparring.tracking import LocalTracker
from sparring.types import TrajectoryGroup

FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EvaluationReport:
    """Evaluations on the same tasks and seeds. The report compares the last policy with each of the other policies at
    equal settings."""

    evaluations: tuple[Evaluation, ...]
    comparisons: tuple[Comparison, ...]
    path: Path
    rescored: Mapping[str, str] | None = None
    """The file of the stored episodes and the scorer, if stored episodes were scored again. Otherwise None."""
    findings: tuple[Finding, ...] = ()
    """The findings of the evaluation, such as many lost episodes."""
    endpoints: tuple[EndpointUsage, ...] = ()
    """The requests and tokens of the evaluation's endpoints: policies, LLM judges, simulated users."""
    seen_in_training: int = 0
    """The number of held-out tasks that are also in the training split, with the same content."""

    def __repr__(self) -> str:
        return "\n  ".join([f"<EvaluationReport {self.path}:", *map(repr, self.evaluations)]) + ">"

    def _repr_html_(self) -> str:
        """Return the evaluations and the differences between them as markup, which notebooks show."""
        from sparring.evaluation.tables import comparison_table, result_table  # tables of several reports import this

        compared = comparison_table(self.evaluations, self.comparisons)
        shown = [result_table(self.evaluations, title=self.path.stem), *([] if compared is None else [compared])]
        return "".join(table(*one) for one in shown)

    def as_json(self, prices: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return the report as JSON data, with the cost if `prices` are known."""
        return {
            "format": FORMAT,
            **({} if self.rescored is None else {"rescored": dict(self.rescored)}),
            "evaluations": [evaluation.as_json() for evaluation in self.evaluations],
            "comparisons": [comparison.as_json() for comparison in self.comparisons],
            "findings": [finding.as_json() for finding in self.findings],
            "endpoints": [one.as_json(prices or {}) for one in self.endpoints],
            "seen_in_training": self.seen_in_training,
        }

    def write(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Write the report and its episodes under the same name and number. The report is written last."""
        split, _, number = self.path.stem.rpartition("-")
        tracker = LocalTracker(self.path.parent.parent)
        tracker.log_groups(int(number), groups, split=split)
        tracker.close()
        create_folder(self.path.parent, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.part")
        write_private(temporary, json.dumps(self.as_json(), indent=1) + "\n")
        temporary.replace(self.path)


def comparisons(evaluations: Sequence[Evaluation]) -> tuple[Comparison, ...]:
    """Compare the last policy with each of the other policies at the same sampling settings.

    A policy that does not sample (a script) is compared at every setting. Rows without a common task are left out.
    """
    last = [one for one in evaluations if one.name == evaluations[-1].name]
    pairs = [
        (before, after)
        for after in last
        for before in evaluations
        if before.name != after.name and (before.temperature in (None, after.temperature) or after.temperature is None)
    ]
    return tuple(
        compare(before, after) for before, after in pairs if not set(before.task_ids).isdisjoint(after.task_ids)
    )


def read_report(path: Path) -> EvaluationReport:
    """Read a report, or a validation result, which is a single evaluation. Raises DataError if the file is neither."""
    try:
        content = parse_json(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; specify an evaluation of a run, evaluations/*.json.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. Specify an evaluation of a run.") from error
    try:
        require_format(path, content["format"], FORMAT, otherwise="evaluate the run again")
        rows = content.get("evaluations", [content])
        return EvaluationReport(
            evaluations=tuple(map(Evaluation.from_json, rows)),
            comparisons=tuple(map(Comparison.from_json, content.get("comparisons", ()))),
            path=path,
            rescored=content.get("rescored"),
            findings=tuple(map(Finding.from_json, content.get("findings", ()))),
            endpoints=tuple(EndpointUsage.from_json(one) for one in content.get("endpoints", ())),
            seen_in_training=content.get("seen_in_training", 0),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is not an evaluation that `sparring` wrote ({error!r}); specify an evaluation of a run."
        ) from error
