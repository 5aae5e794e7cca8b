"""Cases that are diagnosed while they train: which they are, and that their processes end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.diagnosis import __main__ as diagnosis
from benchmarks.diagnosis.cases import Live, all_cases

WAITS = "print(flush=True); import time; time.sleep(60)"


def started(code: str) -> subprocess.Popen[bytes]:
    """A process that has printed its first line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as lines:
        lines.readline()
    return process


def with_steps(run: Path, *steps: int) -> Path:
    lines = (json.dumps({"step": step, "time": 0.0, "metrics": {}}) + "\n" for step in steps)
    (run / "metrics.jsonl").write_text("".join(lines))
    return run


def test_a_case_states_when_it_is_diagnosed() -> None:
    live = {one.name: one.live for one in all_cases() if one.live is not None}
    assert live == {
        "blind/large_batch": Live(after_step=4, seconds=8),
        "blind/lost_connections": Live(after_step=10, seconds=90),
    }


def test_a_process_is_asked_to_end() -> None:
    process = started(WAITS)
    diagnosis.end(process)
    assert process.returncode == -signal.SIGTERM


def test_a_process_that_does_not_end_is_killed() -> None:
    process = started(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}")
    diagnosis.end(process, seconds=0.1)
    assert process.returncode == -signal.SIGKILL


def test_a_step_is_waited_for_until_it_is_there_the_process_is_over_or_it_is_late(tmp_path: Path) -> None:
    run, process = with_steps(tmp_path, 0, 1, 2), started(WAITS)
    diagnosis.wait_for_step(run, 2, process)
    began = time.monotonic()
    with pytest.raises(SystemExit, match="no step 3"):
        diagnosis.wait_for_step(run, 3, process, seconds=0.1)
    assert time.monotonic() - began < 10
    process.kill()
    process.wait()
    with pytest.raises(SystemExit, match="exit code -9 before step 3"):
        diagnosis.wait_for_step(run, 3, process)
