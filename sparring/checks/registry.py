"""The checks by name. Each is an async function from a Subject to findings; its docstring is what a person reads about it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from sparring.findings import Finding

if TYPE_CHECKING:
    from sparring.checks.subject import Subject

Need: TypeAlias = Literal[
    "environment", "expert", "reward", "scorer", "model", "baseline", "production", "schemas", "reference", "run"
]
"""What a check cannot do without; `Subject.lacks` says why something is not there."""

Rule: TypeAlias = Callable[["Subject"], Awaitable[Iterable[Finding]]]

SECONDS = 15.0
"""What one check may take, unless it says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A rule with its name, what it needs, and how long it may take."""

    name: str
    """`family.rule`"""
    rule: Rule
    needs: tuple[Need, ...]
    seconds: float

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def meaning(self) -> str:
        """What it looks for and what to do about it: the rule's docstring."""
        return inspect.getdoc(self.rule) or ""


CHECKS: dict[str, Check] = {}
"""In the order in which they run and are documented."""


def check(name: str, *, needs: tuple[Need, ...] = (), seconds: float = SECONDS) -> Callable[[Rule], Rule]:
    """Register a rule. `seconds` bounds it where the total leaves as much."""

    def register(rule: Rule) -> Rule:
        assert name not in CHECKS, f"two checks are called {name}"
        CHECKS[name] = Check(name=name, rule=rule, needs=needs, seconds=seconds)
        return rule

    return register
