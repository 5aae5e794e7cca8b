"""What several runs and checkpoints did, from their files: one table, one plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.errors import DataError
from sparring.evaluation.claim import Claim
from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.evaluation.of_run import claims_of_runs
from sparring.evaluation.policies import run_and_step, run_path
from sparring.evaluation.report import read_report
from sparring.evaluation.rescoring import newest
from sparring.tracking import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row: whose evaluation, which, and how it differs from the first row that played some of the same tasks."""

    source: str
    """As it was named."""
    run: str
    """The run's folder; of a file that was named, that."""
    evaluation: Evaluation
    difference: Comparison | None
    """None for the first row of its tasks."""

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "run": self.run,
            "evaluation": self.evaluation.as_json(),
            "difference": None if self.difference is None else self.difference.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossRuns:
    """Rows of a table, and the validations of each run over its steps."""

    rows: tuple[Compared, ...]
    curves: dict[str, tuple[Evaluation, ...]]
    """By run, in the order of steps."""
    claims: tuple[tuple[tuple[str, ...], Claim], ...] = ()
    """What runs show that are named as a whole; those that differ in their seed alone together."""

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": [row.as_json() for row in self.rows],
            "curves": {
                run: [{"step": one.policy_version, "success": interval_json(one.success)} for one in curve]
                for run, curve in self.curves.items()
            },
            "claims": [{"runs": list(runs), **claim.as_json()} for runs, claim in self.claims],
        }


def across_runs(sources: Sequence[str]) -> AcrossRuns:
    """`RUN`: its newest held-out evaluation, without one its last validation. `RUN@STEP`: the validation after that step.
    A .json file: the evaluation that it holds. Raises DataError for what has none."""
    found = [(source, evaluation) for source in dict.fromkeys(sources) for evaluation in _evaluations(source)]
    rows: list[Compared] = []
    for source, evaluation in found:
        first = next((row.evaluation for row in rows if _is_comparable(row.evaluation, evaluation)), None)
        difference = None if first is None else compare(first, evaluation)
        rows.append(Compared(source=source, run=_run(source), evaluation=evaluation, difference=difference))
    # A run of which two checkpoints are named has one curve.
    runs = dict.fromkeys(_run(source) for source in sources if not source.endswith(".json"))
    curves = {run: _validations(RunFolder(Path(run))) for run in runs}
    whole = [source for source in sources if not source.endswith(".json") and run_and_step(source)[1] is None]
    families = claims_of_runs(RunFolder(run_path(source)) for source in dict.fromkeys(whole))
    return AcrossRuns(
        rows=tuple(rows), curves={name: curve for name, curve in curves.items() if curve},
        claims=tuple((tuple(str(run.path) for run in runs), claim) for runs, claim in families),
    )  # fmt: skip


def _run(source: str) -> str:
    return source if source.endswith(".json") else str(run_path(run_and_step(source)[0]))


def _is_comparable(one: Evaluation, other: Evaluation) -> bool:
    """Whether they share tasks and were sampled alike."""
    alike = one.temperature == other.temperature or None in (one.temperature, other.temperature)
    return alike and not set(one.task_ids).isdisjoint(other.task_ids)


def _evaluations(source: str) -> tuple[Evaluation, ...]:
    if source.endswith(".json"):
        return read_report(Path(source)).evaluations
    name, step = run_and_step(source)
    run = RunFolder(run_path(name))
    validations = {one.policy_version: one for one in _validations(run)}
    if step is not None:
        if not step.isdigit() or int(step) not in validations:
            there = ", ".join(map(str, validations)) or "none"
            raise DataError(
                f"{source}: {run.path} has no validation after step {step}; it has {there}. `sparring eval {run.path} --policy "
                f"@{step}` plays that checkpoint, if it was kept."
            )
        return (validations[int(step)],)
    if any(run.evaluations.glob("held_out-*.json")):
        number = int(newest(run).rpartition("-")[2])
        return read_report(run.evaluations / f"held_out-{number:03}.json").evaluations
    if not validations:
        raise DataError(f"{run.path} has no evaluation yet; `sparring eval {run.path}` makes one.")
    return (list(validations.values())[-1],)


def _validations(run: RunFolder) -> tuple[Evaluation, ...]:
    paths = sorted(run.evaluations.glob("validation-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return tuple(one for path in paths for one in read_report(path).evaluations)
