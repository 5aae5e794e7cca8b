"""The built-in agent runs every episode in its own environment, and leaves none open."""

import asyncio

import pytest

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import Environment, answer
from sparring.errors import InfrastructureError
from sparring.types import Message, Task

TASK = Task(id="t1", messages=({"role": "user", "content": "hello"},))


class Counted(Environment):
    def __init__(self) -> None:
        self.num_closed = 0

    def close(self) -> None:
        self.num_closed += 1


@pytest.mark.parametrize("ending", [answer("hi"), InfrastructureError("down")], ids=["answered", "raised"])
def test_every_episode_has_an_environment_of_its_own_that_is_closed_once(ending: Message | Exception) -> None:
    made: list[Counted] = []

    def make() -> Counted:
        made.append(Counted())
        return made[-1]

    async def main() -> None:
        agent = EnvironmentAgent(make, max_turns=2)
        played = [agent.play(TASK, ScriptedSession(ending)) for _ in range(2)]
        failed = [isinstance(result, Exception) for result in await asyncio.gather(*played, return_exceptions=True)]
        assert failed == [isinstance(ending, Exception)] * 2

    asyncio.run(main())
    assert [environment.num_closed for environment in made] == [1, 1]


@pytest.mark.parametrize("error", [OSError("no such server"), SystemExit(3)])
def test_an_environment_that_cannot_be_created_is_an_outage(error: BaseException) -> None:
    def made() -> Environment:
        raise error

    with pytest.raises(
        InfrastructureError, match=r"Task t1: the environment cannot be created: .*(no such server|exit\(3\))"
    ):
        asyncio.run(EnvironmentAgent(made, max_turns=3).play(TASK, ScriptedSession()))
