"""A process that was stopped itself does not take the time for the silence of another one."""

import time

from sparring.supervision.clock import AwakeClock


def test_what_was_slept_through_does_not_count() -> None:
    clock = AwakeClock(longest_seconds=0.1)
    began = time.monotonic()
    time.sleep(1.0)  # as stopped: no look in between
    assert clock.look() == 0.1
    for _ in range(5):
        time.sleep(0.01)
        clock.look()
    assert 0.15 <= clock.seconds < time.monotonic() - began - 0.5
