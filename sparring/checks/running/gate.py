"""The checks before training: first the rules that need no model, then the rules that need the loaded model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from sparring.assembly import TrainingParts
from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.checks.running.accept import accept
from sparring.checks.running.check_report import Checked, CheckReport
from sparring.checks.running.decide import run_rule
from sparring.checks.running.run import Announce, Options, check_recipe, undecided
from sparring.findings import Finding


def check_unloaded(recipe: Path, overrides: Sequence[str], announce: Announce) -> CheckReport:
    """Run the rules that need no model in a separate process, and block until they end. Raises what `check_recipe`
    raises."""
    return check_recipe(recipe, Options(overrides=tuple(overrides)), announce=announce)


async def check_loaded(parts: TrainingParts, recipe: Path, overrides: Sequence[str]) -> CheckReport:
    """Run the rules that need the model in this process. The first validation of the run measures the baseline."""
    began = time.monotonic()
    subject = Subject(parts.config, recipe, overrides=overrides, parts=parts, runs_baseline=False)
    findings: list[Finding] = []
    checked: list[Checked] = []
    for one in CHECKS.values():
        if "model" in one.needs and "baseline" not in one.needs:
            found, ended = await run_rule(one, subject)
            findings += found
            checked.append(ended)
    accepted = accept([*findings, *undecided(checked)], parts.config.checks.accept)
    return CheckReport.of(str(recipe), accepted, checked, seconds=time.monotonic() - began)
