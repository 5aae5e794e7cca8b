"""Threads that compute let the event loop run, for as long as a server in this process needs it."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest

from sparring.runtime.threads import SWITCH_SECONDS, let_event_loop_run


@pytest.fixture
def interval() -> float:
    return sys.getswitchinterval()


def test_threads_switch_sooner_until_the_context_ends(interval: float) -> None:
    with let_event_loop_run():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS, abs=2e-6)
    assert sys.getswitchinterval() == pytest.approx(interval, abs=2e-6)
    with pytest.raises(ZeroDivisionError), let_event_loop_run():
        _ = 1 // 0
    assert sys.getswitchinterval() == pytest.approx(interval, abs=2e-6)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_it_lasts_as_long_as_one_of_several_servers_runs_in_whatever_order_they_stop(
    interval: float, first_to_end: int
) -> None:
    servers = [ExitStack(), ExitStack()]
    for server in servers:
        server.enter_context(let_event_loop_run())
    servers.pop(first_to_end).close()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS, abs=2e-6)
    servers[0].close()
    assert sys.getswitchinterval() == pytest.approx(interval, abs=2e-6)


def test_a_shorter_time_stays(interval: float) -> None:
    try:
        sys.setswitchinterval(SWITCH_SECONDS / 10)
        shorter = sys.getswitchinterval()
        with let_event_loop_run():
            assert sys.getswitchinterval() == pytest.approx(shorter, abs=2e-6)  # it is stored in whole microseconds
        assert sys.getswitchinterval() == pytest.approx(shorter, abs=2e-6)
    finally:
        sys.setswitchinterval(interval)
