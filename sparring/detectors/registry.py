"""The detectors by name. Each is a pure function from a History to findings; its docstring is what a person reads about it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sparring.findings import Finding
from sparring.history import History

Rule: TypeAlias = Callable[[History], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """A rule with its name."""

    name: str
    """`family.rule`"""
    rule: Rule

    @property
    def meaning(self) -> str:
        """What it looks at: the rule's docstring."""
        return inspect.getdoc(self.rule) or ""


DETECTORS: dict[str, Detector] = {}
"""In the order in which they speak and are documented."""


def detector(name: str) -> Callable[[Rule], Rule]:
    """Register a rule."""

    def register(rule: Rule) -> Rule:
        assert name not in DETECTORS, f"two detectors are called {name}"
        DETECTORS[name] = Detector(name=name, rule=rule)
        return rule

    return register
