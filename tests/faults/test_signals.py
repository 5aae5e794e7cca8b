"""Each command that opens environments, stopped or killed: they are closed where the signal allows it, and no process is left.

`make test` runs some of the combinations, `make faults` all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from tests.faults.training import RECIPE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc")

MARK, NOTES, PLAN = "SPARRING_TEST_MARK", "OWNER_NOTES", "OWNER_PLAN"
"""Environment variables: what all processes of a test inherit, and what its environments read (recipe/owner.py)."""
EVERYTHING = int(os.environ.get("FAULT_SEEDS", "1")) > 1
SCRIPTED = ("engine.type=scripted", "engine.script=owner:act")
HELD_OUT = (
    "environment.target=owner:Owner",
    "reward.reward=owner:reward",
    "data.held_out=owner:held_out_tasks",
    "evaluation.eval_group_size=4",
)


@dataclass
class Command:
    """A command of Sparring and all that descends from it."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[str] | None = None

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def start(self, *arguments: str, plan: str = "", **environment: str) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparring", *arguments],
            cwd=self.folder,
            text=True,
            env={**os.environ, MARK: self.mark, NOTES: str(self.notes), PLAN: plan, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return self.process

    def begin(self, name: str, workers: int) -> int:
        """Start a command, and wait until it plays; how many environments are open then."""
        num_open, arguments, plan = COMMANDS[name]
        if name == "replay":
            recorded = self.start("eval", str(RECIPE), "run.name=run", *SCRIPTED, *HELD_OUT)
            _, error = recorded.communicate(timeout=120)
            assert recorded.returncode == 0, error
            self.notes.unlink()
        self.start(name, *arguments, *([] if name == "replay" else [f"environment.workers={workers}"]), plan=plan)
        self.until(lambda: len(self.open()) == num_open)
        return num_open

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait while the command goes on."""
        assert self.process is not None
        until(lambda: condition() or self.process.poll() is not None, within=120)
        assert condition(), self.process.communicate()

    def noted(self, what: str) -> list[str]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return sorted(line.split()[1] for line in lines if line.startswith(what))

    def open(self) -> set[str]:
        return set(self.noted("opened")) - set(self.noted("closed"))

    def playing(self) -> int:
        """The process that the environments are in."""
        return int(self.notes.read_text().split()[2])

    def processes(self) -> list[str]:
        """The command lines of all that inherited the mark and live."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    found.append(f"{path.name} {(path / 'cmdline').read_bytes().decode()!r}")
        return found


COMMANDS: Mapping[str, tuple[int, Sequence[str], str]] = {
    "eval": (8, (str(RECIPE), *SCRIPTED, *HELD_OUT), "tool=1"),
    "train": (2, (str(RECIPE), "--no-check", "environment.target=owner:Owner", "schedule.max_steps=1"), "reset=v"),
    "check": (1, (str(RECIPE), "environment.target=owner:Owner"), "reset=t"),
    "replay": (1, ("runs/run",), "tool=1"),
}
"""How many environments are open when it plays; its arguments; what the environments do."""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    command = Command(tmp_path)
    yield command
    for line in command.processes():  # of a test that failed
        with suppress(OSError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    if command.process is not None:
        command.process.communicate()


def until(condition: Callable[[], bool], *, within: float) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s"
        time.sleep(0.02)


MATRIX = [
    (name, workers, number)
    for name, workers, number in product(COMMANDS, (0, 1), (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    if not workers or name in ("eval", "train")  # the others use none
]
FAST = [
    ("eval", 0, signal.SIGINT),
    ("eval", 1, signal.SIGTERM),
    ("eval", 1, signal.SIGKILL),
    ("check", 0, signal.SIGINT),
]


@pytest.mark.parametrize(("name", "workers", "number"), MATRIX if EVERYTHING else FAST)
def test_every_environment_is_closed_once_and_no_process_is_left(
    command: Command, name: str, workers: int, number: signal.Signals
) -> None:
    num_open = command.begin(name, workers)
    assert command.process is not None
    command.process.send_signal(number)
    _, error = command.process.communicate(timeout=60)
    stopped = 0 if name == "train" else 128 + number
    assert command.process.returncode == (-number if number == signal.SIGKILL else stopped), error
    # Of a command that was killed the process that plays goes on to close what is open.
    until(lambda: not command.processes(), within=30 if number == signal.SIGKILL else 2)
    assert command.noted("closed") == command.noted("opened")
    assert len(command.noted("closed")) >= num_open


@pytest.mark.parametrize("name", ["eval", "check", "replay"] if EVERYTHING else ["eval"])
def test_no_process_is_left_when_the_one_that_plays_is_killed(command: Command, name: str) -> None:
    command.begin(name, 0)
    assert command.process is not None
    os.kill(command.playing(), signal.SIGKILL)
    if name == "check":  # it goes on in another process
        until(lambda: len(command.noted("opened")) > 1, within=60)
        command.process.send_signal(signal.SIGINT)
    _, error = command.process.communicate(timeout=60)
    assert command.process.returncode == (130 if name == "check" else 1), error
    assert name == "check" or "died of SIGKILL" in error
    assert command.processes() == []


@pytest.mark.parametrize("name", ["eval", "train"] if EVERYTHING else ["eval"])
def test_what_a_killed_worker_has_started_is_ended_while_the_command_goes_on(command: Command, name: str) -> None:
    num_open = command.begin(name, 1)
    assert command.process is not None
    sleeping = [line for line in command.processes() if "sleep" in line]
    assert len(sleeping) >= num_open
    os.kill(command.playing(), signal.SIGKILL)
    until(lambda: not set(sleeping) & set(command.processes()), within=10)
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    command.process.communicate(timeout=60)
    assert command.processes() == []


def test_ctrl_c_while_a_recipe_is_loaded_ends_at_once(command: Command) -> None:
    process = command.start("eval", str(RECIPE), *SCRIPTED, *HELD_OUT, plan="import=1")
    command.until(command.notes.exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert command.processes() == []


@pytest.mark.parametrize("close", ["wait", "hang"])
def test_a_second_signal_does_not_wait_for_environments_to_close(command: Command, close: str) -> None:
    process = command.start("eval", str(RECIPE), *SCRIPTED, *HELD_OUT, plan=f"tool=1,close={close}")
    command.until(lambda: len(command.open()) == 8)
    process.send_signal(signal.SIGTERM)
    until(lambda: len(command.noted("closing")) > 0, within=20)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143, error
    assert time.monotonic() - began < 10
    assert command.processes() == []


@pytest.mark.parametrize("close", ["wait", "hang"] if EVERYTHING else [])
def test_a_close_that_hangs_is_waited_for_until_the_deadline(command: Command, close: str) -> None:
    process = command.start("eval", str(RECIPE), *SCRIPTED, *HELD_OUT, plan=f"tool=1,close={close}")
    command.until(lambda: len(command.open()) == 8)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert 25 < time.monotonic() - began < 60
    assert "stopping" in error
    assert command.processes() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_that_is_stopped_ends_well(command: Command, number: signal.Signals) -> None:
    upstream = ("--upstream", "http://127.0.0.1:9/v1", "--model", "m")
    process = command.start("record", *upstream, "--out", str(command.folder / "out"), "--port", "0", "--json")
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "stopped\n")
