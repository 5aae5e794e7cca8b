"""Every planted defect is found and named, and what is clean stays clean: data, prompt, policies without a model, reward."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config
from sparring.findings import Finding, Severity

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FAMILIES = ("data", "prompt", "policies", "reward")
PLANTED = {
    folder.name: tomllib.loads((folder / "defect.toml").read_text("utf-8"))
    for folder in sorted((HERE / "defects").iterdir())
    if (folder / "defect.toml").is_file()
}
OURS = {name: defect for name, defect in PLANTED.items() if defect["rule"].partition(".")[0] in FAMILIES}
CLEAN = (HERE / "clean" / "parcel_desk", ROOT / "recipes/quickstart", ROOT / "recipes/pointer_chase")


def findings(folder: Path, *, only: str | None = None) -> list[Finding]:
    """What the rules of these families find, in process."""
    recipe = folder / "recipe.toml"
    subject = Subject(load_config(recipe), recipe)
    rules = [one for one in CHECKS.values() if one.family in FAMILIES and (only is None or one.name == only)]

    async def ask() -> list[Finding]:
        found: list[Finding] = []
        for one in rules:
            if all(subject.lacks(need) is None for need in one.needs):
                found += await one.function(subject)
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize("name", OURS)
def test_a_planted_defect_is_found_and_named(name: str) -> None:
    defect = OURS[name]
    found = findings(HERE / "defects" / name, only=defect["rule"])
    reported = [(one.severity.value, one.symptom) for one in found]
    assert any(severity == defect["severity"] and defect["message"] in symptom for severity, symptom in reported), (
        reported
    )
    assert all(one.evidence and one.change and one.confirm for one in found)


@pytest.mark.parametrize("folder", CLEAN, ids=lambda folder: folder.name)
def test_what_is_clean_gives_no_error_and_at_most_two_warnings(folder: Path) -> None:
    reported = [(one.severity, one.rule, one.symptom) for one in findings(folder)]
    assert [one for one in reported if one[0] is Severity.ERROR] == []
    # Who runs a recipe of ours for the first time is not warned of it.
    assert len([one for one in reported if one[0] is Severity.WARNING]) <= (
        0 if folder.parent.name == "recipes" else 2
    ), reported


def test_tasks_of_several_kinds_have_examples_of_their_own() -> None:
    # Two domains by turns: one is answered with `action` and `slip`, the other with `action`, `second` and `good`.
    assert [one.symptom for one in findings(ROOT / "recipes" / "sop_small", only="prompt.example")] == []


def test_every_rule_has_a_planted_defect() -> None:
    # Those that need a model are in test_round_trip.py and test_baseline_findings.py.
    need_model = {"prompt.round_trip", "prompt.control_tokens", "reward.baseline"}
    rules = {name for name, one in CHECKS.items() if one.family in FAMILIES} - need_model
    assert rules - {defect["rule"] for defect in OURS.values()} == set()
