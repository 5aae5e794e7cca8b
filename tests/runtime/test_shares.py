"""The work of one agent gets a limited share of a core, in order, and that of others is not limited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.runtime.shares import AT_ONCE_SECONDS, SHARE, CoreShare, applied_share, apply_share, run_within_share
from sparring.runtime.threads import process_long_text


class Core:
    """A clock that only work and waiting advance, and the pieces of work that were done: (start, end)."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pieces: list[tuple[float, float]] = []

    def share(self) -> CoreShare:
        return CoreShare(clock=lambda: self.now, work_clock=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def work(self, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.pieces.append((self.now, self.now + seconds))
            self.now += seconds

        return work


def done(core: Core, pieces: Sequence[float], pauses: Sequence[float] = ()) -> list[tuple[float, float]]:
    """Return the starts and ends of pieces of work of one agent, each after a pause, in seconds after the first."""

    async def run() -> None:
        with apply_share(core.share()):
            for seconds, pause in zip(pieces, [*pauses, *[0.0] * len(pieces)], strict=False):
                core.now += pause
                await run_within_share(core.work(seconds))

    asyncio.run(run())
    return [(start - 100.0, end - 100.0) for start, end in core.pieces]


def test_work_waits_until_the_share_has_paid_for_what_was_done_before() -> None:
    # Each piece of 20 ms costs 100 ms of the share, and 50 ms may be done at once, which cost 250 ms. Before the pieces,
    # 0, 20, 40 and 60 ms were done. The first piece ends at 20 ms and is paid at 120 ms, the second at 220 ms (begun at 20 ms),
    # the third at 320 ms (begun at 40 ms). The fourth begins 250 ms before that, at 70 ms; it is paid at 420 ms, so the fifth
    # begins at 170 ms.
    starts = [start for start, _ in done(Core(), [0.02] * 5)]
    assert starts == pytest.approx([0.0, 0.02, 0.04, 0.07, 0.17])


def test_after_a_pause_only_the_usual_amount_is_done_at_once() -> None:
    # An hour without work does not add up: after it, the starts are those of a new share.
    starts = [start for start, _ in done(Core(), [0.02] * 6, [0.0, 3600.0])][1:]
    assert [start - starts[0] for start in starts] == pytest.approx([0.0, 0.02, 0.04, 0.07, 0.17])


@given(
    st.lists(st.floats(0.0, 0.5), min_size=1, max_size=30),
    st.lists(st.floats(0.0, 2.0), max_size=30),
)
def test_over_any_period_the_work_is_bounded(pieces: list[float], pauses: list[float]) -> None:
    """At most AT_ONCE_SECONDS, the share of the period, and one piece, because the length of a piece is known afterwards."""
    periods = done(Core(), pieces, pauses)
    for first in range(len(periods)):
        total = 0.0
        for start, end in periods[first:]:
            total += end - start
            assert total <= AT_ONCE_SECONDS + SHARE * (end - periods[first][0]) + max(pieces) + 1e-6


def test_work_is_done_in_the_order_in_which_it_came_one_piece_at_a_time() -> None:
    seen: list[int] = []
    running: list[int] = []

    def work(number: int) -> None:
        running.append(number)
        assert running == [number]
        seen.append(number)
        running.remove(number)

    async def one(number: int) -> None:
        # Long and short texts wait in the same line.
        run = process_long_text if number % 2 else run_within_share
        await run(lambda: work(number))

    async def scenario() -> None:
        with apply_share(CoreShare()):
            await asyncio.gather(*map(one, range(20)))

    asyncio.run(scenario())
    assert seen == list(range(20))


@pytest.mark.parametrize("run", [process_long_text, run_within_share])
def test_a_failed_or_cancelled_request_lets_the_next_one_work(
    run: Callable[[Callable[[], object]], Awaitable[object]],
) -> None:
    async def scenario() -> None:
        share = CoreShare()
        with apply_share(share):
            with pytest.raises(ZeroDivisionError):
                await run(lambda: 1 // 0)
            await share.acquire()
            waiting = [asyncio.create_task(_as_coroutine(run(lambda: None))) for _ in range(3)]
            await asyncio.sleep(0)
            for task in waiting[:2]:
                task.cancel()
            await asyncio.gather(*waiting[:2], return_exceptions=True)
            share.release()
            await asyncio.wait_for(waiting[2], 30)
            assert await run(lambda: 3) == 3

    asyncio.run(scenario())


async def _as_coroutine(awaitable: Awaitable[object]) -> object:
    return await awaitable


def test_a_request_that_is_cancelled_while_it_waits_for_its_share_lets_the_next_one_work() -> None:
    sleeping = asyncio.Event()

    async def sleep(_: float) -> None:
        sleeping.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        now = [0.0]
        share = CoreShare(clock=lambda: now[0], work_clock=lambda: now[0], sleep=sleep)
        with apply_share(share):
            await run_within_share(lambda: now.__setitem__(0, 1.0))  # costs 5 s, of which the share has paid none
            late = asyncio.create_task(run_within_share(lambda: None))
            await sleeping.wait()
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
            now[0] = 100.0
            assert await run_within_share(lambda: "done") == "done"

    asyncio.run(scenario())


def test_a_cancelled_request_keeps_its_place_until_its_thread_has_ended() -> None:
    """Otherwise, an agent that cancels its requests would work in several threads at a time, before any of it is paid."""
    go_on, started = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait(30)

    async def scenario() -> None:
        with apply_share(CoreShare()):
            first = asyncio.create_task(process_long_text(work))
            await asyncio.to_thread(started.wait, 30)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            second = asyncio.create_task(run_within_share(lambda: go_on.is_set()))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not second.done()
            go_on.set()
            assert await asyncio.wait_for(second, 30)

    asyncio.run(scenario())


def test_a_share_in_debt_does_not_limit_the_work_of_others() -> None:
    core = Core()

    async def scenario() -> None:
        with apply_share(core.share()):
            await run_within_share(core.work(10.0))  # the share pays for it until 50 s later
            indebted = copy_context()

        async def others() -> None:
            before = core.now
            await run_within_share(core.work(0.1))
            with apply_share(core.share()):
                await run_within_share(core.work(0.1))
            assert core.now - before == pytest.approx(0.2)

        await others()
        # The context of another request of the connection may have a share, which does not apply where there is none.
        await asyncio.create_task(_without_share(others), context=indebted)

    asyncio.run(scenario())


async def _without_share(function: Callable[[], Awaitable[None]]) -> None:
    assert applied_share() is not None
    with apply_share(None):
        assert applied_share() is None
        await function()


def test_a_share_is_applied_until_its_context_ends_and_in_tasks_that_start_in_it() -> None:
    async def scenario() -> None:
        share, other = CoreShare(), CoreShare()
        assert applied_share() is None
        with apply_share(share):
            inner = asyncio.create_task(_applied())
            with apply_share(other):
                assert applied_share() is other
            assert applied_share() is share
        assert applied_share() is None
        assert await inner is share
        assert Context().run(applied_share) is None

    asyncio.run(scenario())


async def _applied() -> CoreShare | None:
    return applied_share()
