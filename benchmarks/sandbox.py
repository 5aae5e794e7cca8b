"""Measures the sandbox: how fast sandboxes start and run programs, how late deadlines take effect, and which resources
are left over.

The program is `print(1)` in the system's interpreter. Every figure is measured through the public interface.
`--backend` selects a different back end than the first one that works.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.report import needs, options, report
from sparring.errors import UsageError
from sparring.sandbox import Limits, Sandbox, calculate, open_sandbox
from sparring.sandbox.identity import PREFIX
from sparring.sandbox.processes import spawner

PROGRAM = ["python3", "-I", "-S", "-c", "print(1)"]
TARGETS = {
    "cold start of a box with a program, median ms": {"at_most": 60.0},
    "executions/s, 64 episodes of 10": {"at_least": 20.0},
    "failed executions": {"at_most": 0.0},
    "left over: processes, control groups, folders, descriptors": {"at_most": 0.0},
    "latest end after a deadline, s": {"at_most": 1.0},
    "growth of this process's memory, MiB": {"at_most": 16.0},
}


async def timed(number: int, action: Callable[[], Awaitable[Any]]) -> list[float]:
    """Return the milliseconds that each of several runs took. An additional first run is not counted."""
    await action()
    times = []
    for _ in range(number):
        began = time.perf_counter()
        await action()
        times.append(1000 * (time.perf_counter() - began))
    return times


def bare(number: int) -> list[float]:
    """Return the milliseconds that the same program takes without a sandbox."""
    times = []
    for _ in range(number + 1):
        began = time.perf_counter()
        subprocess.run(["/usr/bin/python3", *PROGRAM[1:]], env={}, stdout=subprocess.DEVNULL, check=True)
        times.append(1000 * (time.perf_counter() - began))
    return times[1:]


async def cold_starts(sandbox: Sandbox, number: int) -> list[float]:
    """Return the milliseconds for a new sandbox and its first program, without the removal of the sandbox."""
    times = []
    for _ in range(number + 1):
        began = time.perf_counter()
        async with sandbox.session() as box:
            await box.run(PROGRAM)
            times.append(1000 * (time.perf_counter() - began))
    return times[1:]


async def episodes(sandbox: Sandbox, number: int, num_executions: int) -> tuple[float, int]:
    """Run all episodes at once. Return the executions per second, including start and removal of the sandboxes, and the
    number of failed executions."""

    async def episode() -> int:
        async with sandbox.session({"a.txt": "1"}) as box:
            runs = [await box.run(PROGRAM) for _ in range(num_executions)]
        return sum(run.stdout != "1\n" for run in runs)

    began = time.perf_counter()
    failed = await asyncio.gather(*(episode() for _ in range(number)))
    return number * num_executions / (time.perf_counter() - began), sum(failed)


async def lateness(sandbox: Sandbox, number: int, deadline: float = 0.3) -> float:
    """Return how long after its deadline the slowest of several endless programs ends."""
    late = []
    async with sandbox.session() as box:
        for _ in range(number):
            began = time.perf_counter()
            await box.run(["python3", "-I", "-S", "-c", "while True: pass"], seconds=deadline)
            late.append(time.perf_counter() - began - deadline)
    return max(late)


def left_over() -> dict[str, int]:
    """Return the resources that the sandboxes of this process hold on the machine."""
    mine = f"{PREFIX}{os.getpid()}-*"
    spawner_id = spawner._process.pid if spawner._process else -1
    children = Path(f"/proc/{spawner_id}/task/{spawner_id}/children")
    return {
        "processes": len(children.read_text().split()) if children.exists() else 0,
        "groups": sum(len(list(where.folder.glob(mine))) for where in spawner.hierarchies),
        "folders": len(list(Path(tempfile.gettempdir()).glob(mine))),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def memory_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def measure(
    sandbox: Sandbox, number: int, num_episodes: int, num_executions: int
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    await cold_starts(sandbox, 2)
    before, memory = left_over(), memory_mib()
    starts = await cold_starts(sandbox, number)
    async with sandbox.session() as box:
        warm = await timed(number, lambda: box.run(PROGRAM))
    plain = bare(number)
    rate, failed = await episodes(sandbox, num_episodes, num_executions)
    late = await lateness(sandbox, 5)
    after = left_over()
    sums = await timed(200, lambda: calculate("2*(3+4)"))
    rows = [
        {"what": name, "median, ms": median(times), "p95, ms": quantiles(times, n=20)[-1], "runs": len(times)}
        for name, times in (
            ("a box and its first program", starts),
            ("a program in an open box", warm),
            ("the same program, nothing around it", plain),
            ("an arithmetic expression", sums),
        )
    ]
    figures = {
        "cold start of a box with a program, median ms": median(starts),
        "cold start beside the same program with nothing around it": median(starts) / median(plain),
        "a program in an open box, median ms": median(warm),
        "executions/s, 64 episodes of 10": rate,
        "failed executions": failed,
        "left over: processes, control groups, folders, descriptors": sum(
            max(0, after[name] - before[name]) for name in after
        ),
        "latest end after a deadline, s": late,
        "growth of this process's memory, MiB": memory_mib() - memory,
    }
    return rows, figures


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--runs", type=int, default=40)
    arguments = parser.parse_args()
    runs, num_episodes, num_executions = (2, 4, 2) if arguments.smoke else (arguments.runs, 64, 10)
    try:
        sandbox = open_sandbox(backend=arguments.backend, limits=Limits(seconds=30.0))
    except UsageError as error:
        needs(f"a sandbox: {error}")
    print(f"{sandbox.backend.name}: {sandbox.enforcement}")
    rows, figures = asyncio.run(measure(sandbox, runs, num_episodes, num_executions))
    sides = {row["what"]: row["median, ms"] for row in rows}
    sides["executions"] = num_episodes * num_executions - figures["failed executions"]
    return report(
        "sandbox", rows, figures=figures, targets=TARGETS, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
