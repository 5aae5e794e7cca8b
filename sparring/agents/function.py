"""Agents as functions: `async def play(task, session) -> Reward`, run and judged like any other."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, final

from sparring.agents.result import AgentResult, ended_by
from sparring.errors import InfrastructureError, RewardError, ServiceError, UsageError
from sparring.protocols import RewardValue, SessionLike
from sparring.rewards.rules import to_reward
from sparring.types import Message, Outcome, Task, ToolSchema, Turn

PlayFunction: TypeAlias = Callable[[Task, SessionLike], Awaitable[RewardValue]]


class DoorLike(Protocol):
    """An episode's way in (`sparring.gateway.Door`)."""

    @property
    def base_url(self) -> str: ...

    @property
    def api_key(self) -> str: ...

    @property
    def policies(self) -> Mapping[str, DoorLike]: ...


Enter: TypeAlias = Callable[[Any], DoorLike]


@final
class EpisodeSession:
    """An episode's session with its door: `chat` asks in process, any client asks at `base_url` with `api_key`."""

    def __init__(self, session: SessionLike, door: DoorLike) -> None:
        self._session = session
        self._door = door
        self.base_url = door.base_url
        self.api_key = door.api_key

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self._session.turns

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        return self._session.episode_turns

    @property
    def seconds_left(self) -> float | None:
        return self._session.seconds_left

    def of(self, name: str) -> EpisodeSession:
        """The same for another policy of the episode. Raises UsageError for a name that the recipe does not have."""
        return EpisodeSession(self._session.of(name), self._door.policies[name])

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Play one turn: the assistant's message. Raises as `Session.play` does."""
        return await self._session.chat(messages, tools)

    def client(self) -> Any:
        """An `openai.AsyncOpenAI` for this episode. Raises ServiceError when openai is not installed."""
        try:
            openai = importlib.import_module("openai")
        except ImportError as error:
            raise ServiceError(
                "session.client() needs the package openai, which is not installed; `pip install openai`, or use session.chat()."
            ) from error
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=self.api_key)


@final
class FunctionAgent:
    """A function that plays an episode and says what it earned."""

    def __init__(self, function: PlayFunction, *, enter: Enter | None = None) -> None:
        """`enter` opens a door of the gateway to a session: then the function gets an `EpisodeSession`."""
        self._function = function
        self._enter = enter
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def entering(self, enter: Enter) -> FunctionAgent:
        """The same agent, with doors for clients of its own."""
        return FunctionAgent(self._function, enter=enter)

    async def play(self, task: Task, session: SessionLike) -> AgentResult:
        """Play one episode.

        The policy's own limits become outcomes without reward, as does any other exception of the function.
        InfrastructureError passes, and UsageError; RewardError when what it returns is no reward.
        """
        try:
            value = await self._function(task, self._with_door(session))
        except (InfrastructureError, RewardError, UsageError):
            raise
        except Exception as error:  # noqa: BLE001 (user code may raise anything; it ends its episode only)
            return ended_by(error, session, f"{self.__name__} raised {error!r}")
        turn_ids = [turn.id for turn in session.episode_turns if turn.learns]
        source = f"Agent {self.__name__!r} in session {session.id}: its reward"
        return AgentResult(outcome=Outcome.FINISHED, reward=to_reward(value, turn_ids=turn_ids, source=source))

    def _with_door(self, session: SessionLike) -> SessionLike:
        return session if self._enter is None else EpisodeSession(session, self._enter(session))


def agent(function: PlayFunction) -> FunctionAgent:
    """Make an agent of `async def play(task, session)`, which returns its reward."""
    return FunctionAgent(function)
