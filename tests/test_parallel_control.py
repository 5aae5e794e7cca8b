"""The control of a run that another process trains at the same time."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparring.config import Config, load_config
from sparring.errors import SparringError, UsageError
from sparring.ledger import Ledger
from sparring.ledger.states import CONTROL_LABEL
from sparring.run_folders import RunFolder
from sparring.run_folders.locks import CONTROL_LOCK, hold_lock
from sparring.run_folders.run_folder import WARM_START
from sparring.run_folders.stored import training_seconds
from sparring.tracking import Console
from sparring.trainer import MultiTurnRLTrainer
from sparring.training_run import control, parallel_control, rl_time
from sparring.training_run.control import continue_warm_start, read_control
from sparring.training_run.parallel_control import OUTPUT, ParallelControl, has_idle_cores
from sparring.training_run.rl_time import RLTime
from tests.test_control import MARK, ROOT, SMALL, marked, sparring, until

CHASE = ROOT / "recipes" / "pointer_chase"


def new_run(path: Path, *overrides: str) -> RunFolder:
    recipe = CHASE / "recipe.toml"
    return RunFolder.create(load_config(recipe, [f"run.runs_dir={path}", *overrides]), recipe, name="run")


def take_steps(run: RunFolder, *seconds: float) -> None:
    rows = [{"step": step, "metrics": {"timing_s/step": one}} for step, one in enumerate(seconds, start=1)]
    (run.path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@contextmanager
def training(runs: Path, *overrides: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Train a small run in another process."""
    settings = [f"run.runs_dir={runs}", "run.name=run", *SMALL, *overrides]
    command = [sys.executable, "-P", "-m", "sparring", "train", str(CHASE), "--no-check", *settings]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: RunFolder.is_run(runs / "run") and (runs / "run" / "status.json").exists(), within=60)
        yield process, runs / "run"
    finally:
        process.terminate()
        process.wait(60)


def test_the_expected_time_of_rl_extrapolates_its_steps_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rl_time, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(rl_time, "READING_SHARE", 1e9)
    run = new_run(tmp_path, "schedule.max_steps=4")
    run.set_status("running", step=0)
    (run.checkpoints / WARM_START).mkdir(parents=True)
    with RLTime(run, is_running=True) as rl:
        assert (rl.seconds, rl.is_final) == (float("inf"), False)
        take_steps(run, 3.0, 5.0)
        assert (rl.seconds, rl.is_final) == (16.0, False)
        take_steps(run, 3.0, 5.0, 1.0)
        run.set_status("completed", step=3)  # of fewer steps than planned
        with run.lock_for_training():  # its process has not ended yet, or another one resumes it
            assert (rl.seconds, rl.is_final) == (12.0, False)
        assert (rl.seconds, rl.is_final) == (9.0, True)
        with pytest.raises(UsageError, match="already being trained"), run.lock_for_training():
            pass
    with RLTime(run, is_running=False) as rl:
        assert (rl.seconds, rl.is_final) == (9.0, True)


@pytest.mark.parametrize("status", ["failed", "running"])
def test_a_run_that_nothing_trains_has_no_time(tmp_path: Path, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl_time, "RESTART_SECONDS", 0.0)
    run = new_run(tmp_path)
    run.set_status(status)
    stored = json.loads((run.path / "status.json").read_text())
    stored["process"]["started"] = "before this boot"
    (run.path / "status.json").write_text(json.dumps(stored))
    shown = "interrupted" if status == "running" else "failed"
    with (
        RLTime(run, is_running=True) as rl,
        pytest.raises(UsageError, match=f"is {shown}, and no process trains it"),
    ):
        rl.wait_for_start()


