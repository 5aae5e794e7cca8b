"""The limits of an execution, and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from sparring.errors import UsageError

Ended: TypeAlias = Literal["exit", "deadline", "memory", "output", "files", "processes", "killed"]
"""How an execution ended: by itself, or killed at the named limit; `killed` when its box ended with it, because of an action
of a program. A full disk and a refused fork are errors that the program itself receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one box.

    The memory limit applies to all its processes together if a memory control group can be created, and otherwise to
    each process (`Sandbox.enforcement` states which).
    """

    seconds: float = 10.0
    """The wall time of one execution, unless it sets its own."""
    memory_mib: int = 256
    """Memory of the processes. Files of the scratch folder and shared memory come on top, each with its own limit."""
    processes: int = 32
    """Processes and threads at one time."""
    disk_mib: int = 64
    """Size of the scratch folder."""
    shared_memory_mib: int = 16
    files: int = 4096
    """Files and folders in the scratch folder."""
    output_kib: int = 256
    """Standard output and error of one execution together."""
    open_files: int = 256

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if not getattr(self, name) > 0:
                raise UsageError(f"Limits: {name} is {getattr(self, name)}; give a positive number.")
        if self.memory_mib < 32:
            raise UsageError(f"Limits: memory_mib is {self.memory_mib}; an interpreter alone needs 32.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of one program. Its output is cut at the output limit, and bytes that are not UTF-8 are replaced."""

    exit_code: int | None
    """None when it was killed at a limit; negative when it died of a signal that it caused."""
    stdout: str
    stderr: str
    ended: Ended
    seconds: float
    backend: str
    """`unsafe-local` means that nothing was isolated."""
    scratch_lost: bool = False
    """True if the box had to be destroyed with all its files; the next execution starts with the first files."""

    @property
    def is_success(self) -> bool:
        """True if the program ended by itself with exit code 0."""
        return self.ended == "exit" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Files read from a box: content by name, and the reasons why others were refused."""

    files: Mapping[str, bytes]
    refused: Mapping[str, str]


_end: ContextVar[float | None] = ContextVar("end_of_programs", default=None)


@contextmanager
def programs_end(at: float | None) -> Iterator[None]:
    """Set the time (of `time.monotonic`) at which programs that are started within the block end at the latest.

    They end by `deadline` if their own limit is later; None lifts the limit. Otherwise a policy could use up the time
    of its episode or its grading with programs that do not end, and the waiting code would count as an outage.
    """
    token = _end.set(at)
    try:
        yield
    finally:
        _end.reset(token)


def end_of_programs() -> float | None:
    """Return when programs that are started now end at the latest; None if only their own limits apply."""
    return _end.get()
