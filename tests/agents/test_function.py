"""Agents written as functions."""

import asyncio
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
