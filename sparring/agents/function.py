"""Agents as functions: `play(task, session)`, async or plain, which returns the reward or an AgentReport."""

from __future__ import annotations

import functools
import importlib
import inspect
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, final

import httpx

from sparring.agents.endpoint import EndpointLike
from sparring.agents.result import AgentResult, ended_by
from sparring.errors import InfrastructureError, RewardError, ServiceError, UsageError
from sparring.protocols import SessionLike
from sparring.rewards.reports import check_report
from sparring.rewards.rules import to_reward
from sparring.runtime.threads import run_in_own_thread
from sparring.types import AgentReport, Message, RewardValue, Task, ToolSchema, Turn

PlayFunction: TypeAlias = Callable[
    [Task, SessionLike], Awaitable[RewardValue | AgentReport] | RewardValue | AgentReport
]
Enter: TypeAlias = Callable[[Any], EndpointLike]


@final
class EpisodeSession:
    """An episode's session together with its endpoint. `chat` requests a turn in this process; any client can request
    turns at `base_url` with `api_key`."""

    def __init__(self, session: SessionLike, endpoint: EndpointLike) -> None:
        self._session = session
        self._endpoint = endpoint
        self.base_url = endpoint.base_url
        self.api_key = endpoint.api_key

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
        """Return the session of another policy of the episode. Raises UsageError if the recipe does not define this
        policy."""
        return EpisodeSession(self._session.of(name), self._endpoint.policies[name])

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Sample one turn and return the assistant's message. Raises the same errors as `Session.play`."""
        return await self._session.chat(messages, tools)

    def client(self) -> Any:
        """Return an `openai.AsyncOpenAI` client for this episode. Raises ServiceError when openai is not installed."""
        openai = _import_openai()
        http_client = openai.DefaultAsyncHttpxClient(verify=_certificates())
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, http_client=http_client)

    def sync_client(self) -> Any:
        """Return an `openai.OpenAI` client for this episode, for agents that are plain functions. Raises ServiceError when
        openai is not installed."""
        openai = _import_openai()
        http_client = openai.DefaultHttpxClient(verify=_certificates())
        return openai.OpenAI(base_url=self.base_url, api_key=self.api_key, http_client=http_client)


def _import_openai() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError as error:
        raise ServiceError(
            "The session's client needs the package openai, which is not installed. Run `pip install openai`, or use "
            "session.chat()."
        ) from error


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates that clients trust. Loading them takes longer than the turns of a small model, so all
    episodes share them."""
    return httpx.create_ssl_context()


@final
class FunctionAgent:
    """An agent that calls a function to run an episode. The function returns the reward, or an AgentReport that also hands
    over the state of its environment, the executed calls and artifacts. A plain function runs in a thread of its own."""

    def __init__(self, function: PlayFunction, *, enter: Enter | None = None) -> None:
        """Create an agent. If `enter` is given, it opens a gateway endpoint for each session, and the function gets an
        `EpisodeSession`."""
        self._function = function
        self._enter = enter
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def entering(self, enter: Enter) -> FunctionAgent:
        """Return the same agent with a gateway endpoint for its own clients."""
        return FunctionAgent(self._function, enter=enter)

    async def play(self, task: Task, session: SessionLike) -> AgentResult:
        """Run one episode.

        If the policy reaches a limit, or the function raises any other exception, the result has an outcome but no
        reward. InfrastructureError and UsageError are raised unchanged. Raises AgentFailed if the function fails before the
        first turn. Raises RewardError when the function returns
        neither a reward nor a valid AgentReport.
        """
        try:
            value = await self._call(task, self._with_endpoint(session))
        except (InfrastructureError, RewardError, UsageError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 (user code may raise anything; it ends its episode only)
            return ended_by(error, session, f"{self.__name__} raised {error!r}")
        turn_ids = [turn.id for turn in session.episode_turns if turn.learns]
        source = f"Agent {self.__name__!r} in session {session.id}: its"
        report = value if isinstance(value, AgentReport) else AgentReport(reward=value)
        report = check_report(report, source=f"{source} report")
        is_graded = report.reward is not None or not isinstance(value, AgentReport)
        return AgentResult.of_report(
            report, to_reward(report.reward, turn_ids=turn_ids, source=f"{source} reward") if is_graded else None
        )

    async def _call(self, task: Task, session: SessionLike) -> RewardValue | AgentReport:
        function: Any = self._function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            value = function(task, session)
        else:
            value = await run_in_own_thread(function, task, session)
        # A plain function may wrap an async one, and then returns what has to be awaited.
        return await value if inspect.isawaitable(value) else value

    def _with_endpoint(self, session: SessionLike) -> SessionLike:
        return session if self._enter is None else EpisodeSession(session, self._enter(session))


def agent(function: PlayFunction) -> FunctionAgent:
    """Make an agent from `play(task, session)`, which returns the episode's reward or an AgentReport. It can be used as a
    decorator. A function that is not async runs in a thread of its own."""
    return FunctionAgent(function)
