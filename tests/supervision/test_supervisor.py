"""The supervisor starts a training that crashed again, knows when not to, and leaves no process behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from sparring.supervision.supervisor import CRASHED, Supervisor
from tests.faults.training import RECIPE

# A supervisor ends all that descends from its process, so it is never this one.
processes = multiprocessing.get_context("forkserver")

PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
from sparring.supervision.report import Report

run = pathlib.Path(sys.argv[1])
starts = run / "starts"
starts.open("a").write(" ".join(sys.argv[2:]) + "\\n")
number = len(starts.read_text().splitlines())
report = Report()
report.trains(str(run))
"""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.toml").touch()
    (folder / "status.json").write_text(json.dumps({"status": "running", "step": 4}))
    return folder


def _supervise(run: Path, program: str, options: dict[str, float]) -> None:
    def say(line: str) -> None:
        with (run / "messages").open("a") as file:
            file.write(line + "\n")

    command = [sys.executable, "-c", PROGRAM + program, str(run)]
    supervisor = Supervisor([*command, "begin"], lambda path: [*command, "resume", path], say=say, **options)  # type: ignore[arg-type]
    sys.exit(supervisor.run())


def supervised(run: Path, program: str, **options: float) -> ForkServerProcess:
    process = processes.Process(target=_supervise, args=(run, program, {"pause_seconds": 0.01, **options}))
    process.start()
    return process


def exit_code(process: ForkServerProcess) -> int | None:
    process.join(60)
    if process.exitcode is None:
        process.kill()  # else this process would wait for it at its own end
        raise AssertionError("the supervisor does not end")
    return process.exitcode


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_training_that_dies_is_resumed_until_it_is_over(run: Path) -> None:
    process = supervised(run, "if number < 3: os.kill(os.getpid(), signal.SIGKILL)\nreport.over(0)")
    assert exit_code(process) == 0
    assert (run / "starts").read_text() == f"begin\nresume {run}\nresume {run}\n"
    notes = [json.loads(line) for line in (run / "restarts.jsonl").read_text().splitlines()]
    assert [(note["crash"], note["step"]) for note in notes] == [("died of SIGKILL", 4)] * 2


@pytest.mark.parametrize("code", [0, 1, 2, 5])
def test_one_that_ends_by_itself_is_not_started_again(run: Path, code: int) -> None:
    assert exit_code(supervised(run, f"report.over({code}); sys.exit({code})")) == code
    assert (run / "starts").read_text() == "begin\n"


def test_code_that_leaves_the_interpreter_is_a_crash_and_not_a_success_and_is_given_up_in_the_end(run: Path) -> None:
    assert exit_code(supervised(run, "os._exit(0)", max_restarts=2)) == CRASHED
    assert len((run / "starts").read_text().splitlines()) == 3
    status = json.loads((run / "status.json").read_text())
    assert status["status"] == "failed"
    assert status["reason"] == "the training left the interpreter (exit code 0) 3 times in a row after step 4"


