"""The command itself: killed or stopped, it goes on unattended or ends in time, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sparring.ledger import Ledger
from sparring.ledger.verification import verify_file
from sparring.run_folders import RunFolder
from sparring.runtime.faults import FAULTS_VARIABLE, LOG_VARIABLE
from sparring.training import checkpoints
from tests.faults.test_crashes import fingerprint
from tests.faults.training import RECIPE, Training

MARK = "SPARRING_TEST_MARK"


@dataclass
class Command:
    """`sparring train`, and all that descends from it."""

    runs_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.runs_dir / "run")

    @property
    def temporary(self) -> Path:
        return self.runs_dir / "temporary"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self.temporary.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "sparring", "train", *arguments, "--json"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "TMPDIR": str(self.temporary), MARK: self.mark, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def begin(self, *overrides: str) -> subprocess.Popen[str]:
        return self.start(str(RECIPE), "--name", "run", "--no-check", f"run.runs_dir={self.runs_dir}", *overrides)

    def processes(self) -> list[int]:
        """Of all that inherited the mark and lives."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"{MARK}={self.mark}".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def trainer(self) -> int:
        return self.run.status()["process"]["pid"]

    def step(self) -> int:
        with suppress(OSError, ValueError, LookupError):
            return int(json.loads((self.runs_dir / "run" / "status.json").read_text())["step"])
        return -1


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    for pid in command.processes():  # of a test that failed
        os.kill(pid, signal.SIGKILL)
    for process in command.started:
        process.communicate()


def seconds_until(condition: Callable[[], bool], *, within: float) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within, f"not within {within:g} s"
        time.sleep(0.02)
    return time.monotonic() - began


def busy() -> float:
    """How much longer things may take here: processes for each core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_sparring_train_resumes_unattended(command: Command) -> None:
    command.environment = {
        FAULTS_VARIABLE: "checkpoint.renamed=kill,at=2",
        LOG_VARIABLE: str(command.runs_dir / "faults"),
    }
    process = command.begin()
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert json.loads(out)["status"] == "completed"
    assert len((command.run.path / "restarts.jsonl").read_text().splitlines()) == 1
    assert verify_file(command.run.path / "ledger.sqlite", max_steps_off_policy=0) == []
    assert "terminate called" not in error


ENDLESS = ("schedule.max_steps=100000", "schedule.max_epochs=100000", "schedule.val_every=0", "schedule.save_every=1")


@pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc")
def test_a_killed_trainer_is_back_in_time_and_nothing_is_left_of_a_killed_supervisor(command: Command) -> None:
    process = command.begin(*ENDLESS, "environment.workers=1")
    seconds_until(lambda: command.step() >= 2, within=300)
    # Supervisor, trainer, the worker's keeper, worker.
    assert len(command.processes()) == 4

    killed, step = command.trainer(), command.step()
    os.kill(killed, signal.SIGKILL)
    took = seconds_until(lambda: command.trainer() != killed and command.step() > step + 1, within=30 * busy())
    print(f"trainer: {took:.1f} s until its next step")  # noqa: T201

    process.kill()
    took = seconds_until(lambda: not command.processes(), within=10 * busy())
    print(f"supervisor: {took:.1f} s until nothing is left")  # noqa: T201
    assert command.run.status()["status"] == "stopped"
    assert checkpoints.find_newest(command.run.checkpoints).name == checkpoints.format_name(command.step())
    assert list(command.temporary.iterdir()) == []
    with command.run.lock_for_training(), Ledger(command.run.path / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []


STOPS = [signal.SIGTERM, signal.SIGINT][: 2 if int(os.environ.get("FAULT_SEEDS", "1")) > 1 else 1]


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_stop_in_the_middle_of_a_long_step_is_in_time_and_loses_that_step_alone(
    command: Command, number: signal.Signals
) -> None:
    # The eighth microbatch is one of step 4; it takes ten minutes.
    command.environment = {
        FAULTS_VARIABLE: "learner.forward=delay,at=8,seconds=600",
        LOG_VARIABLE: str(command.runs_dir / "faults"),
    }
    whole = Training(command.runs_dir / "whole", ("schedule.save_every=4",))
    assert whole.over() == 0
    process = command.begin("schedule.save_every=4")
    seconds_until(lambda: (command.runs_dir / "faults").exists() or process.poll() is not None, within=300)
    step = command.step()
    assert step == 3
    process.send_signal(number)
    began = time.monotonic()
    out, error = process.communicate(timeout=300)
    took = time.monotonic() - began
    print(f"{number.name}: {took:.1f} s until it had ended")  # noqa: T201
    assert process.returncode == 0, error
    assert took < 15 * busy()
    assert (json.loads(out)["status"], json.loads(out)["step"]) == ("stopped", step)
    assert checkpoints.find_newest(command.run.checkpoints).name == checkpoints.format_name(step)
    assert command.processes() == []
    with Ledger(command.run.path / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        # Three steps of two groups of three, and those of the fourth.
        counts = ledger.counts("train")
        assert (counts["trained"], counts["discarded/operator_cancel"], counts["planned_total"]) == (18, 6, 24)
    assert Training(command.runs_dir).over(resume=True) == 0
    assert fingerprint(Training(command.runs_dir)) == fingerprint(whole)


def test_a_run_whose_supervisor_was_killed_goes_on_exactly(command: Command) -> None:
    # The sixth microbatch is one of step 3.
    command.environment = {
        FAULTS_VARIABLE: "learner.forward=delay,at=6,seconds=600",
        LOG_VARIABLE: str(command.runs_dir / "faults"),
    }
    whole = Training(command.runs_dir / "whole", ("schedule.save_every=1",))
    assert whole.over() == 0
    process = command.begin("schedule.save_every=1")
    seconds_until(lambda: (command.runs_dir / "faults").exists() or process.poll() is not None, within=300)
    assert command.step() == 2
    process.kill()
    seconds_until(lambda: not command.processes(), within=10 * busy())
    assert command.run.status()["status"] == "stopped"
    assert Training(command.runs_dir).over(resume=True) == 0
    assert fingerprint(Training(command.runs_dir)) == fingerprint(whole)
    assert verify_file(command.run.path / "ledger.sqlite", max_steps_off_policy=0) == []
