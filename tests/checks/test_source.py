"""Each slip is found in source that has it, and not in the same source without it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.source import rules
from sparring.checks.rules.source.code import Code, Function, Module
from sparring.config import load_config
from sparring.findings import Finding, Severity

ROOT = Path(__file__).parents[2]
BLIND = ROOT / "benchmarks" / "blind_environments"
BEFORE = """
import re, enum, itertools, json, time
from datetime import datetime, timedelta, date
from decimal import Decimal
class Refused(Exception): ...
class Role(enum.Enum):
    ADMIN = "admin"
    EDITOR = "editor"
"""
SLIPS = tomllib.loads((Path(__file__).parent / "slips.toml").read_text("utf-8"))["slip"]


def names(slip: dict[str, Any], source: str) -> set[str]:
    """The patterns that find something in source: methods of a class, or functions of a reward."""
    part, values = slip["part"], slip.get("values", {})
    body = dedent(source)
    text = BEFORE + (
        "class Desk:\n" + "".join(f" {line}\n" for line in body.split("\n")) if part == "environment" else body
    )
    tables = {
        "STEPS": {"north": (0, 1), "south": (0, -1)},
        "NAMES": {(0, 1): "south", (0, -1): "north"},
        "OTHERS": {"east": 1},
    }
    namespace: dict[str, Any] = {"tool": lambda method: method, **tables}
    exec(text, namespace)
    missing = {key: [None if one == "<missing>" else one for one in listed] for key, listed in values.items()}
    module = Module("environment.py", text, ast.parse(text), namespace)
    functions = [Function(node.name, node, module, owner, part) for node, owner in module.functions()]  # type: ignore[arg-type]
    for one in functions:
        one.documented = ast.get_docstring(one.node) or ""
        one.part = slip.get("parts", {}).get(one.node.name, part)
        if one.node.decorator_list:
            one.tools = (one.node.name,)
    code = Code(functions, missing, slip.get("prompts", []), missing)
    return {name for one in functions for name, _ in rules.slips(one, code)}


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip["pattern"])
def test_a_slip_is_found_where_it_is_and_not_where_it_is_put_right(slip: dict[str, Any]) -> None:
    clean = slip["source"].replace(slip["wrong"], slip["right"])
    assert slip["pattern"] in names(slip, slip["source"])
    assert slip["pattern"] not in names(slip, clean)


def test_every_pattern_has_a_case() -> None:
    patterns = {one.__name__ for part in rules.PATTERNS.values() for one in part}
    # These read how an environment takes a field apart: the cases below have them.
    assert patterns - {slip["pattern"] for slip in SLIPS} == {"float_in_state", "day_against_time"}


def found(case: str) -> list[Finding]:
    recipe = BLIND / case / "recipe.toml"
    subject = Subject(load_config(recipe), recipe)
    return [
        *rules.findings(subject, "environment.source", ("environment", "tasks")),
        *rules.findings(subject, "reward.source", ("graders",)),
    ]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("first/expense_ledger", "sums floats in `self.total`"),
        ("second/order_totals", "compares `placed`, such as"),
        ("third/flight_search", "orders `price` as text"),
        ("third/weather_station", "includes -999.0, which stands for a missing value"),
        ("third/expense_desk", "puts exactly 500 on the wrong side"),
        ("third/parcels", "so '1 day' of `transit` becomes 0"),
    ],
)
def test_a_slip_is_named_with_values_of_the_tasks(case: str, expected: str) -> None:
    (one,) = found(case)
    assert expected in one.symptom
    assert one.severity is Severity.WARNING
    assert one.evidence["line"] in one.symptom
    assert one.evidence["code"] in (BLIND / case / "environment.py").read_text("utf-8")


@pytest.mark.parametrize(
    "case", ["second/clean_till", "second/clean_invoices", "third/clean_caller", "third/clean_half_even"]
)
def test_clean_environments_have_none(case: str) -> None:
    assert found(case) == []


def test_what_another_rule_has_reported_is_not_reported_again() -> None:
    recipe = BLIND / "third/stockroom/recipe.toml"
    subject = Subject(load_config(recipe), recipe)
    alone = rules.findings(subject, "environment.source", ("environment",))
    assert len(alone) == 1
    subject.shared["found"] = [
        Finding(
            rule="environment.stale_reads",
            severity=Severity.ERROR,
            symptom="count does not show what receive wrote.",
            evidence={},
            change="-",
            confirm="-",
        )
    ]
    assert rules.findings(subject, "environment.source", ("environment",)) == []
