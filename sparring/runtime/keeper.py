"""Finds and ends descendant processes, and provides a keeper: a small process that starts a program and cleans up after
it.

    arguments, environment = wrap_in_keeper([sys.executable, "-P", "-m", "program"], os.environ)
    process = subprocess.Popen(arguments, env=environment, start_new_session=True)

The keeper acts when the program ends, when the process that started the keeper ends, or when the keeper receives
SIGTERM. It kills all its descendants, including those in other sessions, and then ends with the program's exit status.
It forwards SIGINT and SIGABRT. The keeper is this file, run as a script that imports only the standard library. On
systems other than Linux, it only starts the program and waits.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_VARIABLE = "SPARRING_KEEPER"
"""Environment variable with the process id of the keeper's parent and the program's arguments. If the keeper had these
arguments itself, it would look like the program in a list of processes."""


def wrap_in_keeper(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and environment that start a program under a keeper. The first item of `command` is a
    path."""
    return [sys.executable, "-I", "-S", __file__], {**environment, _VARIABLE: json.dumps([os.getpid(), *command])}


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant (a subreaper), so that none is lost. Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def list_descendants() -> list[int]:
    """Return the process ids of all descendants, including zombies. The list is empty if /proc does not exist."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name is in parentheses and may contain any character.
            parent = int(stat.read_text("utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    result: list[int] = []
    parents = [os.getpid()]
    while parents:
        parents = [child for parent in parents for child in children.get(parent, ())]
        result += parents
    return result


def end_descendants(*, within_seconds: float = 2.0) -> list[int]:
    """Kill and reap all descendants, and return their ids. Children of a killed process become children of this
    process."""
    deadline = time.monotonic() + within_seconds
    ended: list[int] = []
    while True:
        _reap()
        left = list_descendants()
        if not left or time.monotonic() > deadline:
            return ended
        ended += [pid for pid in left if pid not in ended]
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class _Terminated(BaseException):
    """The keeper received SIGTERM."""


def _keep() -> NoReturn:
    starter, *command = json.loads(os.environ.pop(_VARIABLE))
    keeper = os.getpid()
    adopt_orphans()
    signal.signal(signal.SIGTERM, _terminate)
    status = program = 0
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != starter:
            raise _Terminated
        program = os.fork()
        if not program:
            _become(command, keeper)
        for number in (signal.SIGINT, signal.SIGABRT):
            signal.signal(number, lambda number, _: os.kill(program, number))
        # The pipes must close when the program ends, so the keeper keeps no copies of them.
        os.closerange(3, 1 << 20)
        ended = 0
        while ended != program:
            ended, status = os.waitpid(-1, 0)
    except _Terminated:
        status = signal.SIGKILL
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(keeper, -code)
    os._exit(code)


def _become(command: list[str], keeper: int) -> NoReturn:
    """Replace this process, a fork of the keeper, with the program. The kernel kills the program when the keeper
    dies."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if os.getppid() == keeper:
            os.execv(command[0], command)
    finally:
        os._exit(127)


def _terminate(*_: object) -> NoReturn:
    raise _Terminated


if __name__ == "__main__":
    _keep()
