"""Agents as functions: `async def play(task, session) -> Reward`, run and judged like any other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, final

from sparring.agents.result import AgentResult
from sparring.errors import ContextOverflow, InfrastructureError, PolicyTimeout, RewardError
from sparring.protocols import RewardValue, SessionLike
from sparring.rewards.rules import to_reward
from sparring.types import Outcome, Task

PlayFunction: TypeAlias = Callable[[Task, SessionLike], Awaitable[RewardValue]]


@final
class FunctionAgent:
    """A function that plays an episode and says what it earned."""

    def __init__(self, function: PlayFunction) -> None:
        self._function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    async def play(self, task: Task, session: SessionLike) -> AgentResult:
        """Play one episode.

        The policy's own limits become outcomes without reward, as does any other exception of the function.
        InfrastructureError passes; RewardError when what it returns is no reward.
        """
        try:
            value = await self._function(task, session)
        except (InfrastructureError, RewardError):
            raise
        except ContextOverflow as error:
            return AgentResult(outcome=Outcome.MAX_TOKENS, error=str(error))
        except PolicyTimeout as error:
            return AgentResult(outcome=Outcome.POLICY_TIMEOUT, error=str(error))
        except Exception as error:  # noqa: BLE001 (user code may raise anything; it ends its episode only)
            return AgentResult(outcome=Outcome.POLICY_ERROR, error=f"{self.__name__} raised {error!r}")
        turn_ids = [turn.id for turn in session.turns]
        source = f"Agent {self.__name__!r} in session {session.id}: its reward"
        return AgentResult(outcome=Outcome.FINISHED, reward=to_reward(value, turn_ids=turn_ids, source=source))


def agent(function: PlayFunction) -> FunctionAgent:
    """Make an agent of `async def play(task, session)`, which returns its reward."""
    return FunctionAgent(function)
