"""Find and end descendant processes. Also a keeper: a small process that starts a program and cleans up after it.

    arguments, environment = wrap_in_keeper([sys.executable, "-P", "-m", "program"], os.environ)
    process = subprocess.Popen(arguments, env=environment, start_new_session=True)

When the program ends, or the process that started the keeper ends, or the keeper receives SIGTERM, the keeper kills all its
descendants, also those in other sessions, and then ends as the program did. It forwards SIGINT and SIGABRT. The keeper is this
file, run as a script with the standard library only. Except on Linux it only starts the program and waits.
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
"""Holds the process id of the keeper's parent, and the program's arguments. As arguments of the keeper they would make it look
like the program."""


def wrap_in_keeper(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment that start a program under a keeper; its first argument is a path."""
    return [sys.executable, "-I", "-S", __file__], {**environment, _VARIABLE: json.dumps([os.getpid(), *command])}


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (subreaper), so that none is lost. Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def list_descendants() -> list[int]:
    """Return the process ids of all descendants, zombies included. Empty where /proc does not exist."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may contain any character.
            parent = int(stat.read_text("utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    result: list[int] = []
    parents = [os.getpid()]
    while parents:
        parents = [child for parent in parents for child in children.get(parent, ())]
        result += parents
    return result


def end_descendants(*, within_seconds: float = 2.0) -> list[int]:
    """Kill and reap all descendants and return their ids. Children of a killed process become ours."""
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
        # The program's end must close its pipes, so the keeper holds no copy of them.
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
    """Replace this process, a fork of the keeper, with the program. The kernel kills it when the keeper dies."""
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