def test_trackers_log_a_training_that_is_given_up(run: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    tracking = f'\n[tracking]\nprometheus_textfile_dir = "{run}"\n'
    (run / "run.toml").write_text(RECIPE.read_text() + tracking)
    assert exit_code(supervised(run, "os._exit(0)", max_restarts=0)) == CRASHED
    assert 'sparring_run_status{run="run",status="failed"} 1.0' in (run / "sparring-run.prom").read_text()


def test_steps_between_crashes_give_it_new_attempts(run: Path) -> None:
    program = """
(run / "status.json").write_text('{"status": "running", "step": %d}' % (number // 2))
if number < 7: os._exit(9)
report.over(0)
"""
    assert exit_code(supervised(run, program, max_restarts=2)) == 0


def test_one_that_dies_before_it_has_a_run_is_not_started_again(run: Path) -> None:
    program = f"import os; open({str(run / 'starts')!r}, 'a').write('x'); os._exit(7)"
    process = processes.Process(target=_run_bare, args=(program,))
    process.start()
    assert exit_code(process) == CRASHED
    assert (run / "starts").read_text() == "x"


def _run_bare(program: str) -> None:
    supervisor = Supervisor([sys.executable, "-c", program], lambda run: ["never"], say=lambda line: None)
    sys.exit(supervisor.run())


def test_one_that_falls_silent_is_ended_and_resumed(run: Path) -> None:
    program = "if number == 1: os.kill(os.getpid(), signal.SIGSTOP)\nreport.over(0)"
    assert exit_code(supervised(run, program, silent_seconds=3.0)) == 0
    assert json.loads((run / "restarts.jsonl").read_text())["crash"] == "hung"


GRANDCHILDREN = """
for number in range(3):
    twice = ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"]
    sleeper = subprocess.Popen(twice, start_new_session=True, stdout=subprocess.PIPE)
    (run / "pids").open("a").write("%d %s" % (sleeper.pid, sleeper.stdout.readline().decode()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux alone")
def test_nothing_is_left_of_one_that_was_killed(run: Path) -> None:
    assert exit_code(supervised(run, GRANDCHILDREN + "os._exit(0)", max_restarts=0)) == CRASHED
    pids = [int(pid) for pid in (run / "pids").read_text().split()]
    assert len(pids) == 6
    eventually(lambda: not any(map(is_alive, pids)))


WAITS = """
def stop(*_):
    (run / "stopped").open("a").write("x")
    report.over(0)
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
(run / "ready").touch()
time.sleep(600)
"""


def test_a_request_to_stop_is_passed_on_and_ends_both(run: Path) -> None:
    process = supervised(run, WAITS)
    eventually((run / "ready").exists)
    os.kill(process.pid or 0, signal.SIGTERM)
    assert exit_code(process) == 0
    assert (run / "stopped").read_text() == "x"


def test_a_training_stops_with_its_checkpoint_when_its_supervisor_was_killed(run: Path) -> None:
    process = supervised(run, "(run / 'pid').write_text(str(os.getpid()))\n" + WAITS)
    eventually((run / "ready").exists)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(10)
    pid = int((run / "pid").read_text())
    eventually(lambda: not is_alive(pid))
    assert (run / "stopped").read_text() == "x"


def _supervise_at_a_terminal(run: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    _supervise(run, WAITS, {"pause_seconds": 0.01})


def test_a_terminal_that_is_closed_stops_a_training(run: Path) -> None:
    process = processes.Process(target=_supervise_at_a_terminal, args=(run,))
    process.start()
    eventually((run / "ready").exists)
    os.kill(process.pid or 0, signal.SIGHUP)
    assert exit_code(process) == 0
    assert (run / "stopped").read_text() == "x"


def _supervise_with_nohup(run: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _supervise(run, "os.kill(os.getppid(), signal.SIGHUP)\n" + WAITS.replace("600", "0.3") + "report.over(7)", {})


def test_nohup_leaves_a_training_alone_when_its_terminal_is_closed(run: Path) -> None:
    process = processes.Process(target=_supervise_with_nohup, args=(run,))
    process.start()
    assert exit_code(process) == 7
    assert not (run / "stopped").exists()


STOPS = """
import threading
from sparring.runtime.interrupts import interrupts

asked = threading.Event()
(run / "pid").write_text(str(os.getpid()))
with interrupts(asked.set):
    (run / "ready").touch()
    while not asked.wait(0.1):
        pass
    (run / "stopping").touch()
    time.sleep(1)  # writes its last checkpoint
(run / "stopped").touch()
report.over(0)
"""


def test_a_training_that_is_stopping_when_its_supervisor_is_killed_finishes_its_checkpoint(run: Path) -> None:
    process = supervised(run, STOPS)
    eventually((run / "ready").exists)
    os.kill(process.pid or 0, signal.SIGTERM)
    eventually((run / "stopping").exists)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(10)
    eventually(lambda: not is_alive(int((run / "pid").read_text())))
    assert (run / "stopped").exists()


def test_a_signal_to_every_process_is_one_request(run: Path) -> None:
    """As a service manager or a batch system stops what it runs: each process gets the signal, and one the supervisor's, too."""
    process = supervised(run, STOPS)
    eventually((run / "ready").exists)
    os.kill(int((run / "pid").read_text()), signal.SIGTERM)
    eventually((run / "stopping").exists)
    os.kill(process.pid or 0, signal.SIGTERM)
    assert exit_code(process) == 0
    assert (run / "stopped").exists()


def test_one_that_still_starts_ends_at_once_when_its_supervisor_is_killed(run: Path) -> None:
    program = f"""
import os, pathlib, time
from sparring.supervision.report import Report
Report()
pathlib.Path({str(run / "part")!r}).write_text(str(os.getpid()))
os.rename({str(run / "part")!r}, {str(run / "pid")!r})
time.sleep(600)
"""
    process = processes.Process(target=_run_bare, args=(program,))
    process.start()
    eventually((run / "pid").exists)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(10)
    eventually(lambda: not is_alive(int((run / "pid").read_text())), 5)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_one_that_waits_to_start_a_training_again_ends_on_a_signal_and_starts_nothing(
    run: Path, number: signal.Signals, code: int
) -> None:
    process = supervised(run, "os._exit(9)", pause_seconds=600.0)
    eventually((run / "restarts.jsonl").exists)
    began = time.monotonic()
    os.kill(process.pid or 0, number)
    assert exit_code(process) == code
    assert time.monotonic() - began < 5
    assert (run / "starts").read_text() == "begin\n"


def test_a_second_request_ends_one_that_does_not_listen(run: Path) -> None:
    process = supervised(run, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n(run / 'ready').touch()\ntime.sleep(600)")
    eventually((run / "ready").exists)
    began = time.monotonic()
    for _ in range(2):
        os.kill(process.pid or 0, signal.SIGTERM)
        time.sleep(0.3)
    assert exit_code(process) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 15
