"""Runs functions compiled by Numba on the threads of torch.

Numba can run loops on threads of its own, but these would compete with torch's threads for the same cores: threads of
both kinds spin for a while after each operation. Torch's threads belong to the OpenMP library that it loads, and
`GOMP_parallel` runs a function on each of them.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sparring.runtime.logs import get_logger

logger = get_logger(__name__)

MIN_WORK = 2**16
"""The number of multiplications from which an operation runs on several threads. Below, their start takes longer, and much
longer where other processes use the cores."""


def can_compile(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether functions can be compiled for these tensors and run on torch's threads. They must be fp32 tensors on
    the CPU of a Linux system, and Numba must be installed."""
    if device.type != "cpu" or dtype != torch.float32:
        return False
    return hasattr(_torch_library(), "GOMP_parallel") and _has_numba()


def compile_for_threads(function: Callable[[Any], None]) -> Callable[[Sequence[int], int], None]:
    """Compile a function, and return a function that runs it once in each of torch's threads, or only in the calling one if
    there is little to do. Its arguments are int64 numbers, which may be addresses of tensors (the compiled function gets a
    pointer to them), and the number of multiplications.

    The compiled function is stored in a file next to its module, or in the user's cache, until the module changes. All
    functions that it calls must therefore be in the same module.
    """
    import numba

    signature = numba.types.void(numba.types.CPointer(numba.types.int64))
    try:
        compiled = numba.cfunc(signature, cache=True, error_model="numpy")(function)
    except (RuntimeError, OSError):  # no folder can be written, or the disk is full
        compiled = numba.cfunc(signature, error_model="numpy")(function)
    run = _torch_library().GOMP_parallel
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None

    def call(arguments: Sequence[int], work: int) -> None:
        array = (ctypes.c_int64 * len(arguments))(*arguments)
        # Between two numbers of threads greater than 1, OpenMP ends threads and starts new ones.
        num_threads = torch.get_num_threads() if work >= MIN_WORK else 1
        run(compiled.address, ctypes.addressof(array), num_threads, 0)

    return call


def address_of(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Return the address of a tensor's first element. Raises TypeError unless the elements have this type."""
    if tensor.dtype != dtype:
        raise TypeError(f"the compiled function reads {dtype}, and this tensor is {tensor.dtype}")
    return tensor.data_ptr()


def find_function(name: str) -> Any:
    """Return a function of torch's OpenMP library, without arguments and with an integer result, for use in compiled
    functions."""
    import llvmlite.binding
    import numba

    # Under a name of our own, because another copy of the library may be loaded.
    symbol = f"sparring_{name}"
    llvmlite.binding.add_symbol(symbol, ctypes.cast(getattr(_torch_library(), name), ctypes.c_void_p).value)
    return numba.types.ExternalFunction(symbol, numba.types.int32())


@functools.cache
def _has_numba() -> bool:
    try:
        importlib.import_module("numba")
    except ImportError as error:  # also if numba does not know the version of NumPy yet
        logger.warning("numba cannot be imported, so training and decoding on the CPU take longer: %s", error)
        return False
    return True


@functools.cache
def _torch_library() -> Any:
    """Return torch's library, in which the functions of its OpenMP library can be looked up, or None."""
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
