"""A comparison of several runs and checkpoints, read from their files, as one table and one plot."""

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
from sparring.run_folders import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row of the table: an evaluation, its source, and its difference from the first comparable row."""

    source: str
    """The source as the caller wrote it."""
    run: str
    """The run's folder, or the evaluation file if the source is a file."""
    evaluation: Evaluation
    difference: Comparison | None
    """The difference from the first row with the same tasks. None for that first row."""

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return {
            "source": self.source,
            "run": self.run,
            "evaluation": self.evaluation.as_json(),
            "difference": None if self.difference is None else self.difference.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossRuns:
    """The rows of a table, and the validation results of each run over its steps."""

    rows: tuple[Compared, ...]
    curves: dict[str, tuple[Evaluation, ...]]
    """The validation results of each run, in the order of steps."""
    claims: tuple[tuple[tuple[str, ...], Claim], ...] = ()
    """The claims of runs that were named without a step; runs that differ only in their seed share one claim."""

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return {
            "rows": [row.as_json() for row in self.rows],
            "curves": {
                run: [{"step": one.policy_version, "success": interval_json(one.success)} for one in curve]
                for run, curve in self.curves.items()
            },
            "claims": [{"runs": list(runs), **claim.as_json()} for runs, claim in self.claims],
        }


def across_runs(sources: Sequence[str]) -> AcrossRuns:
    """Load and compare the evaluations that `sources` name.

    `RUN` stands for the newest held-out evaluation of a run, or for its last validation result if it has none.
    `RUN@STEP` stands for the validation result after that step. The path of a .json file stands for the evaluation in
    that file. Raises DataError if a source has no evaluation.
    """
    found = [(source, evaluation) for source in dict.fromkeys(sources) for evaluation in _evaluations(source)]
    rows: list[Compared] = []
    for source, evaluation in found:
        first = next((row.evaluation for row in rows if _is_comparable(row.evaluation, evaluation)), None)
        difference = None if first is None else compare(first, evaluation)
        rows.append(Compared(source=source, run=_run(source), evaluation=evaluation, difference=difference))
    # A run has one curve, even if several of its checkpoints are named.
    runs = dict.fromkeys(_run(source) for source in sources if not source.endswith(".json"))
    curves = {run: _validations(RunFolder(Path(run))) for run in runs}
    whole = [source for source in sources if not source.endswith(".json") and run_and_step(source)[1] is None]
    families = claims_of_runs(RunFolder(run_path(source)) for source in dict.fromkeys(whole))
    return AcrossRuns(
        rows=tuple(rows),
        curves={name: curve for name, curve in curves.items() if curve},
        claims=tuple((tuple(str(run.path) for run in runs), claim) for runs, claim in families),
    )


def _run(source: str) -> str:
    return source if source.endswith(".json") else str(run_path(run_and_step(source)[0]))


def _is_comparable(one: Evaluation, other: Evaluation) -> bool:
    """Return whether two evaluations share tasks and used the same sampling settings and the same settings during
    episodes."""
    alike = one.temperature == other.temperature or None in (one.temperature, other.temperature)
    return alike and one.plays_with == other.plays_with and not set(one.task_ids).isdisjoint(other.task_ids)


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
                f"{source}: {run.path} has no validation result after step {step} (results exist after: {there}). "
                f"If that checkpoint was kept, `sparring eval {run.path} --policy @{step}` evaluates it."
            )
        return (validations[int(step)],)
    if any(run.evaluations.glob("held_out-*.json")):
        number = int(newest(run).rpartition("-")[2])
        return read_report(run.evaluations / f"held_out-{number:03}.json").evaluations
    if not validations:
        raise DataError(f"{run.path} has no evaluation yet; evaluate it with `sparring eval {run.path}`.")
    return (list(validations.values())[-1],)


def _validations(run: RunFolder) -> tuple[Evaluation, ...]:
    paths = sorted(run.evaluations.glob("validation-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return tuple(one for path in paths for one in read_report(path).evaluations)
