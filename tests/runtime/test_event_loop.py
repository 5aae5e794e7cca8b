"""The event loop behind public methods outlives what user code raises in it."""

import asyncio
import subprocess
import sys

import pytest

from sparring.runtime import event_loop


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_waiting_caller_gets_what_ends_a_task_and_the_loop_goes_on(error: BaseException) -> None:
    async def ending() -> None:
        raise error

    with pytest.raises(type(error)):
        event_loop.submit(ending()).result(timeout=10)
    assert event_loop.submit(asyncio.sleep(0, "on")).result(timeout=10) == "on"


ENDING = """
import asyncio
from sparring.runtime import event_loop

async def freeing():
    await asyncio.sleep(0.3)
    await asyncio.to_thread(print, "freed", flush=True)

event_loop.finish(freeing())
print("over", flush=True)
"""


def test_a_process_does_not_end_in_the_middle_of_what_is_being_finished() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["over", "freed"], "")
