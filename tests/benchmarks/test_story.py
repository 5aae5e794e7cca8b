"""The story's figures and rows follow from the curves and findings of its three runs."""

from dataclasses import replace

import pytest

from benchmarks.story import STEPS, TARGETS, Measured, field_accuracy, figures_of, rows_of
from sparring.evaluation.statistics import mean_interval, paired_difference
from sparring.findings import Finding, Severity
from sparring.types import Outcome, Task, Trajectory

BEFORE, AFTER = [0.0] * 6 + [1.0] * 2, [0.0] * 4 + [1.0] * 4


def finding(rule: str, severity: Severity, step: int) -> Finding:
    return Finding(rule=rule, severity=severity, symptom="", evidence={}, change="", confirm="", step=step)


def a_step(at: int, rewards: list[float], scores: list[float], findings: list[Finding]) -> Measured:
    one = mean_interval(BEFORE), mean_interval(AFTER), paired_difference(BEFORE, AFTER)
    return Measured(
        case=STEPS[at],
        rewards=rewards,
        scores=scores,
        checked=[
            {"severity": "error", "rule": "reward.mutations"},
            {"severity": "note", "rule": "budgets.cost"},
            *[{"severity": "warning", "rule": "prompt.tag"}] * 2,
        ],
        findings=findings,
        held_out={"task success": one, "field accuracy": one},
    )


SPOILT = a_step(
    1,
    [0.4, 0.5, 0.9, 0.9, 0.9, 0.9],
    [0.3, 0.2, 0.0, 0.0, 0.0, 0.0],
    [
        finding("answers.length_drift", Severity.WARNING, 2),
        finding("reward.paid_for_wrong", Severity.NOTE, 2),
        finding("reward.paid_for_wrong", Severity.WARNING, 3),
        finding("reward.paid_for_wrong", Severity.ERROR, 4),
    ],
)
FIXED = a_step(2, [0.4, 0.8, 0.8, 0.8, 0.8], [0.3, 0.6, 0.6, 0.6, 0.6], [])


def test_figures_are_rises_from_the_first_step_to_the_last_few_and_gains_on_held_out_tasks() -> None:
    figures = figures_of([SPOILT, SPOILT, FIXED])
    assert figures["B: rise of the training reward"] == pytest.approx(0.5)
    assert figures["B: rise of the strict score"] == pytest.approx(-0.3)
    assert figures["C: errors of the detectors"] == 0.0
    # Two of eight tasks more are right.
    assert figures["C: gain in task success"] == pytest.approx(0.25)
    assert figures["C: gain in task success, at least (95 %)"] < 0.25
    assert set(TARGETS) <= set(figures)


def test_errors_of_detectors_in_the_fixed_run_are_counted() -> None:
    blamed = replace(FIXED, findings=SPOILT.findings)
    assert figures_of([SPOILT, SPOILT, blamed])["C: errors of the detectors"] == 1.0


def test_the_hack_is_named_by_the_first_warning_that_states_what_is_paid() -> None:
    assert SPOILT.naming is not None
    assert (SPOILT.naming.rule, SPOILT.naming.step) == ("reward.paid_for_wrong", 3)
    assert FIXED.naming is None


def test_rows_say_curves_checks_detectors_and_held_out_success() -> None:
    rows = {row["what"]: row["measured"] for row in rows_of(SPOILT)}
    assert rows["training reward"] == "0.40 -> 0.90"
    assert rows["strict score"] == "0.30 -> 0.00"
    assert rows["check"] == "error reward.mutations, warning prompt.tag (2 times)"
    assert rows["detectors"].startswith("warning answers.length_drift at 2, ")
    assert rows["held out, task success"].startswith("0.25 [")
    assert {row["what"]: row["measured"] for row in rows_of(FIXED)}["detectors"] == "nothing"


def test_field_accuracy_is_the_share_of_right_fields_alone() -> None:
    trajectory = Trajectory(
        id="t",
        task=Task(id="t", messages=(), fields={}),
        attempt=0,
        turns=(),
        messages=(),
        outcome=Outcome.FINISHED,
        reward=None,
        score=0.0,
        score_parts={"field/action": 1.0, "field/slip": 0.0, "format": 1.0, "tool_use": 1.0},
    )
    assert field_accuracy(trajectory) == 0.5
