"""Memory that long texts needed does not stay with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, time
from pathlib import Path
from sparring.runtime import allocator
from sparring.runtime.threads import process_long_text

allocator._SECONDS = 0.2
if {keeps}:
    allocator.keep_freed_memory()


def mib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def work():
    # Malloc does not map blocks of this size one by one. Those that stay keep the heap from shrinking by itself.
    return [b"x" * 60_000 for _ in range(2_000)][::100]


async def main():
    before = mib()
    kept = await process_long_text(work)
    peak = mib()
    await asyncio.sleep(1.5)
    print(before, peak, mib())

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
@pytest.mark.parametrize("keeps", [False, True])
def test_the_memory_of_a_long_text_is_returned_unless_the_process_keeps_it(keeps: bool) -> None:
    script = SCRIPT.replace("{keeps}", str(keeps))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    before, peak, after = map(float, done.stdout.split())
    assert peak - before > 50
    assert (after - before < 20) != keeps
