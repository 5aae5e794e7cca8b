"""A run leaves what was loaded before it out of garbage collection, and nothing else."""

import gc
import weakref

from sparring.runtime.garbage import NEW_OBJECTS, spare_loaded_objects


class Node:
    """A node that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.myself = self


def is_collected(node: Node) -> bool:
    """Return whether garbage collections visit the node."""
    return any(one is node for one in gc.get_objects())


def test_objects_that_exist_are_left_out_and_later_ones_are_collected() -> None:
    loaded = Node()
    with spare_loaded_objects():
        assert gc.get_freeze_count() > 0
        assert not is_collected(loaded)
        later = weakref.ref(Node())
        gc.collect()
        assert later() is None
    assert gc.get_freeze_count() == 0
    assert is_collected(loaded)


def test_contexts_that_overlap_restore_everything_when_the_last_one_ends() -> None:
    loaded, thresholds = Node(), gc.get_threshold()
    first, second = spare_loaded_objects(), spare_loaded_objects()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not is_collected(loaded)
    assert gc.get_threshold()[0] == NEW_OBJECTS
    second.__exit__(None, None, None)
    assert is_collected(loaded)
    assert gc.get_threshold() == thresholds


def test_an_inner_context_leaves_what_the_outer_one_spares() -> None:
    loaded, thresholds = Node(), gc.get_threshold()
    with spare_loaded_objects():
        assert gc.get_threshold()[0] == NEW_OBJECTS
        with spare_loaded_objects():
            pass
        assert not is_collected(loaded)
        assert gc.get_threshold()[0] == NEW_OBJECTS
    assert is_collected(loaded)
    assert gc.get_threshold() == thresholds
