"""What a stop waits for, and what it leaves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from sparring.runtime.cancellable import (
    Cancelled,
    guard_change,
    has_abandoned,
    raise_if_cancelled,
    run_cancellable,
    wait_for_abandoned,
)

Result = TypeVar("Result")
DEADLINE = 20.0


def computed(
    function: Callable[[], Result], began: threading.Event, *, stops: bool = True, patience_seconds: float = 0.0
) -> Result | None:
    """What a run makes of `function`, that is stopped as soon as `began` is set."""

    async def main() -> Result | None:
        stop = asyncio.Event()
        computing = asyncio.ensure_future(run_cancellable(function, stop=stop, patience_seconds=patience_seconds))
        assert await asyncio.to_thread(began.wait, DEADLINE)
        if stops:
            stop.set()
        return await computing

    return asyncio.run(main())


def test_without_a_stop_a_computation_comes_to_its_end() -> None:
    began = threading.Event()

    def compute() -> int:
        began.set()
        raise_if_cancelled()
        with guard_change():
            return 7

    assert computed(compute, began, stops=False) == 7


def test_one_that_is_nearly_over_is_waited_for() -> None:
    began = threading.Event()

    def compute() -> int:
        began.set()
        time.sleep(0.1)
        with guard_change():
            return 7

    assert computed(compute, began, patience_seconds=DEADLINE) == 7


def test_one_that_takes_long_is_left_at_once_and_never_changes_anything() -> None:
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()
    changed: list[str] = []

    def compute() -> None:
        try:
            began.set()
            go_on.wait(DEADLINE)
            with guard_change():
                changed.append("weights")
        finally:
            over.set()

    async def main() -> None:
        stop = asyncio.Event()
        stop.set()
        assert await run_cancellable(compute, stop=stop, patience_seconds=0.01) is None
        assert has_abandoned()
        go_on.set()
        await asyncio.wait_for(wait_for_abandoned(), DEADLINE)

    asyncio.run(main())
    assert over.is_set()
    assert not has_abandoned()
    assert changed == []


def test_it_ends_between_two_of_its_parts() -> None:
    began, go_on = threading.Event(), threading.Event()
    parts: list[int] = []

    def compute() -> None:
        for part in range(3):
            raise_if_cancelled()
            parts.append(part)
            began.set()
            go_on.wait(DEADLINE)

    async def main() -> None:
        stop = asyncio.Event()
        stop.set()
        assert await run_cancellable(compute, stop=stop, patience_seconds=0.01) is None
        go_on.set()
        await asyncio.wait_for(wait_for_abandoned(), DEADLINE)

    asyncio.run(main())
    assert parts == [0]


def test_a_change_that_has_begun_is_waited_for_and_counts() -> None:
    began = threading.Event()

    def compute() -> int:
        with guard_change():
            began.set()
            time.sleep(0.3)
        return 7

    assert computed(compute, began) == 7


def test_between_two_changes_it_is_reported_that_neither_the_old_nor_the_new_is_there() -> None:
    began, go_on = threading.Event(), threading.Event()

    def compute() -> None:
        with guard_change():
            pass
        began.set()
        go_on.wait(0.2)
        with guard_change():
            pass

    with pytest.raises(Cancelled):
        computed(compute, began)


def test_what_it_raises_is_raised() -> None:
    began = threading.Event()

    def compute() -> None:
        began.set()
        raise ValueError("not finite")

    with pytest.raises(ValueError, match="not finite"):
        computed(compute, began)
