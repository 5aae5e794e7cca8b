"""The built-in tool loop as an agent, with a new environment for each episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

from sparring.agents.result import AgentResult, has_played
from sparring.agents.tool_loop import play
from sparring.environments import Environment, opened
from sparring.errors import InfrastructureError, SparringError
from sparring.protocols import SessionLike
from sparring.runtime.logs import get_logger
from sparring.runtime.plugins import call
from sparring.types import Task

logger = get_logger(__name__)


@final
class EnvironmentAgent:
    """An agent that runs each episode in a new environment, and always closes the environment when the episode ends."""

    def __init__(self, make_environment: Callable[[], Environment], *, max_turns: int) -> None:
        self._make_environment = make_environment
        self._max_turns = max_turns

    async def play(self, task: Task, session: SessionLike) -> AgentResult:
        """Run one episode. If only closing the environment fails, the result stays as it was.

        Raises InfrastructureError when the environment cannot be created or fails.
        """
        try:
            made = await call(self._make_environment)
        except SparringError:
            raise
        except Exception as error:
            raise InfrastructureError(f"Task {task.id}: the environment cannot be created: {error!r}.") from error
        played: AgentResult | None = None
        try:
            async with opened(made, task) as environment:
                played = await play(task, environment, session, max_turns=self._max_turns)
        except InfrastructureError as failure:
            if played is None or not has_played(session):
                raise
            # Without this result, a policy whose episodes fail could avoid their scores by making `close` fail.
            logger.warning("%s The episode counts, but it may have left something behind.", failure)
            return replace(played, error=played.error or str(failure))
        return played
