"""Agents written as functions."""

import asyncio
import threading
from typing import Any

import pytest

from sparring.agents import agent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import answer
from sparring.errors import AgentFailed, ContextOverflow, InfrastructureError, PolicyTimeout, RewardError
from sparring.protocols import SessionLike
from sparring.types import Outcome, Task

TASK = Task(id="t1", messages=({"role": "user", "content": "hello"},))


@agent
async def twice(task: Task, session: SessionLike) -> Any:
    """Ask twice."""
    for _ in range(2):
        await session.chat(task.messages)
    return task.fields.get("reward", [0.25, 0.5])


def test_a_function_plays_and_its_reward_is_checked_and_addressed_by_turn() -> None:
    result = asyncio.run(twice.play(TASK, ScriptedSession(answer("a"), answer("b"))))
    assert result.outcome is Outcome.FINISHED
    assert result.reward is not None
    assert result.reward.total == 0.75
    assert result.reward.per_turn == {0: 0.25, 1: 0.5}
    assert twice.__name__ == "twice"
    assert twice.__doc__ == "Ask twice."


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ContextOverflow("full"), Outcome.MAX_TOKENS),
        (PolicyTimeout("late"), Outcome.POLICY_TIMEOUT),
        (ValueError("no number"), Outcome.POLICY_ERROR),
    ],
)
def test_limits_and_failures_become_outcomes_without_reward(error: Exception, outcome: Outcome) -> None:
    result = asyncio.run(twice.play(TASK, ScriptedSession(answer("a"), error)))
    assert result.outcome is outcome
    assert result.reward is None
    assert str(error) in str(result.error)


def test_a_failure_before_the_first_turn_is_not_the_policys() -> None:
    with pytest.raises(
        AgentFailed, match=r"twice raised ValueError\('no database'\). This was before the policy's first"
    ):
        asyncio.run(twice.play(TASK, ScriptedSession(ValueError("no database"))))


def test_outages_and_values_that_are_no_reward_are_raised() -> None:
    with pytest.raises(InfrastructureError):
        asyncio.run(twice.play(TASK, ScriptedSession(InfrastructureError("down"))))
    task = Task(id="t2", messages=(), fields={"reward": None})
    with pytest.raises(RewardError, match="Agent 'twice' in session scripted: its reward is None"):
        asyncio.run(twice.play(task, ScriptedSession(answer("a"), answer("b"))))


def test_plain_functions_run_in_threads_of_their_own_all_at_once() -> None:
    num_episodes = 40  # more than the threads of asyncio.to_thread
    together = threading.Barrier(num_episodes)

    def play(task: Task, session: SessionLike) -> float:
        together.wait(timeout=30)
        return 0.5

    async def run() -> list[Any]:
        return await asyncio.gather(*(agent(play).play(TASK, ScriptedSession()) for _ in range(num_episodes)))

    assert [result.reward.total for result in asyncio.run(run())] == [0.5] * num_episodes


def test_what_a_plain_function_raises_is_treated_like_the_error_of_an_async_one() -> None:
    def fail(task: Task, session: SessionLike) -> float:
        raise task.fields["error"]

    for error in (ValueError("no database"), SystemExit(3), StopIteration()):
        with pytest.raises(AgentFailed, match="This was before the policy's first"):
            asyncio.run(agent(fail).play(Task(id="t2", messages=(), fields={"error": error}), ScriptedSession()))
    task = Task(id="t3", messages=(), fields={"error": InfrastructureError("down")})
    with pytest.raises(InfrastructureError):
        asyncio.run(agent(fail).play(task, ScriptedSession()))


def test_a_plain_function_that_wraps_an_async_one_is_awaited() -> None:
    async def ask(session: SessionLike) -> float:
        return float((await session.chat(TASK.messages))["content"])

    result = asyncio.run(agent(lambda task, session: ask(session)).play(TASK, ScriptedSession(answer("0.5"))))
    assert result.reward is not None
    assert result.reward.total == 0.5


def test_a_cancelled_episode_does_not_wait_for_its_plain_function() -> None:
    began, released, ended = threading.Event(), threading.Event(), threading.Event()

    def play(task: Task, session: SessionLike) -> float:
        began.set()
        released.wait(30)
        ended.set()
        return 1.0

    async def run() -> None:
        playing = asyncio.ensure_future(agent(play).play(TASK, ScriptedSession()))
        assert await asyncio.to_thread(began.wait, 30)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(run())
    assert not ended.is_set()
    released.set()
    assert ended.wait(30)
