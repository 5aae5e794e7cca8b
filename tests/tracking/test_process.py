"""The priority of the helper processes of tracking next to a run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparring.tracking.exporter import Exporter
from sparring.tracking.services import tensorboard

SAY = """
import os
from sparring.tracking.process import lower_priority
lower_priority()
lower_priority()
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has it")
def test_a_process_that_stepped_back_computes_only_when_no_other_process_wants_to() -> None:
    output = subprocess.run([sys.executable, "-c", SAY], check=True, capture_output=True, text=True).stdout
    assert output.split() == ["19", str(os.SCHED_IDLE)]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has it")
@pytest.mark.parametrize("steps_back", [True, False])
def test_the_process_of_a_run_steps_back_and_one_that_a_user_waits_for_does_not(
    tmp_path: Path, steps_back: bool
) -> None:
    with (tmp_path / "tensorboard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process waits for it, so that it can be looked at
        exporter = Exporter(tmp_path, tensorboard(), steps_back=steps_back)
        process = exporter._process.pid
        for _ in range(600):
            if tmp_path / "tensorboard.lock" in _open_files(process):
                break
            time.sleep(0.1)
        policy = os.sched_getscheduler(process)
    exporter.finish(60)
    assert policy == (os.SCHED_IDLE if steps_back else os.SCHED_OTHER)


def _open_files(process: int) -> list[Path]:
    files = []
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed in between
            files.append(descriptor.readlink())
    return files
