"""Detectors beside a run: told each step as a tracker is, asked after it, silent about what they have said."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import final

from sparring.detectors.registry import DETECTORS, Detector
from sparring.findings import Finding, Severity
from sparring.history import History, Regrading, read_steps
from sparring.logs import get_logger
from sparring.tracking.stored import rows
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)


@final
class Watch:
    """A tracker that keeps the history of a run and asks the detectors about it. What has no trajectories is not for it."""

    def __init__(self, history: History, detectors: Collection[Detector] | None = None) -> None:
        self.history = history
        self._detectors = tuple(DETECTORS.values() if detectors is None else detectors)
        self._said: set[tuple[str, str, Severity]] = set()
        self._first_said: dict[str, int] = {}
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
        """Of a run that goes on: what was said before is not said again."""
        rule, step = str(finding["rule"]), int(finding.get("step") or 0)
        if not any(one.step == step and _key(one.as_json()) == _key(finding) for one in self.history.said):
            self.history.said.append(Finding.from_json(finding))
        self._said.add(_key(finding))
        self._first_said[rule] = min(step, self._first_said.get(rule, step))

    def first_said(self, rule: str) -> int:
        """The step after which a detector first spoke, as a warning maybe. Raises KeyError for one that has not."""
        return self._first_said[rule]

    def log_artifact(self, name: str, content: Json) -> None:
        """Artifacts are for files."""

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        """It says nothing of what was learned."""

    def close(self) -> None:
        """Nothing is open."""

    def resume(self, run: Path, step: int) -> None:
        """Take in what a run did and what was said of it, up to `step`. Raises DataError for damaged files."""
        for at, metrics, train, validation in read_steps(run) if (run / "metrics.jsonl").is_file() else ():
            if at <= step:
                self.history.add(at, metrics=metrics, train=train, validation=validation)
        findings = run / "findings.jsonl"
        for _, finding in rows(findings) if findings.is_file() else ():
            if (finding.get("step") or 0) <= step:
                self.log_finding(finding)

    def findings(self) -> list[Finding]:
        """What is new after the steps so far: each rule once as a warning and once as an error, of every subject, and as a note
        only before it has warned."""
        if not self.history.steps:
            return []
        new = []
        for one in self._detectors:
            for finding in self._asked(one):
                if finding in self.history.said:
                    continue
                key = _key(finding.as_json())
                is_weaker = finding.severity is Severity.NOTE and any(
                    rule == finding.rule and severity is not Severity.NOTE for rule, _, severity in self._said
                )
                if "withdrawn" in finding.evidence:
                    # What was said before may be said again, or is no longer what should be heard.
                    is_weaker = False
                    self._said = {one for one in self._said if one[0] != finding.rule}
                if key not in self._said and (*key[:2], Severity.ERROR) not in self._said and not is_weaker:
                    self._said.add(key)
                    self.history.said.append(finding)
                    new.append(finding)
        return new

    def _asked(self, one: Detector) -> Sequence[Finding]:
        try:
            return tuple(one.rule(self.history))
        except Exception as error:  # noqa: BLE001 - whatever a user's scanner raises, the run goes on
            if one.name not in self._failed:
                self._failed.add(one.name)
                logger.warning("the detector %s failed (%r); the run goes on without it", one.name, error)
            return ()


def _key(finding: Mapping[str, Json]) -> tuple[str, str, Severity]:
    """The rule, what of several things that it may speak of it speaks of, and how much it weighs."""
    evidence: Mapping[str, Json] = finding.get("evidence") or {}
    return str(finding["rule"]), str(evidence.get("subject", "")), Severity(finding["severity"])


def watched(
    run: Path,
    *,
    success_threshold: float = 1.0,
    detectors: Collection[Detector] | None = None,
    trials: Regrading | None = None,
) -> list[Finding]:
    """What the detectors say of a stored run, step by step, each time knowing the steps up to it only. Raises DataError."""
    watch = Watch(History(success_threshold=success_threshold, trials=trials), detectors)
    said = []
    for step, metrics, train, validation in read_steps(run):
        watch.history.add(step, metrics=metrics, train=train)
        said += watch.findings()
        # Validation comes after the step.
        watch.history.add(step, validation=validation)
        said += watch.findings()
    return said
