"""The findings that a recipe accepts (`checks.accept`)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sparring.checks import CHECKS
from sparring.config import Config
from sparring.errors import ConfigError, ConfigProblem
from sparring.findings import Finding


def refuse_unknown_checks(config: Config, recipe: Path) -> None:
    """Raise ConfigError if the recipe accepts the findings of a check that does not exist."""
    problems = []
    for name in config.checks.accept:
        if name not in CHECKS:
            near = difflib.get_close_matches(name, CHECKS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/checks.md lists all checks."
            problems.append(ConfigProblem("checks.accept", f"names {name!r}, which is not a check; {hint}"))
    if problems:
        raise ConfigError(problems, str(recipe))


def accept(findings: Iterable[Finding], names: Collection[str]) -> Iterator[Finding]:
    """Yield the findings, and mark those of the named checks as accepted.

    A finding that leaves several checks undecided is accepted only if all of these checks are named.
    """
    for one in findings:
        rules = one.evidence.get("undecided", [one.rule])
        yield replace(one, is_accepted=set(rules) <= set(names))
