"""A run in another process is waited for, watched and stopped by an attached trainer."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from sparring.errors import UsageError
from sparring.run_folders import RunFolder
from sparring.tracking import Console
from sparring.trainer import MultiTurnRLTrainer
from sparring.training_run.following import follow

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "faults" / "recipe"


@contextmanager
def training(tmp_path: Path, max_steps: int) -> Iterator[Path]:
    """Train in another process, and yield the run's folder as soon as it is running."""
    overrides = [f"run.runs_dir={tmp_path}", f"schedule.max_steps={max_steps}", "schedule.max_epochs=100000"]
    command = [sys.executable, "-m", "sparring", "train", str(TINY), *overrides, "--name", "one", "--no-check"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [*command, "--no-supervise"],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
    try:
        run, deadline = tmp_path / "one", time.monotonic() + 90
        while not RunFolder.is_run(run) or RunFolder(run).status().get("step", 0) < 1:
            assert process.poll() is None, (tmp_path / "output").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield run
        assert process.wait(60) == 0, (tmp_path / "output").read_text()
    finally:
        process.kill()
        process.wait()


def test_an_attached_trainer_stops_a_run_of_another_process_and_waits_for_its_end(tmp_path: Path) -> None:
    with training(tmp_path, max_steps=100000) as run:
        trainer = MultiTurnRLTrainer.attach(run, quiet=True)
        assert trainer.status()["status"] == "running"
        with pytest.raises(TimeoutError, match="it continues"):
            trainer.wait(timeout=0.5)
        trainer.stop()
        result = trainer.wait(timeout=60)
    assert result.status == trainer.status()["status"] == "stopped"
    assert result.step == trainer.status()["step"] >= 1
    assert next(iter(result.validations)) == 0
    with pytest.raises(UsageError, match="is stopped, not running"):
        trainer.stop()


def test_the_steps_of_a_run_of_another_process_are_shown_while_it_is_waited_for(tmp_path: Path) -> None:
    with training(tmp_path, max_steps=40) as run:
        shown = io.StringIO()
        result = follow(RunFolder(run), Console(progress=RichConsole(file=shown, width=200)), 90)
    assert (result.status, result.step) == ("completed", 40)
    assert "step 40  reward" in shown.getvalue()
    # What has ended is not waited for.
    assert MultiTurnRLTrainer.attach(run, quiet=True).wait(timeout=0).step == 40


def test_a_run_that_no_process_trains_is_not_waited_for(tmp_path: Path) -> None:
    trainer = MultiTurnRLTrainer(TINY, overrides=[f"run.runs_dir={tmp_path}"], name="one", quiet=True)
    with pytest.raises(UsageError, match="call train"):
        trainer.wait()
    trainer.load()
    trainer.close()
    with pytest.raises(UsageError, match="is created, and no other process trains it"):
        MultiTurnRLTrainer.attach(tmp_path / "one", quiet=True).wait()


def test_the_log_of_a_run_is_shown_from_its_end(tmp_path: Path) -> None:
    trainer = MultiTurnRLTrainer(TINY, overrides=[f"run.runs_dir={tmp_path}"], name="one", quiet=True)
    folder = trainer.load()
    trainer.close()
    (folder.path / "log.jsonl").write_text(
        "".join(f'{{"level": "WARNING", "message": "number {place}"}}\n' for place in range(3)) + '{"level"', "utf-8"
    )
    assert MultiTurnRLTrainer.attach(folder.path, quiet=True).log(2) == ["WARNING: number 1", "WARNING: number 2"]
