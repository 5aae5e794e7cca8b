"""A wall clock that jumps in the middle of a run changes nothing but the times that are written down."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from sparring.ledger import Ledger
from sparring.runtime.faults import FAULTS_VARIABLE, LOG_VARIABLE
from tests.faults.test_command import Command, seconds_until
from tests.faults.test_crashes import fingerprint, read_charts
from tests.faults.training import Training

HOUR, DAY = 3600, 86400
MOVED = """
import os, time
real, real_ns = time.time, time.time_ns

def offset():
    with open(os.environ["CLOCK_OFFSET"]) as file:
        return int(file.read())

time.time = lambda: real() + offset()
time.time_ns = lambda: real_ns() + offset() * 10**9
"""
"""What every process of the run begins with: the wall clock, but no other, is that of a file. (libfaketime has `time.sleep`
fail where it leaves the monotonic clock alone.)"""


def moved(offset: Path, seconds: int) -> None:
    temporary = offset.with_suffix(".new")
    temporary.write_text(str(seconds))
    temporary.replace(offset)


@pytest.mark.skipif(int(os.environ.get("FAULT_SEEDS", "1")) == 1, reason="takes its time; `make faults` runs it")
def test_a_clock_that_jumps_back_an_hour_and_on_by_a_day_changes_nothing(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    moved(offset, 0)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sitecustomize.py").write_text(MOVED)
    settings = ("schedule.max_steps=8", "schedule.save_every=1")
    whole = Training(tmp_path / "whole", settings)
    assert whole.over() == 0
    # Slow enough for the clock to be moved while steps 2 and 4 are played; then the trainer dies.
    slow = "worker.answering=delay,seconds=0.02,times=100000;step.claimed=kill,at=6"
    command = Command(
        tmp_path,
        {
            "CLOCK_OFFSET": str(offset),
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "code"), *filter(None, sys.path)]),
            FAULTS_VARIABLE: slow,
            LOG_VARIABLE: str(tmp_path / "faults"),
        },
    )
    process = command.begin(*settings, "environment.workers=1")
    try:
        for step, seconds in ((1, -HOUR), (3, DAY)):
            seconds_until(lambda step=step: command.step() >= step or process.poll() is not None, within=300)
            moved(offset, seconds)
        _, error = process.communicate(timeout=300)
    finally:
        for pid in command.processes():
            os.kill(pid, signal.SIGKILL)
    assert process.returncode == 0, error
    assert "step.claimed=kill" in (tmp_path / "faults").read_text()
    run = Training(tmp_path).run
    with sqlite3.connect(run / "ledger.sqlite") as db:
        times = [time for (time,) in db.execute("SELECT time FROM events ORDER BY sequence")]
    # The clock did jump.
    jumps = [after - before for before, after in pairwise(times)]
    assert min(jumps) < -0.9 * HOUR
    assert max(jumps) > DAY
    assert read_charts(Training(tmp_path)) == read_charts(whole)
    assert fingerprint(Training(tmp_path)) == fingerprint(whole)
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        counts = ledger.counts("train")
    # No episode timed out, and no process was taken for dead.
    assert {name for name in counts if name.startswith("discarded/")} <= {"discarded/rewound"}
    assert not (run / "stalls.txt").exists()
    assert "has not reported" not in error
    assert len((run / "restarts.jsonl").read_text().splitlines()) == 1
