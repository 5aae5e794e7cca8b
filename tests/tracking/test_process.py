"""The priority of the helper processes of tracking next to a run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
