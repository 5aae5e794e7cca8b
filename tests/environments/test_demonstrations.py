"""Demonstrations hold what the tools really returned."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from sparring.environments import Environment, answer, record_demonstration, tool, tool_call
from sparring.errors import DataError
from sparring.types import Message, Task

TASK = Task(id="t1", messages=({"role": "user", "content": "where is b?"},))


class Links(Environment):
    @tool
    def get(self, key: str) -> str:
        """Link."""
        return key.upper()

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return [tool_call("get", key="b"), answer("B")]


def test_a_demonstration_is_the_conversation_with_real_tool_results() -> None:
    messages = record_demonstration(Links, TASK)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2] == {"role": "tool", "tool_call_id": "call_0_0", "content": "B"}
    assert messages[1]["tool_calls"][0]["id"] == "call_0_0"


def test_another_script_may_be_played_also_inside_an_event_loop() -> None:
    async def main() -> list[Message]:
        return record_demonstration(Links, TASK, [answer("lazy")])

    assert asyncio.run(main())[-1] == {"role": "assistant", "content": "lazy"}


def test_a_scripted_call_that_fails_is_refused() -> None:
    with pytest.raises(DataError, match="Task t1: the demonstration makes an invalid call of get"):
        record_demonstration(Links, TASK, [tool_call("get", name="b")])


class Race(Links):
    """Over as soon as the key "z" was asked for."""

    is_over = False

    @tool
    def get(self, key: str) -> str:
        """Link."""
        self.is_over = key == "z"
        return key.upper()

    @property
    def is_done(self) -> bool:
        return self.is_over

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return [tool_call("get", key="b"), tool_call("get", key="z")]


def test_a_demonstration_ends_where_the_environment_ends_the_episode() -> None:
    messages = record_demonstration(Race, TASK)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert messages[-1]["content"] == "Z"


def test_a_script_that_goes_on_after_the_end_is_refused_since_no_policy_is_asked_any_more() -> None:
    with pytest.raises(
        DataError, match="Task t1: the environment ends the episode after message 1 of the demonstration"
    ):
        record_demonstration(Race, TASK, [tool_call("get", key="z"), answer("done")])


@pytest.mark.parametrize("environment_class", [Links, Race])
def test_a_script_that_ends_with_a_call_while_the_environment_goes_on_is_refused(
    environment_class: type[Environment],
) -> None:
    with pytest.raises(DataError, match="Task t1: the demonstration ends with a call, but the environment continues"):
        record_demonstration(environment_class, TASK, [tool_call("get", key="b")])


@pytest.mark.parametrize("argument", ["key", "name"], ids=["good", "refused"])
def test_the_environment_of_a_demonstration_is_closed_once(argument: str) -> None:
    closed: list[Environment] = []

    class Counted(Links):
        def close(self) -> None:
            closed.append(self)

    with suppress(DataError):
        record_demonstration(Counted, TASK, [tool_call("get", **{argument: "b"})])
    assert len(closed) == 1
