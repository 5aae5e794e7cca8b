"""What the handlers of Ctrl-C and SIGTERM reach, and what they do not."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time
from multiprocessing.synchronize import Event

import pytest

from sparring.runtime.interrupts import interrupts


def sleep(is_ready: Event) -> None:
    is_ready.set()
    time.sleep(60)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_process_that_an_environment_has_forked_is_ended_by_sigterm() -> None:
    context = multiprocessing.get_context("fork")
    is_ready = context.Event()
    process = context.Process(target=sleep, args=(is_ready,))
    asked = threading.Event()
    with interrupts(asked.set):
        # As on the event loop of the episodes, which has a thread of its own.
        thread = threading.Thread(target=process.start)
        thread.start()
        thread.join()
        # Python drops a signal that reaches a process while it is being forked.
        assert is_ready.wait(60)
        process.terminate()
        process.join(60)
        has_ended = process.exitcode
        process.kill()
        process.join()
    assert has_ended == -signal.SIGTERM
    assert not asked.is_set()
