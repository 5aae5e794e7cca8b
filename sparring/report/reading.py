"""Read the content of a run's folder, except its episodes. This does not run episodes, the model or the recipe's
code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sparring.config import Config
from sparring.diagnosis import SYMPTOMS
from sparring.diagnosis.diagnose import Diagnosis
from sparring.diagnosis.reading import diagnose_run
from sparring.errors import DataError
from sparring.evaluation.claim import Claim
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.of_run import claim_of_run, evaluated
from sparring.evaluation.report import EvaluationReport
from sparring.findings import Finding
from sparring.run_folders import RunFolder
from sparring.run_folders.run_folder import VOCABULARY
from sparring.run_folders.stored import read_metrics, read_rows
from sparring.runtime.json_values import parse_json
from sparring.training.retention import describe_removed

LAST_STEPS = 10
"""The number of last steps over which a value is averaged, because one step is noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The content of one run's files."""

    path: Path
    config: Config
    manifest: Mapping[str, Any]
    status: Mapping[str, Any]
    metrics: Mapping[int, Mapping[str, float]]
    """The metrics by step, in ascending order. For a repeated step, these are the last values."""
    resumed_after: tuple[int, ...]
    """The steps from which the run was resumed."""
    findings: tuple[Finding, ...]
    """The findings of checks and detectors, in the order in which they were reported. Findings that a resumed run
    repeated appear once. Findings of detectors that only the diagnosis reports come last."""
    diagnosis: Diagnosis | None
    """The diagnosis, or None if nothing was trained."""
    held_out: EvaluationReport | None
    """The newest report that compares policies, or the newest of all if none does."""
    validations: Mapping[int, Evaluation]
    """The validation results by step, in ascending order."""
    claim: Claim
    """The claim that these evaluations support."""
    vocabulary: Sequence[str] | None
    """The text of each token id, or None if the run did not store it."""
    unread: tuple[str, ...]
    """The reasons why files could not be read."""
    removed: str | None
    """What `sparring runs prune` has removed, or None."""

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.resolve().name

    @property
    def last_step(self) -> int:
        """The last step with metrics."""
        return max(self.metrics, default=0)

    @property
    def symptoms(self) -> tuple[Finding, ...]:
        """The findings that only the diagnosis reports, with the most important one first."""
        found = () if self.diagnosis is None else self.diagnosis.findings
        return tuple(one for one in found if one.rule in SYMPTOMS)

    @property
    def first(self) -> Finding | None:
        """The finding that the diagnosis names as the first one to act on, or None."""
        return None if self.diagnosis is None else self.diagnosis.first

    @property
    def was_checked(self) -> bool:
        """Whether the recipe was checked before training."""
        return bool(self.manifest.get("checked"))

    def holds(self, finding: Finding) -> bool:
        """Return whether a finding still applies. Findings from before training always apply; later findings apply
        unless the diagnosis lists them as past."""
        past = () if self.diagnosis is None else self.diagnosis.past
        return finding.step is None or all(one.rule != finding.rule for one in past)

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) pairs of a metric, for the steps with a value."""
        return [(step, metrics[name]) for step, metrics in self.metrics.items() if metrics.get(name) is not None]

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of the metrics that start with `prefix`."""
        return sorted({name for metrics in self.metrics.values() for name in metrics if name.startswith(prefix)})

    def late(self, name: str) -> float | None:
        """Return the mean of a metric over the last steps that have it."""
        values = [value for _, value in self.series(name)[-LAST_STEPS:]]
        return fmean(values) if values else None

    def total(self, name: str) -> float:
        """Return the sum of a metric over all steps."""
        return sum(value for _, value in self.series(name))


def read_run(path: Path) -> Record:
    """Read a run's folder. Raises DataError if the folder is not a run, or if its recipe, metrics or findings are
    damaged."""
    folder = RunFolder(path)
    unread: list[str] = []
    numbers = path / "metrics.jsonl"
    metrics, resumed_after = read_metrics(numbers) if numbers.is_file() else ({}, ())
    config = folder.config()
    evaluations = evaluated(folder)
    claim = claim_of_run(folder, evaluations)
    unread += evaluations.unread
    diagnosis = diagnose_run(path) if config.is_trainable else None
    return Record(
        path=path,
        config=config,
        manifest=_manifest(folder, unread),
        status=folder.status(),
        metrics=metrics,
        resumed_after=resumed_after,
        findings=_merged((*_findings(path / "findings.jsonl"), *claim.findings), diagnosis),
        diagnosis=diagnosis,
        held_out=evaluations.held_out,
        validations=evaluations.validations,
        claim=claim,
        vocabulary=_vocabulary(path / VOCABULARY, unread),
        unread=tuple(unread),
        removed=describe_removed(path),
    )


def _findings(path: Path) -> Iterator[Finding]:
    for where, row in read_rows(path, is_growing=True) if path.is_file() else ():
        try:
            yield Finding.from_json(row)
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: {error!r}; this is not a finding that `sparring` wrote.") from error


def _merged(reported: Sequence[Finding], diagnosis: Diagnosis | None) -> tuple[Finding, ...]:
    """Return the reported findings, each once, and then what detectors find in the whole run that was not reported."""
    findings = {(one.rule, one.severity, one.step): one for one in reported}
    known = {(rule, severity) for rule, severity, _ in findings}
    found = () if diagnosis is None else diagnosis.findings
    others = (one for one in found if one.rule not in SYMPTOMS and (one.rule, one.severity) not in known)
    return (*findings.values(), *others)


def _manifest(folder: RunFolder, unread: list[str]) -> Mapping[str, Any]:
    try:
        return folder.manifest()
    except (DataError, OSError) as error:
        unread.append(str(error))
        return {}


def _vocabulary(path: Path, unread: list[str]) -> Sequence[str] | None:
    return _json(path, list, unread) if path.is_file() else None


def _json(path: Path, kind: type, unread: list[str]) -> Any:
    try:
        content = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        unread.append(f"{path} cannot be read as JSON: {error}.")
        return None
    if isinstance(content, kind):
        return content
    unread.append(f"{path} does not contain what `sparring` writes there.")
    return None
