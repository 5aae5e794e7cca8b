"""Runs the detectors after each step of a training run, or over a stored run, and reports each finding once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import final

from sparring.detectors import DETECTORS, Detector
from sparring.findings import Finding, Severity
from sparring.run_folders.history import History, Regrader, read_steps
from sparring.run_folders.stored import read_rows
from sparring.runtime.logs import get_logger
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)


@final
class DetectorRunner:
    """A tracker that keeps the history of a run and applies the detectors to it.

    For each subject, a rule is reported at most once as a note, once as a warning and once as an error.
    """

    def __init__(self, history: History, detectors: Collection[Detector] | None = None) -> None:
        self.history = history
        self._detectors = tuple(DETECTORS.values() if detectors is None else detectors)
        self._reported: set[tuple[str, str, Severity]] = set()
        self._first_steps: dict[str, int] = {}
        self._failed: set[str] = set()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.history.add(step, metrics=metrics)

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None:
        trajectories = [one for group in groups for one in group.trajectories]
        if split == "train":
            self.history.add(step, train=trajectories)
        elif split == "validation":
            self.history.add(step, validation=trajectories)

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        """Add a finding from an earlier part of the run, so that it is not reported again."""
        rule, step = str(finding["rule"]), int(finding.get("step") or 0)
        if not any(one.step == step and _key(one.as_json()) == _key(finding) for one in self.history.findings):
            self.history.findings.append(Finding.from_json(finding))
        self._reported.add(_key(finding))
        self._first_steps[rule] = min(step, self._first_steps.get(rule, step))

    def first_step(self, rule: str) -> int:
        """Return the step after which a detector first reported a finding of any severity. Raises KeyError if there is
        none."""
        return self._first_steps[rule]

    def log_artifact(self, name: str, content: Json) -> None:
        """Do nothing, because artifacts are for trackers that write files."""

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        """Do nothing, because the status does not concern the detectors."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def resume(self, run: Path, step: int) -> None:
        """Load the steps and the findings of a run up to `step`. Raises DataError if files are damaged."""
        for at, metrics, train, validation in read_steps(run) if (run / "metrics.jsonl").is_file() else ():
            if at <= step:
                self.history.add(at, metrics=metrics, train=train, validation=validation)
        findings = run / "findings.jsonl"
        for _, finding in read_rows(findings) if findings.is_file() else ():
            if (finding.get("step") or 0) <= step:
                self.log_finding(finding)

    def findings(self) -> list[Finding]:
        """Return the findings that are new after the latest step.

        For each subject, each rule is reported at most once as a warning and once as an error. It is reported as a note
        only if no warning was reported before.
        """
        if not self.history.steps:
            return []
        new = []
        for one in self._detectors:
            for finding in self._apply(one):
                if finding in self.history.findings:
                    continue
                key = _key(finding.as_json())
                is_weaker = finding.severity is Severity.NOTE and any(
                    rule == finding.rule and severity is not Severity.NOTE for rule, _, severity in self._reported
                )
                if "withdrawn" in finding.evidence:
                    # The mechanism has changed: earlier findings of this rule no longer count as reported.
                    is_weaker = False
                    self._reported = {one for one in self._reported if one[0] != finding.rule}
                if key not in self._reported and (*key[:2], Severity.ERROR) not in self._reported and not is_weaker:
                    self._reported.add(key)
                    self.history.findings.append(finding)
                    new.append(finding)
        return new

    def _apply(self, one: Detector) -> Sequence[Finding]:
        try:
            return tuple(one.function(self.history))
        except Exception as error:  # noqa: BLE001 - the run continues, whatever a user's scanner raises
            if one.name not in self._failed:
                self._failed.add(one.name)
                logger.warning("the detector %s failed (%r); the run continues without this detector", one.name, error)
            return ()


def _key(finding: Mapping[str, Json]) -> tuple[str, str, Severity]:
    """Return the rule, its subject and the severity. A finding with the same key is reported only once."""
    evidence: Mapping[str, Json] = finding.get("evidence") or {}
    return str(finding["rule"]), str(evidence.get("subject", "")), Severity(finding["severity"])


def run_detectors(
    run: Path,
    *,
    success_threshold: float = 1.0,
    detectors: Collection[Detector] | None = None,
    trials: Regrader | None = None,
) -> list[Finding]:
    """Return the detectors' findings on a stored run, as they would be reported during training.

    Detectors see only the steps up to the current one. By default, all `detectors` run. `trials` confirm mechanisms, as
    in training. Raises DataError if files are damaged.
    """
    runner = DetectorRunner(History(success_threshold=success_threshold, trials=trials), detectors)
    reported = []
    for step, metrics, train, validation in read_steps(run):
        runner.history.add(step, metrics=metrics, train=train)
        reported += runner.findings()
        # Log validation after the step.
        runner.history.add(step, validation=validation)
        reported += runner.findings()
    return reported
