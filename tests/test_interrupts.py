"""What the handlers of Ctrl-C and SIGTERM reach, and what they do not."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time

import pytest

from sparring.interrupts import interrupts


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_process_that_an_environment_has_forked_is_ended_by_sigterm() -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    asked = threading.Event()
    with interrupts(asked.set):
        # As on the event loop of the episodes, which has a thread of its own.
        thread = threading.Thread(target=process.start)
        thread.start()
        thread.join()
        process.terminate()
        process.join(5)
        has_ended = process.exitcode
        process.kill()
        process.join()
    assert has_ended == -signal.SIGTERM
    assert not asked.is_set()
