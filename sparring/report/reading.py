"""What a run's folder says, except its episodes. Nothing is played or loaded, and no code of the recipe runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sparring.config import Config
from sparring.diagnosis import Diagnosis, diagnose
from sparring.errors import DataError
from sparring.evaluation.claim import Claim
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.of_run import claim_of_run, evaluated
from sparring.evaluation.report import EvaluationReport
from sparring.findings import Finding
from sparring.tracking import RunFolder
from sparring.tracking.run_folder import MANIFEST, VOCABULARY
from sparring.tracking.stored import read_metrics, rows

LAST_STEPS = 10
"""Over which a number at the end of a run is taken: one step alone is noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run, read."""

    path: Path
    config: Config
    manifest: Mapping[str, Any]
    status: Mapping[str, Any]
    metrics: Mapping[int, Mapping[str, float]]
    """By step, in order; of a step that was played again the last."""
    resumed_after: tuple[int, ...]
    """Steps that the run went on from, again."""
    findings: tuple[Finding, ...]
    """In the order in which they were said; what a resumed run said anew, once."""
    diagnosis: Diagnosis | None
    """None of a run that trains nothing."""
    held_out: EvaluationReport | None
    """The newest that compares policies; the newest of all where none does."""
    validations: Mapping[int, Evaluation]
    """By step, in order."""
    claim: Claim
    """What these evaluations show."""
    vocabulary: Sequence[str] | None
    """What each token id stands for; None in runs that did not keep it."""
    unread: tuple[str, ...]
    """Why some file is not in here."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def last_step(self) -> int:
        return max(self.metrics, default=0)

    @property
    def was_checked(self) -> bool:
        """Whether the recipe was checked before it was trained."""
        return bool(self.manifest.get("checked"))

    def holds(self, finding: Finding) -> bool:
        """Whether what was said of a step is so of the run as it stands; what was said before training is."""
        past = () if self.diagnosis is None else self.diagnosis.past
        return finding.step is None or all(one.rule != finding.rule for one in past)

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric where it was measured."""
        return [(step, metrics[name]) for step, metrics in self.metrics.items() if metrics.get(name) is not None]

    def names(self, prefix: str) -> list[str]:
        """Of the metrics below it, sorted."""
        return sorted({name for metrics in self.metrics.values() for name in metrics if name.startswith(prefix)})

    def late(self, name: str) -> float | None:
        """Mean of a metric over the last steps that have it."""
        values = [value for _, value in self.series(name)[-LAST_STEPS:]]
        return fmean(values) if values else None

    def total(self, name: str) -> float:
        """Sum of a metric over all steps."""
        return sum(value for _, value in self.series(name))


def read_run(path: Path) -> Record:
    """Raises DataError for a folder that is no run, and for a damaged recipe, metrics or findings."""
    folder = RunFolder(path)
    unread: list[str] = []
    numbers = path / "metrics.jsonl"
    metrics, resumed_after = read_metrics(numbers) if numbers.is_file() else ({}, ())
    config = folder.config()
    evaluations = evaluated(folder)
    claim = claim_of_run(folder, evaluations)
    unread += evaluations.unread
    return Record(
        path=path,
        config=config,
        manifest=_manifest(path / MANIFEST, unread),
        status=folder.status(),
        metrics=metrics,
        resumed_after=resumed_after,
        findings=(
            *{(one.rule, one.severity, one.step): one for one in _findings(path / "findings.jsonl")}.values(),
            *claim.findings,
        ),
        diagnosis=diagnose(path) if config.is_trainable else None,
        held_out=evaluations.held_out,
        validations=evaluations.validations,
        claim=claim,
        vocabulary=_vocabulary(path / VOCABULARY, unread),
        unread=tuple(unread),
    )


def _findings(path: Path) -> Iterator[Finding]:
    for where, row in rows(path, is_growing=True) if path.is_file() else ():
        try:
            yield Finding.from_json(row)
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"{where}: {error!r}; this is no finding as `sparring` writes them.") from error


def _manifest(path: Path, unread: list[str]) -> Mapping[str, Any]:
    return _json(path, dict, unread) or {}


def _vocabulary(path: Path, unread: list[str]) -> Sequence[str] | None:
    return _json(path, list, unread) if path.is_file() else None


def _json(path: Path, kind: type, unread: list[str]) -> Any:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        unread.append(f"{path} cannot be read as JSON: {error}.")
        return None
    if isinstance(content, kind):
        return content
    unread.append(f"{path} does not hold what `sparring` writes there.")
    return None
