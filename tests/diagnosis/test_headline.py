"""The headline of a run speaks of what holds now: old warnings do not outlive their cause, and solved wins over warnings."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparring.diagnosis.diagnose import Diagnosis, diagnose
from sparring.diagnosis.next_command import next_command
from sparring.diagnosis.observed import Observed
from sparring.findings import Finding, Severity
from sparring.run_folders.history import Digest
from tests.diagnosis.runs import config, rises, run


def build_finding(rule: str, step: int, severity: Severity = Severity.WARNING) -> Finding:
    """Build a finding that a detector reported after a step of training."""
    return Finding(
        rule=rule,
        severity=severity,
        symptom=f"8% of the last episodes at step {step}",
        evidence={},
        change="Tighten it.",
        confirm="It is gone.",
        step=step,
    )


def rules(found: Diagnosis) -> tuple[set[str], set[str]]:
    """Those that hold, and those that are past."""
    return {one.rule for one in found.findings}, {one.rule for one in found.past}


def unpaid_at_first(digest: Digest, step: int) -> Digest:
    """Three of eight tasks are paid although wrong in the first steps."""
    is_hit = step <= 3 and int(digest.task_id.split("-")[1]) % 8 < 3
    return replace(digest, score=0.0) if is_hit else digest


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.ERROR])
def test_a_finding_of_step_2_is_past_in_a_run_that_is_right_at_step_25(severity: Severity) -> None:
    solved = run(rises(0.3, 0.99, 12), steps=25, change=unpaid_at_first)
    found = diagnose("runs/x", replace(solved, detected=[build_finding("reward.paid_for_wrong", 2, severity)]))
    holds, past = rules(found)
    assert (found.state, found.first) == ("solved", None)
    assert "paid" not in found.headline
    assert "reward.paid_for_wrong" not in holds
    assert past == {"reward.paid_for_wrong"}
    assert found.as_json()["past"][0]["step"] == 2


def test_a_warning_that_no_detector_repeats_is_past_and_an_error_stays_until_the_run_is_solved() -> None:
    unsolved = run(rises(0.2, 0.6), steps=25)
    warned = [
        build_finding("reward.paid_for_wrong", 2),
        build_finding("answers.copied_from_example", 3, Severity.ERROR),
    ]
    found = diagnose("runs/x", replace(unsolved, detected=warned))
    holds, past = rules(found)
    assert "answers.copied_from_example" in holds
    assert past == {"reward.paid_for_wrong"}


def test_what_cannot_be_asked_again_holds() -> None:
    own = run(rises(0.2, 0.6), more=['detectors.scanners=["scan:ours"]'])
    heard = [build_finding("exploits.scan:ours", 2), build_finding("rollouts.lost", 3)]
    assert rules(diagnose("runs/x", replace(own, detected=heard))) == ({"exploits.scan:ours", "rollouts.lost"}, set())


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.ERROR])
def test_a_finding_of_a_detector_that_no_longer_exists_is_past(severity: Severity) -> None:
    heard = [build_finding("reward.no_such_detector", 2, severity), build_finding("exploits.scan:removed", 3, severity)]
    found = diagnose("runs/x", replace(run(rises(0.2, 0.6)), detected=heard))
    assert rules(found) == (set(), {"reward.no_such_detector", "exploits.scan:removed"})


def longer(digest: Digest, step: int) -> Digest:
    return replace(digest, num_cut=1)


def test_solved_wins_over_warnings_and_not_over_errors() -> None:
    solved = run(0.97, steps=25, change=longer)
    found = diagnose("runs/x", solved)
    assert "budgets.turn_tokens_in_training" in rules(found)[0]
    assert (found.state, found.first) == ("solved", None)
    assert found.headline.startswith("Nothing to change: 9")
    failed = lost(solved)
    assert diagnose("runs/x", failed).state == "change"


def lost(observed: Observed) -> Observed:
    """Half of the attempts are lost to infrastructure."""
    metrics = {
        "rollout/attempts": 96.0,
        "rollout/failed_attempts": 48.0,
        "rollout/discarded/infra_error": 48.0,
        "rollout/discarded/env_timeout": 0.0,
    }
    return run(0.97, steps=25, metrics=lambda step: metrics)


def test_a_finding_states_since_when_it_holds() -> None:
    cut = run(rises(0.2, 0.6), steps=25, change=longer)
    now = next(one for one in diagnose("runs/x", cut).findings if one.rule == "budgets.turn_tokens_in_training")
    assert (now.first_step, now.step) == (None, 25)
    hacked = run(0.5, steps=25, change=lambda digest, step: replace(digest, reward=digest.reward if step == 1 else 1.0))
    early = build_finding("reward.paid_for_wrong", 4)
    found = next(
        one
        for one in diagnose("runs/x", replace(hacked, detected=[early])).findings
        if one.rule == "reward.paid_for_wrong"
    )
    assert (found.first_step, found.step) == (4, 25)
    assert Finding.from_json(found.as_json()) == found


def test_the_next_command_begins_before_the_harm(tmp_path: Path) -> None:
    late = replace(build_finding("stall.collapse", 25), before_step=9, settings={"a.b": 1})
    settings = config("schedule.max_steps=100")
    (tmp_path / "run.toml").touch()
    for name in ("warm_start", "000005", "000010"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    for step, expected in ((9, " --from 5 a.b=1"), (5, " --from 0 a.b=1"), (None, " a.b=1")):
        command = next_command(tmp_path, settings, {}, replace(late, before_step=step))
        assert command == f"sparring runs branch {tmp_path}{expected}"
    (tmp_path / "checkpoints" / "warm_start").rmdir()
    again = next_command(tmp_path, settings, {}, replace(late, before_step=5))
    assert again == "train the recipe again with a.b=1: no checkpoint is from before step 5"


def test_a_headline_states_the_validation_and_that_it_has_too_few_tasks_to_contradict_training() -> None:
    follows = run(rises(0.2, 0.6), validations={0: 0.2, 10: 0.4, 20: 0.56})
    assert diagnose("runs/x", follows).headline.endswith(" Validation: 0.20 at first, 0.56 now.")
    lags = run(rises(0.2, 0.6), validations={0: 0.2, 10: 0.3, 20: 0.4})
    assert "48 validation tasks are too few to exclude chance" in diagnose("runs/x", lags).headline
    untested = run(
        rises(0.2, 0.6), validations={0: 0.2, 10: 0.3, 20: 0.4}, more=["detectors.off=['evaluation.below_training']"]
    )
    assert diagnose("runs/x", untested).headline.endswith("0.40 now.")
    assert "alidation" not in diagnose("runs/x", run(rises(0.2, 0.6))).headline


def test_penalties_are_not_taken_for_a_gap_to_training() -> None:
    def costs(digest: Digest, step: int) -> Digest:
        return replace(digest, reward=digest.reward - 1, score=None)

    penalized = run(rises(0.2, 0.6), change=costs, validations={0: -0.8, 10: -0.6, 20: -0.45})
    assert "too few" not in diagnose("runs/x", penalized).headline
