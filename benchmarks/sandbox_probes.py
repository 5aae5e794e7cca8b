"""Runs every hostile probe, with its positive control, on every sandbox back end that works here (the table in
docs/sandbox.md).

`--episodes` is the number of sandboxes that look for traces of earlier ones. Probes and attacks come from
`tests/sandbox`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report import needs, options, report
from sparring.errors import UsageError
from sparring.sandbox import Limits, Sandbox, open_sandbox
from tests.sandbox.attacks import ATTACKS, LIMITS, come_through, succeed_outside
from tests.sandbox.probes import PROGRAMS, Probe, inside_programs, outcomes, outside, scene
from tests.sandbox.voids import HONEST, RIGHT, STEPS, VOIDS, steps, steps_through
from tests.sandbox.voids import LIMITS as VOID_LIMITS

KINDS = {
    "X1": "read files, folders, names and secrets of the machine",
    "X2": "reach other processes and the kernel's settings by /proc and /sys",
    "X3": "system calls that a program of a sandbox does not need",
    "X4": "signal, hold or slow down processes outside",
    "X5": "users, groups, capabilities, inherited descriptors",
    "X6": "write outside the scratch folder, make devices and links",
    "X7": "network, Unix sockets, raw packets, hypervisor sockets",
    "X8": "process and thread bombs, also next to another box",
    "X9": "memory, disk, shared memory, files, descriptors",
    "X10": "programs that do not end, daemons, endless output",
    "X11": "find what another episode left",
    "X13": "tamper with the grading of unit tests",
    "X14": "artefacts that are links, pipes, too many or too large",
    "X15": "SQL that writes, reaches files or does not end",
    "X16": "arithmetic that is a program or does not end",
    "X17": "unit tests after a wrong program that breaks its sandbox",
    "X18": "collect files after such a program",
    "X19": "write a file and run the next program after it",
    "X20": "grade its files",
}
BACKENDS = ("bubblewrap", "gvisor", "docker")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--backends", nargs="+", default=BACKENDS)
    parser.add_argument("--lines", action="store_true", help="print every line instead of only kinds")
    arguments = parser.parse_args()
    programs, attacks, voids = PROGRAMS, ATTACKS, VOIDS
    num_episodes, backends = arguments.episodes, arguments.backends
    if arguments.smoke:
        programs, attacks, voids, num_episodes = PROGRAMS[:8], ATTACKS[:2], dict(list(VOIDS.items())[:1]), 2
    sandboxes = {name: found for name in backends if (found := working(name)) is not None}
    if not sandboxes:
        needs("a sandbox")
    began = time.perf_counter()
    with scene() as host:
        controls = {name for name, outcome in outside(host, programs).items() if outcome == "through"}
        through = {name: asyncio.run(programs_through(place, host, programs)) for name, place in sandboxes.items()}
    controls |= set(succeed_outside(attacks))
    seconds = {"controls": time.perf_counter() - began}
    for name, place in sandboxes.items():
        began = time.perf_counter()
        through[name] |= set(asyncio.run(come_through(place, attacks)))
        through[name] |= asyncio.run(voids_through(name, voids))
        seconds[name] = time.perf_counter() - began
    seen = asyncio.run(canaries_seen(next(iter(sandboxes.values())), num_episodes))
    rows = table(controls | set(after(voids)), through, by_line=arguments.lines)
    lines = [line for line in (*programs, *attacks) if line.name in controls]
    figures = {
        "probe lines that come through without a sandbox": float(len(lines)),
        "lines after programs that break their sandbox": float(len(STEPS) * len(voids)),
        "lines without a positive control here": float(len(programs) + len(attacks) - len(lines)),
        **{f"come through {name}": float(len(names)) for name, names in through.items()},
        "canaries seen": float(seen),
        **{f"seconds, {name}": value for name, value in seconds.items()},
    }
    targets = {
        "probe lines that come through without a sandbox": {"at_least": 120.0},
        **{f"come through {name}": {"at_most": 0.0} for name in through},
        "canaries seen": {"at_most": 0.0},
    }
    sides = {
        "without a sandbox": len(lines),
        "programs": len(programs),
        "attacks": len(attacks),
        "episodes": num_episodes,
    }
    return report(
        "sandbox probes",
        rows,
        figures=figures,
        targets=targets,
        path=arguments.json,
        smoke=arguments.smoke,
        sides=sides,
    )


def working(backend: Any) -> Sandbox | None:
    try:
        return open_sandbox(backend=backend, limits=LIMITS)
    except UsageError as error:
        print(f"{backend} is not measured: {str(error).splitlines()[-1].strip()}")
        return None


async def programs_through(sandbox: Sandbox, host: dict[str, Any], programs: Sequence[Probe]) -> set[str]:
    """Return the names of the programs that break through, without those that are meaningless in this back end."""
    place = open_sandbox(backend=sandbox.backend.name, limits=Limits(seconds=120.0, processes=64))
    async with place.session() as box:
        program = inside_programs({probe.name: probe.code for probe in programs}, host)
        reported = outcomes((await box.run(["python3", "-B", "-"], stdin=program)).stdout)

    def is_breach(probe: Probe) -> bool:
        return reported[probe.name] == "through" and sandbox.backend.name not in probe.allowed_in

    return {probe.name for probe in programs if is_breach(probe)}


def after(voids: Iterable[str]) -> dict[str, str]:
    """Return the kind of each line about a step after a program that breaks its sandbox, by the name of the line."""
    return {f"{step}: {name}": id for id, step in STEPS.items() for name in voids}


async def voids_through(backend: Any, voids: Mapping[str, str]) -> set[str]:
    """Return the lines that end in another way than after an honest wrong answer, and all of them if their controls fail:
    an honest wrong answer, and a right one."""
    place = open_sandbox(backend=backend, limits=VOID_LIMITS)
    right = {**HONEST, "unit tests": "passed", "grade": "right"}
    if await steps(place) != HONEST or await steps(place, answer=RIGHT) != right:
        return set(after(voids))
    slots = asyncio.Semaphore(3)

    async def through(name: str) -> set[str]:
        async with slots:
            return {f"{step}: {name}" for step in await steps_through(place, voids[name])}

    return set[str]().union(*await asyncio.gather(*map(through, voids)))


async def canaries_seen(sandbox: Sandbox, num_episodes: int) -> int:
    """Run episodes that look for marks of earlier episodes and leave their own marks: a file, shared memory and a
    process."""
    code = (
        "import glob, os, subprocess\n"
        "places = ['canary', '/tmp/canary', '/dev/shm/canary']\n"
        "print(sum(map(os.path.exists, places)) + len(glob.glob('/proc/[0-9]*')) - 2)\n"
        "for place in places: open(place, 'w').close()\n"
        "subprocess.Popen(['sleep', '99'])\n"
    )
    slots = asyncio.Semaphore(4)

    async def episode() -> int:
        async with slots, sandbox.session() as box:
            run = await box.run(["python3", "-c", code])
            return int(run.stdout)

    return sum(await asyncio.gather(*(episode() for _ in range(num_episodes))))


def table(controls: set[str], through: dict[str, set[str]], *, by_line: bool) -> list[dict[str, Any]]:
    """Return one row for each kind, or for each line. `controls` are the names of the lines whose control holds."""
    kinds = {line.name: line.id for line in (*PROGRAMS, *ATTACKS)} | after(VOIDS)
    kinds = {line: id for line, id in kinds.items() if line in controls}
    if by_line:
        shown = {True: "THROUGH", False: "contained"}
        return [
            {"id": id, "attempt": line, **{name: shown[line in names] for name, names in through.items()}}
            for line, id in kinds.items()
        ]
    rows = []
    for id, kind in KINDS.items():
        names = {line for line, kind in kinds.items() if kind == id}
        held = {name: f"{len(names - through[name])} of {len(names)}" for name in through}
        rows.append({"id": id, "attempt": kind, "lines": len(names), **held})
    return rows


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("Some positive controls need root. Probe lines whose positive control fails are not counted.")
    sys.exit(main())
