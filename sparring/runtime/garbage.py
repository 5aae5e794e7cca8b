"""The garbage collector of a process that runs for a long time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 300_000
"""The number of new objects between two garbage collections. A turn or a request creates thousands of objects and frees
them without cycles. With Python's default of 700, and thousands of turns at the same time, collections would visit the
objects of each turn again and again, and no request is answered meanwhile."""


_before = gc.get_threshold()
"""The thresholds before the first of the contexts that are open."""
_num_open = 0
"""The number of contexts that are open."""


@contextmanager
def spare_loaded_objects() -> Iterator[None]:
    """Leave the objects that exist now out of garbage collection until the context ends, and collect less often.

    A full collection visits every object. Half a million of them belong to modules and models and live as long as the
    process, so that collections took a quarter of the processor time of a run with 1,024 sessions. Objects that are
    created later are collected, except for those that a later context of this kind finds. Garbage that exists now stays:
    call `gc.collect()` first if there may be much of it. Contexts may overlap; the last one that ends restores everything.
    """
    global _before, _num_open
    if not _num_open:
        _before = gc.get_threshold()
    _num_open += 1
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *_before[1:])
    try:
        yield
    finally:
        _num_open -= 1
        if not _num_open:
            gc.set_threshold(*_before)
            gc.unfreeze()
