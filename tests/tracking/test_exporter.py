"""The trainer starts a process for a service, logs what that prints, and never waits longer than it should."""

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sparring.runtime.keeper import list_descendants
from sparring.tracking.exporter import Exporter
from sparring.tracking.local import LocalTracker
from sparring.tracking.services import mlflow

SERVICE = mlflow(uri="http://127.0.0.1:1", experiment="exp")


def tracker(folder: Path, program: str) -> Exporter:
    return Exporter(folder, SERVICE, command=[sys.executable, "-c", program])


def test_it_receives_where_to_look_and_that_the_run_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = (
        "import sys, pathlib; line = sys.stdin.readline(); sys.stdin.read();"
        f"pathlib.Path({str(tmp_path / 'input')!r}).write_text(line); print('it was slow'); print('done')"
    )
    started = tracker(tmp_path, program)
    assert started.finish(60.0)
    settings = json.loads((tmp_path / "input").read_text())
    assert settings == {
        "folder": str(tmp_path),
        "service": "mlflow",
        "address": "http://127.0.0.1:1",
        "options": {"uri": "http://127.0.0.1:1", "experiment": "exp"},
        "redact": [],
        "steps_back": True,
    }
    assert [record.message for record in caplog.records] == ["tracking: MLflow: it was slow"]


def test_one_that_hangs_is_ended_and_a_warning_names_how_to_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = tracker(tmp_path, "import time; time.sleep(600)")
    began = time.monotonic()
    started.log_metrics(1, {"a": 1.0})
    assert not started.finish(0.2)
    assert time.monotonic() - began < 30.0
    assert f"Run `sparring runs sync {tmp_path}` to send the rest" in caplog.text
    assert not started.finish(0.2)


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "print('left')"])
def test_one_that_ends_early_or_leaves_something_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: str
) -> None:
    started = tracker(tmp_path, program)
    started.log_status("running")
    started.close()
    assert "has not received all data" in caplog.text


SENDS = """
import os, pathlib, sys, time, types

class Receiver:
    "Stands for the server: asleep at one moment, once."

    def __init__(self, folder, *, uri, experiment):
        self.folder = folder

    def open(self, kept):
        self.sleep("opening")
        return True

    def take(self, piece):
        with (self.folder / "received").open("a") as file:
            file.write(f"{piece.name} {piece.mark}\\n")
        self.sleep("sending")

    def finish(self):
        self.sleep("finishing")

    def sleep(self, state):
        if state == sys.argv[1] and not (self.folder / "asleep").exists():
            (self.folder / "asleep").touch()
            time.sleep(600)

sys.modules["sparring.tracking.mlflow_receiver"] = types.SimpleNamespace(MlflowReceiver=Receiver)
from sparring.tracking import exporter_process
exporter_process.main()
"""


@pytest.mark.parametrize("state", ["opening", "sending", "waiting", "finishing"])
def test_one_that_is_killed_in_any_state_is_replaced_and_the_rest_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    local = LocalTracker(tmp_path)
    local.log_metrics(1, {"a": 1.0})
    local.log_artifact("evaluations/validation-0.json", {"score": 1})
    local.close()
    started = Exporter(tmp_path, SERVICE, command=[sys.executable, "-c", SENDS, state])
    finishing = threading.Thread(target=started.finish, args=(60.0,))
    if state == "finishing":
        finishing.start()
    received, asleep = tmp_path / "received", tmp_path / "asleep"
    deadline = time.monotonic() + 60.0
    while not (num_remembered(tmp_path) == 2 if state == "waiting" else asleep.exists()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    [process] = processes_of(SENDS)
    os.kill(process, signal.SIGKILL)
    if state != "finishing":
        finishing.start()
    finishing.join(60.0)
    assert started.finish(0.0), caplog.text
    assert "was killed (9); another one continues" in caplog.text
    pieces = received.read_text().splitlines()
    # It is not known whether the piece that it was sending arrived: it is sent again under the same name.
    assert len(pieces) == (3 if state == "sending" else 2)
    assert len(set(pieces)) == 2
    assert processes_of(SENDS) == []


def num_remembered(run: Path) -> int:
    """Pieces of which the process has recorded that they were sent."""
    record = run / "mlflow.json"
    return len(json.loads(record.read_text())["told"]) if record.exists() else 0


def processes_of(program: str) -> list[int]:
    """That this one has started."""
    found = []
    for pid in list_descendants():
        with suppress(OSError):
            if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
