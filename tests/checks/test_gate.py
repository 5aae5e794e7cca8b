"""Training runs the check first: it stops on errors unless it is allowed to continue, and keeps the findings."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.checks.running.accept import accept
from sparring.cli import app
from sparring.errors import GateError
from sparring.findings import Finding, Severity
from sparring.trainer import MultiTurnRLTrainer

ROOT = Path(__file__).parents[2]
TOO_FEW = Path(__file__).parent / "defects" / "too_few_turns"
SMALL = [
    "schedule.max_steps=0",
    "warm_start.steps=1",
    "warm_start.num_demonstrations=8",
    "evaluation.val_num_tasks=2",
    "evaluation.allow_zero_baseline=true",
]


def test_an_error_stops_a_training_before_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", str(TOO_FEW), "--json", "--no-supervise"])
    assert result.exit_code == GateError.exit_code == 5
    assert "so nothing was trained" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_keeps_what_was_checked_and_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes" / "pointer_chase", tmp_path / "chase")
    (tmp_path / "chase" / "Containerfile").write_text("FROM scratch\n")
    overrides = [*SMALL, f"run.runs_dir={tmp_path}"]
    result = MultiTurnRLTrainer(tmp_path / "chase", overrides=overrides, name="one", quiet=True).train()
    assert result is not None
    manifest = json.loads((result.run / "manifest.json").read_text())
    unloaded, loaded = manifest["checked"]
    assert (unloaded["counts"]["error"], loaded["counts"]["error"]) == (0, 0)
    assert {"weights.logprobs", "weights.served", "weights.export"} <= {one["rule"] for one in loaded["checked"]}
    assert str(tmp_path / "chase" / "Containerfile") in manifest["sha256"]
    found = [json.loads(line)["rule"] for line in (result.run / "findings.jsonl").read_text().splitlines()]
    assert "budgets.cost" in found


def test_it_trains_all_the_same_when_it_is_allowed_to(tmp_path: Path) -> None:
    overrides = [*SMALL, f"run.runs_dir={tmp_path}", "environment.max_turns=1"]
    trainer = MultiTurnRLTrainer(
        ROOT / "recipes" / "pointer_chase", overrides=overrides, name="one", check=False, quiet=True
    )
    assert trainer.train() is not None
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert "checked" not in manifest


def test_a_finding_that_the_recipe_accepts_does_not_stop_the_training_and_stays_visible(tmp_path: Path) -> None:
    accepted = ["policies.expert", "reward.order", "budgets.max_turns"]
    overrides = [*SMALL, f"run.runs_dir={tmp_path}", "environment.max_turns=1", f"checks.accept={accepted}"]
    result = MultiTurnRLTrainer(ROOT / "recipes" / "pointer_chase", overrides=overrides, name="one", quiet=True).train()
    assert result is not None
    rows = [json.loads(line) for line in (result.run / "findings.jsonl").read_text().splitlines()]
    assert sorted(row["rule"] for row in rows if row.get("is_accepted")) == sorted(accepted)
    counts = json.loads((result.run / "manifest.json").read_text())["checked"][0]["counts"]
    assert (counts["error"], counts["accepted"]) == (0, 3)
    page = CliRunner().invoke(app, ["report", str(result.run)])
    assert page.exit_code == 0, page.output
    shown = (result.run / "report.html").read_text("utf-8")
    assert shown.count("accepted error</span>") == 3
    assert "The recipe accepts 3 findings of the check." in shown


def test_only_the_named_check_is_accepted_and_an_unknown_name_is_refused() -> None:
    command = ["check", str(TOO_FEW), "--only", "budgets"]
    shown = CliRunner().invoke(app, [*command, "checks.accept=['budgets.max_turns']"])
    assert shown.exit_code == 0, shown.output
    assert "│ accepted" in shown.stdout
    assert "0 errors" in shown.stdout.splitlines()[-1]
    assert shown.stdout.splitlines()[-1].endswith("1 accepted")
    others = CliRunner().invoke(app, [*command, "checks.accept=['budgets.context']"])
    assert others.exit_code == 5
    unknown = CliRunner().invoke(app, [*command, "checks.accept=['budgets.max_turn']"])
    assert unknown.exit_code == 2
    assert "names 'budgets.max_turn', which is not a check; did you mean 'budgets.max_turns'?" in unknown.stderr


def test_what_several_checks_could_not_decide_is_accepted_only_with_all_of_them() -> None:
    one = Finding(
        rule="reward.range",
        severity=Severity.ERROR,
        symptom="s",
        evidence={"undecided": ["reward.range", "reward.order"]},
        change="c",
        confirm="d",
    )
    assert [found.is_accepted for found in accept([one], ["reward.range"])] == [False]
    assert [found.is_accepted for found in accept([one], ["reward.range", "reward.order"])] == [True]
