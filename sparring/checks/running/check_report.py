"""The result of a check, from which the table, the JSON document and the page are built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from sparring.findings import Finding, Severity
from sparring.types import Json

SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of one rule and its duration."""

    name: str
    state: Literal["decided", "skipped", "left_out", "undecided"]
    """`skipped`: a requirement of the rule is missing. `left_out`: there was no time for the rule. `undecided`: the
    rule could not gather its evidence, which is a finding."""
    seconds: float = 0.0
    reason: str | None = None
    """The reason why the rule was not decided, or why it used less evidence than usual."""

    def as_json(self) -> dict[str, Json]:
        return {"rule": self.name, "state": self.state, "seconds": round(self.seconds, 3), "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport:
    """The report of a check."""

    recipe: str
    findings: tuple[Finding, ...]
    """The findings, the most severe first, and those last that the recipe accepts."""
    checked: tuple[Checked, ...]
    seconds: float
    measured: Mapping[str, Json] = field(default_factory=dict)
    """The numbers of tasks and tools, the files that the environment reads, with their SHA-256 hashes, and the commits of
    data sets of the hub."""

    def __repr__(self) -> str:
        findings = [f"{one.label}: {one.rule}: {one.symptom}" for one in self.findings]
        return "\n  ".join([f"<CheckReport {self.recipe}: {self.counts}", *findings]) + ">"

    @property
    def counts(self) -> str:
        """The numbers of findings, such as `0 errors, 1 warning, 2 notes`."""
        numbers = [(self.count(severity), severity.value) for severity in SEVERITIES]
        shown = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in numbers]
        return ", ".join([*shown, *([f"{self.num_accepted} accepted"] if self.num_accepted else [])])

    @property
    def num_accepted(self) -> int:
        """The number of findings that the recipe accepts."""
        return sum(one.is_accepted for one in self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity is Severity.ERROR and not one.is_accepted)

    @property
    def decided(self) -> str:
        """One line that states how many checks were decided, and for the others how many there are for each reason."""
        num = sum(one.state == "decided" for one in self.checked)
        undecided = Counter(str(one.reason) for one in self.checked if one.state == "undecided")
        reasons = [f"{count} undecided because {reason.rstrip('.')}" for reason, count in undecided.most_common()]
        reasons += [f"{len(names)} skipped because {reason}" for reason, names in self.not_decided.items()]
        return "; ".join([f"{num} of {len(self.checked)} checks decided", *reasons])

    @property
    def not_decided(self) -> dict[str, list[str]]:
        """The names of the checks that were skipped or left out, by reason, the most common reason first."""
        found: dict[str, list[str]] = {}
        for one in self.checked:
            if one.state in ("skipped", "left_out"):
                found.setdefault(str(one.reason), []).append(one.name)
        return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))

    @property
    def reach(self) -> str | None:
        """One line that states the share of the tools for which a legal call is known, or None if no tool was
        called."""
        if "tools_reached" not in self.measured:
            return None
        reached, others = self.measured["tools_reached"], self.measured["tools_not_tested"]
        num = len(reached) + len(others)
        share = f"{len(reached)} of {num} tools reached by a legal call ({len(reached) / max(1, num):.0%})"
        return f"{share}; not tested: {', '.join(others)}" if others else share

    def count(self, severity: Severity) -> int:
        """Return the number of findings with a severity that the recipe does not accept."""
        return sum(one.severity is severity and not one.is_accepted for one in self.findings)

    def as_json(self) -> dict[str, Json]:
        return {
            "format": 1,
            "recipe": self.recipe,
            "seconds": round(self.seconds, 3),
            "counts": {severity.value: self.count(severity) for severity in SEVERITIES}
            | {"accepted": self.num_accepted},
            "findings": [finding.as_json() for finding in self.findings],
            "checked": [one.as_json() for one in self.checked],
            "measured": dict(self.measured),
        }

    @classmethod
    def of(cls, recipe: str, findings: Iterable[Finding], checked: Sequence[Checked], **more: Json) -> Self:
        """Build a report with its findings ordered by severity."""
        ordered = tuple(sorted(findings, key=lambda one: (one.is_accepted, SEVERITIES.index(one.severity))))
        return cls(recipe=recipe, findings=ordered, checked=tuple(checked), **more)
