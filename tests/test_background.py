"""The event loop behind public methods outlives what user code raises in it."""

import asyncio

import pytest

from sparring import background


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_who_waits_is_told_of_what_ends_a_task_and_the_loop_goes_on(error: BaseException) -> None:
    async def ending() -> None:
        raise error

    with pytest.raises(type(error)):
        background.submit(ending()).result(timeout=10)
    assert background.submit(asyncio.sleep(0, "on")).result(timeout=10) == "on"
