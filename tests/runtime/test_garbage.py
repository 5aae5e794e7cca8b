"""A run leaves what was loaded before it out of garbage collection, and nothing else."""

import gc
import weakref

from sparring.runtime.garbage import spare_loaded_objects


class Node:
    """A node that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.myself = self


def test_objects_that_exist_are_left_out_and_later_ones_are_collected() -> None:
    loaded = Node()
    with spare_loaded_objects():
        assert gc.get_freeze_count() > 0
        assert loaded not in gc.get_objects()
        later = weakref.ref(Node())
        gc.collect()
        assert later() is None
    assert gc.get_freeze_count() == 0
    assert loaded in gc.get_objects()
