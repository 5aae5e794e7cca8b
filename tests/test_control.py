"""The control: a warm start continued by counted steps, chosen on validation tasks, and evaluated as a policy of the run."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.ledger import Ledger
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import warm_start
from sparring.training.learner import AdamWState
from sparring.training_run import control, rl_time
from sparring.training_run.control import Control

ROOT = Path(__file__).parents[1]
SMALL = (
    "schedule.max_steps=1",
    "schedule.val_every=0",
    "schedule.save_every=1",
    "evaluation.val_num_tasks=3",
    "evaluation.eval_num_tasks=3",
    "evaluation.eval_group_size=2",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "evaluation.allow_zero_baseline=true",
    "warm_start.num_demonstrations=8",
    "warm_start.steps=2",
    "warm_start.batch_size=4",
)


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    overrides = [f"run.runs_dir={tmp_path_factory.mktemp('runs')}", *SMALL]
    with MultiTurnRLTrainer(
        ROOT / "recipes" / "pointer_chase", overrides=overrides, name="run", check=False, quiet=True
    ) as trainer:
        result = trainer.train()
    assert result is not None
    return result.run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def test_the_warm_start_is_continued_by_counted_steps_and_its_best_point_is_kept(run: Path) -> None:
    before = (run / "checkpoints" / "warm_start" / "weights.safetensors").read_bytes()
    made = sparring("control", str(run), "--steps", "8", "--json")
    assert made.exit_code == 0, made.output
    control = json.loads(made.stdout)
    assert control["steps"] == 8
    assert list(control["validated"]) == ["0", "2", "4", "6", "8"]
    best = max(control["validated"].values())
    # Of equally good points the last: it has imitated longest.
    assert control["best_step"] == max(int(step) for step, score in control["validated"].items() if score == best)
    assert control["rl_seconds"] > 0
    assert json.loads((run / "controls" / "warm_start_continued" / "state.json").read_text())["steps"] == 8
    assert (run / "checkpoints" / "warm_start" / "weights.safetensors").read_bytes() == before
    weights = load_file(run / "controls" / "warm_start_continued" / "weights.safetensors")
    started = load_file(run / "checkpoints" / "warm_start" / "weights.safetensors")
    assert any(not torch.equal(weights[name], started[name]) for name in weights)
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify() == []


def test_it_follows_from_the_seed_and_evaluations_play_it_next_to_the_others(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    for path in (run, other):
        assert sparring("control", str(path), "--steps", "3", "--json").exit_code == 0
    kept = [load_file(path / "controls" / "warm_start_continued" / "weights.safetensors") for path in (run, other)]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])
    evaluated = sparring("eval", str(run), "--temperature", "1", "--json")
    assert evaluated.exit_code == 0, evaluated.output
    report = json.loads(evaluated.stdout)
    assert [one["name"] for one in report["evaluations"]] == ["base", "warm start", "warm start continued", "tuned"]
    assert report["comparisons"][-1]["before"] == "warm-start-continued-t1"
    alone = sparring("eval", str(run), "--policy", "warm_start_continued", "--temperature", "0", "--json")
    assert [one["name"] for one in json.loads(alone.stdout)["evaluations"]] == ["warm start continued"]


def test_without_a_number_it_lasts_longer_than_rl_did(run: Path) -> None:
    made = sparring("control", str(run), "warm_start.control_steps=1", "--json")
    assert made.exit_code != 0  # settings are the run's own
    made = sparring("control", str(run), "--json")
    assert made.exit_code == 0, made.output
    control = json.loads(made.stdout)
    assert control["steps"] >= 2
    assert control["seconds"] >= control["rl_seconds"]


def test_without_a_number_it_lasts_longer_than_rl_on_a_machine_that_becomes_faster(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, slow = warm_start._supervised_step, iter(range(8))

    def take(*arguments: Any) -> dict[str, float]:
        if next(slow, None) is not None:
            time.sleep(0.4)
        return step(*arguments)

    monkeypatch.setattr(warm_start, "_supervised_step", take)
    monkeypatch.setattr(rl_time, "training_seconds", lambda _: 5.0)
    made = sparring("control", str(run), "--json")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["seconds"] >= found["rl_seconds"] == 5.0
    assert len(found["validated"]) == 1 + control.NUM_POINTS
    assert list(found["validated"])[-1] == str(found["steps"])


def test_the_command_for_a_longer_control_is_shown_instead_of_the_evaluation(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object, **__: object) -> Control:
        return Control(steps=318, seconds=113.0, rl_seconds=129.0, validated={0: 0.2}, best_step=0, fingerprint="")

    monkeypatch.setattr("sparring.training_run.control.continue_warm_start", made)
    shown = " ".join(sparring("control", str(run)).output.split())
    assert f"sparring control {run} --steps 400" in shown
    assert "next: sparring eval" not in shown


def test_an_evaluation_that_names_it_makes_it_once(run: Path) -> None:
    (run / "run.toml").write_text(
        (run / "run.toml").read_text().replace("[warm_start]\n", "[warm_start]\ncontrol_steps = 2\n")
    )
    written = []
    for _ in range(2):
        made = sparring("eval", str(run), "--policy", "warm_start_continued", "--temperature", "0", "--json")
        assert made.exit_code == 0, made.output
        written.append((run / "controls" / "warm_start_continued" / "state.json").stat().st_mtime_ns)
    assert written[0] == written[1]
    assert (run / "controls" / "warm_start_continued" / "weights.safetensors").is_file()


def test_the_error_of_a_run_without_a_warm_start_names_what_to_do(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "warm_start")
    for command in (["control", str(run)], ["eval", str(run), "--policy", "warm_start_continued"]):
        refused = sparring(*command)
        assert refused.exit_code == 2
        assert "has not finished its warm start" in refused.output.replace("\n", " ")
    assert not (run / "controls").exists()


def test_a_run_whose_metrics_are_gone_gets_no_control_of_unknown_length(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    refused = sparring("control", str(run), "--steps", "2")
    assert refused.exit_code == 3
    assert "it is not known how long RL took" in refused.output.replace("\n", " ")
    assert not (run / "controls").exists()


def test_a_run_that_is_another_than_was_trained_gets_no_control(run: Path) -> None:
    recipe = run / "run.toml"
    text = recipe.read_text()
    for old, new, message in (
        ("num_demonstrations = 8", "num_demonstrations = 4", "warm_start.num_demonstrations was 8, is 4"),
        ("learning_rate = 0.003", "learning_rate = 0.03", "warm_start.learning_rate was 0.003, is 0.03"),
    ):
        assert old in text
        recipe.write_text(text.replace(old, new))
        refused = sparring("control", str(run), "--steps", "2")
        assert refused.exit_code == 2
        assert message in refused.output.replace("\n", " ")
    recipe.write_text(text)
    (run / "recipe" / "environment.py").write_text((run / "recipe" / "environment.py").read_text() + "\n# changed\n")
    refused = sparring("control", str(run), "--steps", "2")
    assert "environment.py was" in refused.output.replace("\n", " ")
    assert not (run / "controls").exists()


def test_a_run_that_ended_before_its_warm_start_is_named_as_such(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "warm_start")
    refused = sparring("control", str(run), "--steps", "1")
    assert refused.exit_code == 2
    assert "has not finished its warm start" in refused.output
    assert "--resume" in refused.output


def test_a_shorter_control_does_not_take_the_place_of_a_longer_one(run: Path) -> None:
    assert sparring("control", str(run), "--steps", "4", "--json").exit_code == 0
    kept = run / "controls" / "warm_start_continued"
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    refused = sparring("control", str(run), "--steps", "3")
    assert refused.exit_code == 2
    assert "is a control of 4 steps, and a shorter control of 3 steps would replace it" in refused.output.replace(
        "\n", " "
    )
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert sparring("control", str(run), "--steps", "5", "--json").exit_code == 0


def test_a_control_that_cannot_be_written_leaves_the_earlier_one_with_what_it_was_made_of(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sparring("control", str(run), "--steps", "2", "--json").exit_code == 0
    kept = run / "controls" / "warm_start_continued"
    before = {path.name: path.read_bytes() for path in kept.iterdir()}

    def is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AdamWState, "write", is_full)
    refused = sparring("control", str(run), "--steps", "3", "--json")
    assert "Earlier checkpoints are intact. Free up space on that disk." in refused.output.replace("\n", " ")
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    (kept / "weights.safetensors").write_bytes(b"damaged")
    damaged = sparring("eval", str(run), "--policy", "warm_start_continued")
    assert damaged.exit_code == 3
    assert f"`sparring control {run}` trains it again" in damaged.output.replace("\n", " ")


MARK = "SPARRING_TEST_MARK"


def marked(mark: str) -> list[int]:
    """The processes that inherited the mark and live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def until(condition: Callable[[], bool], within: float) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_control_that_is_stopped_or_killed_leaves_the_earlier_one_and_no_process(
    run: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM goes to the command, SIGKILL to the process that trains."""
    assert sparring("control", str(run), "--steps", "2", "--json").exit_code == 0
    kept = run / "controls" / "warm_start_continued"
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    mark, log = uuid.uuid4().hex, tmp_path / "log"
    with log.open("w") as output:
        command = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparring", "control", str(run), "--steps", "100"],
            env={**os.environ, MARK: mark},
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: "the warm start continued: 20/100" in log.read_text() or command.poll() is not None, within=120)
        (trains,) = (pid for pid in marked(mark) if pid != command.pid)
        os.kill(command.pid if number is signal.SIGTERM else trains, number)
        code = command.wait(60)
        output_text = " ".join(log.read_text().split())
        assert marked(mark) == []
    finally:
        for pid in marked(mark):  # of a test that failed
            os.kill(pid, signal.SIGKILL)
        command.wait()
    if number is signal.SIGTERM:
        assert code == 128 + signal.SIGTERM
        assert "the control was stopped before its last step, so the earlier control is unchanged" in output_text
    else:
        assert code == 1
        assert "`sparring control` died of SIGKILL" in output_text
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert [path.name for path in kept.parent.iterdir()] == ["warm_start_continued"]