def test_a_run_that_ends_in_its_warm_start_has_no_control(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.set_status("stopped", step=0)
    with RLTime(run, is_running=True) as rl, pytest.raises(UsageError, match="ended before its warm start"):
        asyncio.run(rl.wait_for_warm_start())


class GivenTime:
    """An RL of given times."""

    def __init__(self) -> None:
        self.seconds, self.is_final = float("inf"), False


def test_the_learning_rate_falls_with_rl_and_in_the_end_although_rl_ends_early() -> None:
    rl = GivenTime()
    length = control._Length(10, rl, is_counted=False)  # type: ignore[arg-type]
    assert length.share(1, 5.0) == 0.0  # before the first step of RL
    rl.seconds = 40.0
    assert length.share(10, 10.0) == 0.25
    assert length.share(5, 30.0) == 0.5  # of the least number of steps
    assert length.share(20, 30.0) == 0.75
    assert length.share(30, 50.0) == control.MOST_BEFORE_END
    assert length.is_waiting
    rl.seconds = 100.0  # RL takes longer than expected
    assert length.share(30, 50.0) == 0.5
    assert not length.is_waiting
    rl.seconds, rl.is_final = (
        60.0,
        True,
    )  # it ends early: half of the fall is left, which takes at least an eighth of RL's time
    assert length.share(30, 55.0) == pytest.approx(0.75)
    assert length.share(30, 60.0) == pytest.approx(1.0)
    rl.seconds = 40.0
    assert length.share(30, 55.0) == pytest.approx(1.0)
    assert length.share(30, 52.5) == pytest.approx(0.75)


def test_a_control_after_training_falls_by_its_time() -> None:
    rl = GivenTime()
    rl.seconds, rl.is_final = 40.0, True
    length = control._Length(10, rl, is_counted=False)  # type: ignore[arg-type]
    assert [length.share(20, seconds) for seconds in (10.0, 20.0, 40.0)] == [0.25, 0.5, 1.0]
    assert length.share(5, 40.0) == 0.5
    counted = control._Length(1000, rl, is_counted=True)  # type: ignore[arg-type]
    assert counted.share(999, 1.0) == 0.999
    assert not counted.is_waiting


def test_a_control_during_training_starts_at_the_warm_start_and_ends_after_rl(tmp_path: Path) -> None:
    with training(tmp_path, "schedule.max_steps=3") as (process, run):
        made = continue_warm_start(run, during_training=True, quiet=True)
        assert RunFolder(run).status()["status"] == "completed"
        assert process.wait(60) == 0
    assert made == read_control(RunFolder(run))
    assert made.seconds >= made.rl_seconds == training_seconds(run / "metrics.jsonl") > 0
    assert made.steps >= 2
    assert [*made.validated][:: len(made.validated) - 1] == [0, made.steps]
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        of_control = [one.id for one in ledger.rollouts() if one.id.startswith(f"validation/{CONTROL_LABEL}")]
    assert len(of_control) == 3 * 2 * len(made.validated)  # tasks, episodes of a task
    evaluated = sparring("eval", str(run), "--temperature", "1", "--json")
    assert evaluated.exit_code == 0, evaluated.output
    report = json.loads(evaluated.stdout)
    assert [one["name"] for one in report["evaluations"]] == ["base", "warm start", "warm start continued", "tuned"]


def test_a_control_of_counted_steps_waits_for_the_time_that_rl_took(tmp_path: Path) -> None:
    with training(tmp_path, "schedule.max_steps=3") as (_, run):
        made = continue_warm_start(run, steps=1, during_training=True, quiet=True)
    assert made.steps == 1
    assert made.rl_seconds == training_seconds(run / "metrics.jsonl") > 0


def test_a_training_that_dies_leaves_no_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl_time, "RESTART_SECONDS", 0.5)
    with training(tmp_path, "schedule.max_steps=1000") as (process, run):
        until(lambda: (run / "checkpoints" / "warm_start").is_dir(), within=60)
        os.kill(process.pid, signal.SIGKILL)  # the supervisor; its process then ends, too
        with pytest.raises(SparringError, match=r"no process trains it|how long RL took"):
            continue_warm_start(run, during_training=True, quiet=True)
    assert read_control(RunFolder(run)) is None


def test_two_controls_of_one_run_are_not_trained_at_once(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with hold_lock(run.path, UsageError(""), name=CONTROL_LOCK):
        refused = sparring("control", str(run.path), "--during-training")
    assert refused.exit_code == 2
    assert "another process trains the control" in refused.output.replace("\n", " ")


def test_a_control_that_needs_the_servers_of_the_run_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    text = (run.path / "run.toml").read_text()
    (run.path / "run.toml").write_text(text.replace("[engine]\n", '[engine]\ntype = "vllm"\n', 1))
    refused = sparring("control", str(run.path), "--during-training")
    assert refused.exit_code == 2, refused.output
    assert "engine.type=vllm" in refused.output
    assert not run.controls.exists()


def chase(*overrides: str) -> Config:
    return load_config(CHASE / "recipe.toml", list(overrides))


def test_cores_are_idle_where_a_run_uses_at_most_half_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_control, "granted_processors", lambda: 4.0)
    monkeypatch.setattr(parallel_control, "resolve_device", lambda name: name if name == "cuda" else "cpu")
    assert has_idle_cores(chase("run.num_threads=1"))
    assert has_idle_cores(chase("run.num_threads=2"))
    assert not has_idle_cores(chase("run.num_threads=3"))
    monkeypatch.setattr(parallel_control, "granted_processors", lambda: 3.5)
    assert not has_idle_cores(chase("run.num_threads=2"))
    monkeypatch.setattr(parallel_control, "granted_processors", lambda: 4.0)
    assert not has_idle_cores(chase("model.device=cuda"))
    assert not has_idle_cores(load_config(ROOT / "recipes" / "quickstart" / "recipe.toml", []))  # every core


def test_without_enough_memory_no_second_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_control, "granted_processors", lambda: 2.0)
    asked = threading.Event()
    monkeypatch.setattr(parallel_control, "available_bytes", lambda: int(asked.set() is None))
    run = new_run(tmp_path)
    run.set_status("running")
    with ParallelControl(chase(), lambda: run, Console(quiet=True)) as parallel:
        assert asked.wait(10)
        assert parallel.wait() is None
    assert not (run.path / OUTPUT).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc")
def test_a_second_process_that_fails_is_announced_and_one_that_is_not_needed_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parallel_control, "granted_processors", lambda: 2.0)
    mark = f"{time.time_ns()}"
    monkeypatch.setenv(MARK, mark)
    trainer = MultiTurnRLTrainer(
        CHASE, overrides=[f"run.runs_dir={tmp_path}", *SMALL], name="run", check=False, quiet=True
    )
    run = trainer.load()
    run.set_status("running")
    own = [os.getpid()]
    with (
        hold_lock(run.path, UsageError(""), name=CONTROL_LOCK),
        ParallelControl(trainer.config, lambda: trainer.folder, Console()) as parallel,
    ):
        until(lambda: parallel._process is not None, within=30)
        assert parallel.wait() is None
    shown = " ".join(capsys.readouterr().err.split())
    assert "exit code 2, so the control is trained now" in shown
    assert "another process trains the control" in (run.path / OUTPUT).read_text().replace("\n", " ")
    with ParallelControl(trainer.config, lambda: trainer.folder, Console(quiet=True)) as parallel:
        until(lambda: len(marked(mark)) >= 2, within=30)  # the keeper and the command, or more
        time.sleep(1.0)
        assert parallel._process is not None
        assert parallel._process.poll() is None  # it lives as long as the block
    until(lambda: [pid for pid in marked(mark) if pid not in own] == [], within=15)
    trainer.close()
