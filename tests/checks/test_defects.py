"""Every planted defect is found and named by its rule, and the clean version of the recipe is not."""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sparring.checks import CHECKS
from tests.checks.rule_runner import run_rules

HERE = Path(__file__).parent
FAMILIES = ("environment", "budgets", "baseline", "weights")
"""test_planted.py has the others."""
ALL = {
    path.parent.name: tomllib.loads(path.read_text("utf-8"))
    for path in sorted((HERE / "defects").glob("*/defect.toml"))
}
DEFECTS = {name: defect for name, defect in ALL.items() if defect["rule"].startswith(FAMILIES)}
WHOLE = {name for name, defect in DEFECTS.items() if defect.get("ends_process")}
"""Those that hang or die, which only the whole command survives: test_run.py has them."""
CLEAN = HERE / "clean" / "library"
RULES = [name for name, check in CHECKS.items() if check.family in FAMILIES]


def build_request(name: str) -> dict[str, Any]:
    defect, folder = DEFECTS[name], HERE / "defects" / name
    options = {key: str(folder / value) for key, value in defect.get("options", {}).items()}
    return {"folder": str(folder), "rule": defect["rule"], "options": options}


@cache
def run_all() -> dict[tuple[str, str], dict[str, Any]]:
    """Run the rules on each defect and on the clean recipe; return the results by (folder, rule)."""
    everything = [build_request(name) for name in DEFECTS if name not in WHOLE]
    everything += [{"folder": str(CLEAN), "rule": rule, "options": {}} for rule in RULES]
    return {
        (Path(one["folder"]).name, one["rule"]): line
        for one, line in zip(everything, run_rules(everything), strict=True)
    }


@pytest.mark.parametrize("name", sorted(DEFECTS.keys() - WHOLE))
def test_a_defect_is_found_and_named(name: str) -> None:
    defect = DEFECTS[name]
    verdict = run_all()[name, defect["rule"]]
    named = [
        finding
        for finding in verdict["findings"]
        if finding["severity"] == defect["severity"] and defect["message"] in json.dumps(finding)
    ]
    if verdict["state"] == "undecided" and defect["severity"] == "error":
        named = [verdict] if defect["message"] in verdict["reason"] else []
    assert named, verdict
    assert all(finding["rule"] == defect["rule"] for finding in verdict["findings"])


@pytest.mark.parametrize("rule", RULES)
def test_the_clean_recipe_is_not_accused(rule: str) -> None:
    verdict = run_all()[CLEAN.name, rule]
    assert verdict["state"] in ("decided", "skipped"), verdict
    assert [finding for finding in verdict["findings"] if finding["severity"] != "note"] == []


def test_every_rule_that_needs_no_model_has_a_planted_defect() -> None:
    planted = {defect["rule"] for defect in ALL.values()}
    elsewhere = {"model", "reference", "reviewer", "agent", "conversations"}  # test_own_agents.py has those of agents
    needless = {name for name, check in CHECKS.items() if not elsewhere & set(check.needs)}
    # What a run costs is a note for everybody; test_model_judge.py has the other.
    assert needless - planted - {"budgets.cost", "budgets.model_judge"} == set()
