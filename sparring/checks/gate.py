"""What a training asks before it begins: first all that needs no model, then what only the loaded model shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from sparring.build import Parts
from sparring.checks import CHECKS
from sparring.checks.asking import ask
from sparring.checks.report import Checked, CheckReport
from sparring.checks.run import Announce, Options, check_recipe, undecided
from sparring.checks.subject import Subject
from sparring.findings import Finding


def check_unloaded(recipe: Path, overrides: Sequence[str], announce: Announce) -> CheckReport:
    """In a process of its own; blocks. Raises as `check_recipe` does."""
    return check_recipe(recipe, Options(overrides=tuple(overrides)), announce=announce)


async def check_loaded(parts: Parts, recipe: Path, overrides: Sequence[str]) -> CheckReport:
    """In this process, without playing a baseline: the first validation of a run does that."""
    began = time.monotonic()
    subject = Subject(parts.config, recipe, overrides=overrides, parts=parts, plays_baseline=False)
    findings: list[Finding] = []
    checked: list[Checked] = []
    for one in CHECKS.values():
        if "model" in one.needs and "baseline" not in one.needs:
            found, ended = await ask(one, subject)
            findings += found
            checked.append(ended)
    findings += undecided(checked)
    return CheckReport.of(str(recipe), findings, checked, seconds=time.monotonic() - began)
