"""The command that tries out a change runs as it is printed, also on a run that has finished."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import validate
from sparring.diagnosis.next_command import next_command
from sparring.findings import Finding, Severity
from sparring.run_folders import RunFolder
from tests.test_cli import CHASE, SMALL

ADVICE = Finding(
    rule="stall.capacity",
    severity=Severity.ERROR,
    symptom="the reward is flat.",
    evidence={},
    change="Change two settings.",
    confirm="The reward rises.",
    step=2,
    settings={"algorithm.entropy_coef": 0.01, "curriculum.select": "mixed"},
    confirm_after=1,
)


def sparring(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_printed_command_trains_on_after_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CHASE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    sparring("train", "toy", "--no-check", "--no-supervise", "--name", "my run", *SMALL)
    with Path("runs/my run/findings.jsonl").open("a") as file:
        file.write(json.dumps(ADVICE.as_json()) + "\n")

    printed = sparring("diagnose", "my run").splitlines()[-1]
    command = (
        "sparring runs branch 'runs/my run' algorithm.entropy_coef=0.01 curriculum.select=mixed schedule.max_steps=3"
    )
    assert printed == f"next: {command}"
    sparring("report", "my run")
    assert command.replace("'", "&#x27;") in Path("runs/my run/report.html").read_text("utf-8")

    child = json.loads(sparring(*shlex.split(command)[1:], "--no-train", "--name", "next", "--json"))
    sparring("train", "--resume", child["path"], "--no-supervise")
    assert (RunFolder(Path("runs/next")).status()["step"], child["step"]) == (3, 2)


def command_after(path: Path, epoch: float, finding: Finding, *overrides: str) -> str:
    (path / "run.toml").touch()
    (path / "checkpoints" / "000010").mkdir(parents=True, exist_ok=True)
    recipe = {"environment": {"target": "environment:Shop"}, "reward": {"reward": "environment:reward"}}
    metrics = {10: {"training/epoch": epoch}}
    return next_command(path, validate(recipe, overrides), metrics, finding).partition("entropy_coef=0.01")[2]


def test_a_run_is_extended_as_far_as_its_change_needs(tmp_path: Path) -> None:
    long = replace(ADVICE, settings={"algorithm.entropy_coef": 0.01}, confirm_after=20)
    # From step 10 to step 30: a run of 50 steps is long enough, one of 29 is not.
    assert command_after(tmp_path, 1.0, long, "schedule.max_epochs=3") == ""
    assert (
        command_after(tmp_path, 1.0, long, "schedule.max_epochs=3", "schedule.max_steps=29") == " schedule.max_steps=30"
    )
    # Ten steps used the data once, so 30 steps use it three times.
    assert command_after(tmp_path, 1.0, long) == " schedule.max_epochs=3"
    assert command_after(tmp_path, 0.25, long) == ""
    # Where a finding does not specify it, the effect is seen after 25 steps.
    assert (
        command_after(tmp_path, 0.1, replace(long, confirm_after=None), "schedule.max_steps=10")
        == " schedule.max_steps=35"
    )


def test_a_selection_of_tasks_is_given_the_epochs_that_it_may_skip(tmp_path: Path) -> None:
    selecting = replace(ADVICE, confirm_after=20)
    # Ten steps used a tenth of the data. In 20 more, at worst nine of ten offered tasks are skipped: 0.1 + 10 * 0.2 = 2.1.
    assert command_after(tmp_path, 0.1, selecting) == " curriculum.select=mixed schedule.max_epochs=3"
    assert command_after(tmp_path, 0.1, selecting, "schedule.max_epochs=3") == " curriculum.select=mixed"
