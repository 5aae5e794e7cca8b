"""How much an execution may use, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from sparring.errors import UsageError

Ended: TypeAlias = Literal["exit", "deadline", "memory", "output", "files", "processes", "killed"]
"""Why an execution ended: by itself, or because it reached a limit and was killed; `killed` when its box ended with it, for
whatever a program did to it. A full disk and a refused fork are errors that the program itself sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one box may use. Memory is of all its processes together where a memory control group can be made, and of
    each process where not (`Sandbox.enforcement` says which)."""

    seconds: float = 10.0
    """Wall clock of one execution, unless it names its own."""
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
    """One finished program. What it wrote is cut at the output limit, and bytes that are no UTF-8 are replaced."""

    exit_code: int | None
    """None when it was killed at a limit; negative when it died of a signal of its own making."""
    stdout: str
    stderr: str
    ended: Ended
    seconds: float
    backend: str
    """`unsafe-local` means that nothing was isolated."""
    scratch_lost: bool = False
    """Whether the box had to be destroyed with everything written in it; the next execution begins with the first files."""

    @property
    def is_success(self) -> bool:
        return self.ended == "exit" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Files taken out of a box: content by name, and why others were left there."""

    files: Mapping[str, bytes]
    refused: Mapping[str, str]


_end: ContextVar[float | None] = ContextVar("end_of_programs", default=None)


@contextmanager
def programs_end(at: float | None) -> Iterator[None]:
    """Programs that are started within end at this reading of `time.monotonic`, by `deadline`, where their own limit is
    later; None lifts it. A policy could otherwise use up the time of its episode or its grading by programs that do not end,
    and what waits for them would count as an outage."""
    token = _end.set(at)
    try:
        yield
    finally:
        _end.reset(token)


def end_of_programs() -> float | None:
    """When programs that are started now end at the latest; None when at their own limits."""
    return _end.get()
