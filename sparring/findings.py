"""The findings of the checks before training, of the detectors during training and of the diagnosis after training, and
the rules that produce these findings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sparring.types import Json

Subject = TypeVar("Subject")
"""The object that a rule inspects."""
Found = TypeVar("Found")
"""The result of a rule's function."""

RENAMED = {
    "foothold.baseline": "baseline.success",
    "foothold.limits": "baseline.limits",
    "foothold.refusals": "baseline.refusals",
    "foothold.reference": "baseline.reference",
    "environment.twins": "environment.isolation",
}
"""Maps the names of rules in runs and reports of earlier versions to the rules."""


class Severity(StrEnum):
    """The severity of a finding. Only an ERROR prevents training from starting."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem: the evidence for it, what to change, and how to confirm that the change worked."""

    rule: str
    """The name of the rule, such as `environment.same_twice`. docs/checks.md and docs/detectors.md describe each
    rule."""
    severity: Severity
    symptom: str
    """One sentence that states what is wrong, and where."""
    evidence: Mapping[str, Json]
    """The exact values: task ids, rows, requests, results, expected results."""
    change: str
    """The one thing to change."""
    confirm: str
    """A sentence that states how to confirm that the change helped."""
    step: int | None = None
    """The last training step after which the problem was seen. None before training."""
    first_step: int | None = None
    """The first step after which the problem was seen, if it is earlier than `step`."""
    trajectories: tuple[str, ...] = ()
    """The ids of some trajectories that show the problem. Empty before training."""

    settings: Mapping[str, Json] = field(default_factory=dict)
    """The change as settings by key path, as `sparring runs branch` accepts them (KEY=VALUE). Empty if no setting fixes
    the problem."""
    before_step: int | None = None
    """A branch must start from a checkpoint before this step, because the change cannot fix what happened after it.
    Otherwise None."""
    confirm_after: int | None = None
    """The number of training steps after which the effect of the change can be seen."""
    is_accepted: bool = False
    """Whether the recipe accepts the finding (`checks.accept`), so that it does not stop a training."""

    @property
    def label(self) -> str:
        """The severity, and whether the recipe accepts the finding."""
        return f"accepted {self.severity.value}" if self.is_accepted else self.severity.value

    def as_json(self) -> dict[str, Json]:
        """Return the finding without the fields that do not apply, such as `step` before training, or empty
        `settings`."""
        content = asdict(self)
        if self.step is None:
            del content["step"], content["trajectories"]
        if self.first_step is None:
            del content["first_step"]
        if not self.settings:
            del content["settings"]
        if not self.is_accepted:
            del content["is_accepted"]
        for name in ("before_step", "confirm_after"):
            if content[name] is None:
                del content[name]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Finding:
        """Return the finding that `as_json` wrote. Raises LookupError, TypeError or ValueError for other content."""
        return cls(
            rule=RENAMED.get(content["rule"]) or content["rule"],
            severity=Severity(content["severity"]),
            symptom=content["symptom"],
            evidence=content["evidence"],
            change=content["change"],
            confirm=content["confirm"],
            step=content.get("step"),
            first_step=content.get("first_step"),
            trajectories=tuple(content.get("trajectories", ())),
            settings=content.get("settings", {}),
            before_step=content.get("before_step"),
            confirm_after=content.get("confirm_after"),
            is_accepted=content.get("is_accepted", False),
        )


@dataclass(frozen=True)
class Rule(Generic[Subject, Found]):
    """One rule of the checks, the detectors or the diagnosis.

    `Found` is the result type of its function: an iterable of findings, or an awaitable that resolves to such an
    iterable.
    """

    name: str
    """`family.rule`"""
    function: Callable[[Subject], Found]
    needs: tuple[str, ...] = ()
    """The parts of the subject that must exist for the rule to run."""
    seconds: float = 15.0
    """The time limit of a check. Detectors and diagnosis rules have none."""

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def meaning(self) -> str:
        """The docstring of the function. It states what the rule inspects and what a finding means."""
        return inspect.getdoc(self.function) or ""


def rules_by_name(*rules: Rule[Subject, Found]) -> dict[str, Rule[Subject, Found]]:
    """Return the rules keyed by name, in the given order. Raises ValueError if two rules have the same name."""
    table = {rule.name: rule for rule in rules}
    if len(table) < len(rules):
        names = [rule.name for rule in rules]
        raise ValueError(f"two rules have the same name: {sorted({name for name in names if names.count(name) > 1})}")
    return table
