"""The built-in tool loop as an agent, with a new environment for each episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from sparring.agents.result import AgentResult
from sparring.agents.tool_loop import play
from sparring.environments import Environment, opened
from sparring.errors import InfrastructureError, SparringError
from sparring.protocols import SessionLike
from sparring.runtime.plugins import call
from sparring.types import Task


@final
class EnvironmentAgent:
    """An agent that runs each episode in a new environment, and always closes the environment when the episode ends."""

    def __init__(self, make_environment: Callable[[], Environment], *, max_turns: int) -> None:
        self._make_environment = make_environment
        self._max_turns = max_turns

    async def play(self, task: Task, session: SessionLike) -> AgentResult:
        """Run one episode. Raises InfrastructureError when the environment cannot be created or fails."""
        try:
            made = await call(self._make_environment)
        except SparringError:
            raise
        except Exception as error:
            raise InfrastructureError(f"Task {task.id}: the environment cannot be created: {error!r}.") from error
        async with opened(made, task) as environment:
            return await play(task, environment, session, max_turns=self._max_turns)
