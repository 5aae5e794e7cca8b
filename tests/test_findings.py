"""Rules as tables: one name, one rule."""

from __future__ import annotations

import pytest

from sparring.detectors import DETECTORS
from sparring.diagnosis import SYMPTOMS
from sparring.findings import Finding, Rule, Severity, rules_by_name


def test_two_rules_of_one_name_are_refused() -> None:
    one, other = Rule("a.b", lambda run: []), Rule("a.c", lambda run: [])
    assert list(rules_by_name(one, other)) == ["a.b", "a.c"]
    with pytest.raises(ValueError, match=r"a\.b"):
        rules_by_name(one, other, one)


def test_detectors_and_diagnosis_share_no_name() -> None:
    assert not set(DETECTORS) & set(SYMPTOMS)


def test_a_finding_of_an_earlier_version_has_the_name_of_today() -> None:
    old = Finding(rule="x", severity=Severity.NOTE, symptom="s.", evidence={}, change="c.", confirm="c.").as_json()
    assert Finding.from_json({**old, "rule": "foothold.limits"}).rule == "baseline.limits"
    assert Finding.from_json({**old, "rule": "data.few"}).rule == "data.few"
