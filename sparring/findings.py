"""What checks before training, detectors during it and diagnosis after it have to say: one shape for all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sparring.types import Json

Seen = TypeVar("Seen")
"""What a rule looks at."""


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
    """Of a finding during training: the step after which it was seen, of several the last."""
    first_step: int | None = None
    """The step after which it was seen first, where that was an earlier one."""
    trajectories: tuple[str, ...] = ()
    """Of the same: ids of some trajectories that show it."""

    settings: Mapping[str, Json] = field(default_factory=dict)
    """The change as settings, by key path: what `sparring runs branch` takes as KEY=VALUE. Empty where no setting mends it."""
    before_step: int | None = None
    """Where the change mends nothing from later on: a branch must begin with a checkpoint from before this step."""
    confirm_after: int | None = None
    """Steps of training after which the change can be judged."""

    def as_json(self) -> dict[str, Json]:
        """Without the fields that do not apply: `step` and `trajectories` where no step was trained, an empty change."""
        content = asdict(self)
        if self.step is None:
            del content["step"], content["trajectories"]
        if self.first_step is None:
            del content["first_step"]
        if not self.settings:
            del content["settings"]
        for name in ("before_step", "confirm_after"):
            if content[name] is None:
                del content[name]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Finding:
        """Of `as_json`. Raises LookupError, TypeError or ValueError for what is none."""
        return cls(
            rule=content["rule"], severity=Severity(content["severity"]), symptom=content["symptom"],
            evidence=content["evidence"], change=content["change"], confirm=content["confirm"], step=content.get("step"),
            first_step=content.get("first_step"),
            trajectories=tuple(content.get("trajectories", ())), settings=content.get("settings", {}),
            before_step=content.get("before_step"), confirm_after=content.get("confirm_after"),
        )  # fmt: skip


# Without slots, which the alias of a generic class cannot be made with: it writes down what it was called as.
@dataclass(frozen=True, kw_only=True)
class Rule(Generic[Seen]):
    """A pure function to findings, with its name."""

    name: str
    """`family.rule`"""
    rule: Callable[[Seen], Iterable[Finding]]

    @property
    def meaning(self) -> str:
        """What it looks at: the function's docstring."""
        return inspect.getdoc(self.rule) or ""


def register(
    rules: dict[str, Rule[Seen]], name: str
) -> Callable[[Callable[[Seen], Iterable[Finding]]], Callable[[Seen], Iterable[Finding]]]:
    """A decorator that adds a function to `rules`, in the order in which they speak."""

    def registered(rule: Callable[[Seen], Iterable[Finding]]) -> Callable[[Seen], Iterable[Finding]]:
        assert name not in rules, f"two rules are called {name}"
        rules[name] = Rule(name=name, rule=rule)
        return rule

    return registered
