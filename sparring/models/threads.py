"""Release the OpenMP threads that run torch's operations when a Python thread pauses its computations."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

OMP_PAUSE_SOFT = 1

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def release_threads() -> None:
    """End the OpenMP threads of the calling thread. The next operation of that thread starts new ones. Do nothing
    without libgomp.

    libgomp gives each Python thread that computes its own team of threads. If there are more OpenMP threads (including
    idle ones) than cores, libgomp no longer spins at the end of each parallel operation, but puts threads to sleep and
    wakes them up. With an idle team of threads, decoding took 1.2 to 1.7 times as long (docs/notebook).
    """
    if (pause := _pause()) is not None:
        pause(OMP_PAUSE_SOFT)


def releases_threads(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap a function so that it releases its threads when it returns."""

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        finally:
            release_threads()

    return run


@functools.cache
def _pause() -> Callable[[int], int] | None:
    for library in sorted(Path(torch.__file__).parent.glob("lib/libgomp*")):
        try:
            return ctypes.CDLL(str(library)).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
    return None
