"""Defects planted by an author who had not seen the checks are found and named; what only looks suspicious is left alone."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sparring.checks import CHECKS
from tests.checks.rule_runner import run_rules

HERE = Path(__file__).parent
BLIND = {path.parent.name: tomllib.loads(path.read_text("utf-8")) for path in (HERE / "blind").glob("*/defect.toml")}
CLEAN = sorted((HERE / "blind_clean").glob("*/recipe.toml"))
SLOW = {"environment.network", "environment.same_elsewhere", "environment.tool_order"}
"""Rules that wait for a name server or for another process; they run on planted recipes and on one clean one."""


@cache
def find_defects() -> dict[str, list[dict[str, Any]]]:
    """Return what the first of the rules that name each defect finds."""
    asked = [
        {"folder": str(HERE / "blind" / n), "rule": d["acceptable_rules"][0], "options": {}} for n, d in BLIND.items()
    ]
    return {name: one["findings"] for name, one in zip(BLIND, run_rules(asked), strict=True)}


@pytest.mark.parametrize("name", sorted(BLIND))
def test_a_defect_is_found_and_named(name: str) -> None:
    found = [one for one in find_defects()[name] if one["severity"] != "note"]
    assert {one["rule"] for one in found} == {BLIND[name]["acceptable_rules"][0]}


def test_what_only_looks_suspicious_is_no_error_and_at_most_two_warnings() -> None:
    rules = [
        name
        for name, one in CHECKS.items()
        if not {"model", "baseline", "run", "reference", "reviewer"} & set(one.needs)
    ]
    asked = [
        {"folder": str(recipe.parent), "rule": rule, "options": {}}
        for recipe in CLEAN
        for rule in rules
        if rule not in SLOW or recipe == CLEAN[0]
    ]
    symptoms: dict[str, list[tuple[str, str]]] = {recipe.parent.name: [] for recipe in CLEAN}
    for one, verdict in zip(asked, run_rules(asked), strict=True):
        symptoms[Path(one["folder"]).name] += [
            (found["severity"], found["symptom"]) for found in verdict["findings"] if found["severity"] != "note"
        ]
    assert all(severity == "warning" for found in symptoms.values() for severity, _ in found), symptoms
    assert all(len(found) <= 2 for found in symptoms.values()), symptoms


def test_calls_that_mean_the_same_are_no_evidence_that_arguments_are_ignored() -> None:
    """Of a notebook whose entries are shown from a number on, 1 by default, only entries() and entries(first=1) are tried."""
    folder = HERE.parents[1] / "benchmarks" / "blind_environments" / "second" / "clean_notebook"
    (verdict,) = run_rules([{"folder": str(folder), "rule": "environment.arguments_ignored", "options": {}}])
    assert (verdict["state"], verdict["findings"]) == ("decided", [])


def test_a_page_counter_is_no_title_and_what_a_task_does_not_ask_for_may_be_refused() -> None:
    """`titles` shows "1 of 1" with its titles, and `year` does not find it; where a request is wanted, `delete` refuses it."""
    third = HERE.parents[1] / "benchmarks" / "blind_environments" / "third"
    rules = {"branch_library": "environment.found", "doc_portal": "data.unreachable"}
    asked = [{"folder": str(third / name), "rule": rule, "options": {}} for name, rule in rules.items()]
    assert [(one["state"], one["findings"]) for one in run_rules(asked)] == [("decided", [])] * 2
