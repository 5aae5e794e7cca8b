"""Opening, resetting and closing: closed exactly once on every exit path."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sparring.environments import base
from sparring.environments.base import Environment, opened, reset
from sparring.errors import InfrastructureError, PolicyTimeout, UsageError
from sparring.types import Message, Task

TASK = Task(id="t1", messages=({"role": "user", "content": "hello"},))


class Counted(Environment):
    def __init__(self) -> None:
        self.num_closed = 0

    def close(self) -> Any:
        self.num_closed += 1


class CountedLater(Counted):
    def close(self) -> Any:
        async def close_later() -> None:
            await asyncio.sleep(0)
            self.num_closed += 1

        return close_later()


class Unclosable(Environment):
    def close(self) -> Any:
        raise OSError("disk gone")


async def leave(environment: Environment, how: str) -> None:
    async with opened(environment, TASK):
        match how:
            case "error":
                raise ValueError("inside")
            case "infrastructure":
                raise InfrastructureError("inside")
            case "policy":
                raise PolicyTimeout("inside")
            case "timeout":
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            case "cancelled":
                await asyncio.Event().wait()


@pytest.mark.parametrize("environment_class", [Counted, CountedLater])
@pytest.mark.parametrize(
    ("how", "raised"),
    [
        ("error", ValueError),
        ("infrastructure", InfrastructureError),
        ("policy", PolicyTimeout),
        ("timeout", TimeoutError),
        ("return", None),
    ],
)
def test_it_is_closed_exactly_once_however_the_block_is_left(
    environment_class: type[Counted], how: str, raised: type[Exception] | None
) -> None:
    environment = environment_class()
    if raised is None:
        asyncio.run(leave(environment, how))
    else:
        with pytest.raises(raised):
            asyncio.run(leave(environment, how))
    assert environment.num_closed == 1


@pytest.mark.parametrize("environment_class", [Counted, CountedLater])
def test_it_is_closed_exactly_once_when_the_episode_is_cancelled(environment_class: type[Counted]) -> None:
    environment = environment_class()

    async def main() -> None:
        episode = asyncio.create_task(leave(environment, "cancelled"))
        await asyncio.sleep(0)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode

    asyncio.run(main())
    assert environment.num_closed == 1


def test_a_cancellation_while_closing_waits_for_the_close() -> None:
    class Slow(Counted):
        def __init__(self) -> None:
            super().__init__()
            self.may_close = asyncio.Event()

        def close(self) -> Any:
            async def close_slowly() -> None:
                await self.may_close.wait()
                self.num_closed += 1

            return close_slowly()

    async def main() -> int:
        environment = Slow()
        episode = asyncio.create_task(leave(environment, "return"))
        for _ in range(3):
            await asyncio.sleep(0)
        episode.cancel()
        await asyncio.sleep(0)
        assert not episode.done()
        environment.may_close.set()
        with pytest.raises(asyncio.CancelledError):
            await episode
        return environment.num_closed

    assert asyncio.run(main()) == 1


def test_a_failing_close_is_an_outage_but_does_not_hide_an_earlier_failure() -> None:
    with pytest.raises(InfrastructureError, match=r"Task t1: Unclosable.close failed: OSError\('disk gone'\)"):
        asyncio.run(leave(Unclosable(), "return"))
    with pytest.raises(ValueError, match="inside"):
        asyncio.run(leave(Unclosable(), "error"))


def test_a_close_that_does_not_end_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Environment):
        async def close(self) -> None:
            await asyncio.sleep(1)

    monkeypatch.setattr(base, "CLOSE_SECONDS", 0.01)
    with pytest.raises(InfrastructureError, match=r"Stuck\.close failed: TimeoutError"):
        asyncio.run(leave(Stuck(), "return"))


def test_the_tasks_own_messages_open_unless_reset_gives_others() -> None:
    class Greeting(Environment):
        async def reset(self, task: Task) -> Sequence[Message]:
            return [{"role": "user", "content": f"for {task.id}"}]

    assert asyncio.run(reset(Environment(), TASK)) == [{"role": "user", "content": "hello"}]
    assert asyncio.run(reset(Greeting(), TASK)) == [{"role": "user", "content": "for t1"}]


def test_a_failing_reset_is_an_outage_and_no_messages_at_all_a_mistake() -> None:
    class Broken(Environment):
        def reset(self, task: Task) -> None:
            raise OSError("no records")

    with pytest.raises(InfrastructureError, match=r"Task t1: Broken\.reset failed"):
        asyncio.run(reset(Broken(), TASK))
    with pytest.raises(UsageError, match="nothing to answer"):
        asyncio.run(reset(Environment(), Task(id="t2", messages=())))


def test_an_environment_without_expert_raises_a_clear_error() -> None:
    with pytest.raises(UsageError, match="Environment has no scripted expert"):
        Environment().demonstrate(TASK)


def test_an_is_done_that_is_no_property_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Desk\.is_done is a method.*@property"):

        class Desk(Environment):
            def is_done(self) -> bool:  # type: ignore[override]
                return False

    class Table(Environment):
        is_done = False  # may be set in `reset` and tools

    assert not Table().is_done
