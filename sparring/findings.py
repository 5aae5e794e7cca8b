"""What checks before training, detectors during it and diagnosis after it have to say: one shape for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from sparring.types import Json


class Severity(StrEnum):
    """How much a finding weighs. Only an ERROR stops a training that has not begun."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, with what a person needs to see it, change it and know that the change worked."""

    rule: str
    """Which rule found it: `environment.same_twice`; docs/checks.md and docs/detectors.md have a paragraph on each."""
    severity: Severity
    symptom: str
    """One sentence: what is wrong, and where."""
    evidence: Mapping[str, Json]
    """The exact values: task ids, rows, what was asked, what came, what was expected."""
    change: str
    """The one thing to change."""
    confirm: str
    """How to see that it helped."""
    step: int | None = None
    """Of a finding during training: the step after which it was seen."""
    trajectories: tuple[str, ...] = ()
    """Of the same: ids of some trajectories that show it."""

    def as_json(self) -> dict[str, Json]:
        """Without `step` and `trajectories` where no step was trained."""
        content = asdict(self)
        return content if self.step is not None else {k: v for k, v in content.items() if k not in _OF_TRAINING}


_OF_TRAINING = ("step", "trajectories")
