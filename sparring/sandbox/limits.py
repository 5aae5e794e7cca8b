"""The limits of an execution, and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from sparring.errors import UsageError

Ended: TypeAlias = Literal["exit", "deadline", "memory", "output", "files", "processes", "killed"]
"""How an execution ended: by itself (`exit`), or killed at the named limit. `killed` means that its sandbox ended with
it, because of an action of a program. A full disk and a denied fork are errors that the program itself receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one sandbox.

    The memory limit applies to all its processes together if a memory cgroup can be created, and otherwise to each
    process (`Sandbox.enforcement` states which).
    """

    seconds: float = 10.0
    """The wall-clock limit of one execution that does not set its own."""
    memory_mib: int = 256
    """Memory of the processes. Files in the scratch folder and shared memory have their own limits in addition."""
    processes: int = 32
    """The number of processes and threads at one time."""
    disk_mib: int = 64
    """The size of the scratch folder."""
    shared_memory_mib: int = 16
    files: int = 4096
    """The number of files and folders in the scratch folder."""
    output_kib: int = 256
    """The size of standard output and error of one execution together."""
    open_files: int = 256

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if not getattr(self, name) > 0:
                raise UsageError(f"Limits: {name} is {getattr(self, name)}; give a positive number.")
        if self.memory_mib < 32:
            raise UsageError(f"Limits: memory_mib is {self.memory_mib}; an interpreter alone needs 32.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of one program. Its output is truncated at the output limit, and bytes that are not UTF-8 are
    replaced."""

    exit_code: int | None
    """The exit code, or None if the program was killed at a limit. It is negative if a signal that the program caused
    ended it."""
    stdout: str
    stderr: str
    ended: Ended
    seconds: float
    backend: str
    """`unsafe-local` means that nothing was isolated."""
    scratch_lost: bool = False
    """True if the sandbox had to be destroyed with all its files. The next execution then starts with the initial
    files."""

    @property
    def is_success(self) -> bool:
        """True if the program ended by itself with exit code 0."""
        return self.ended == "exit" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Files that were read from a sandbox: their contents, keyed by name, and the reasons why other files were
    rejected."""

    files: Mapping[str, bytes]
    refused: Mapping[str, str]


_end: ContextVar[float | None] = ContextVar("end_of_programs", default=None)


@contextmanager
def programs_end(at: float | None) -> Iterator[None]:
    """Set a time (of `time.monotonic`) by which programs that are started within the block must end.

    A program whose own limit is later is stopped at this time, with the result `deadline`. None removes the limit.
    Without this limit, programs that do not end could use up the time for the episode or its grading. The timeout of
    the waiting code would then count as an infrastructure failure, although the policy caused it.
    """
    token = _end.set(at)
    try:
        yield
    finally:
        _end.reset(token)


def end_of_programs() -> float | None:
    """Return the time by which programs that are started now must end, or None if only their own limits apply."""
    return _end.get()
