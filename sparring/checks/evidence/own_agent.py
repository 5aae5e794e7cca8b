"""Episodes of the recipe's own agent: the real agent, over the real gateway, with a scripted policy."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal, final

from sparring.agents import AgentResult
from sparring.agents.scripted import Asked, ScriptedPolicy
from sparring.assembly.agent import load_agent
from sparring.checks.evidence.subject import GradingFailedError, Subject, write_transcript
from sparring.checks.evidence.user_source import OwnCode
from sparring.checks.evidence.wire_policies import make_explorer
from sparring.checks.running.time_budget import UndecidedError, processor_time
from sparring.errors import ClientError, InfrastructureError, RewardError, ServiceError, SparringError, UsageError
from sparring.protocols import DeltaCallback
from sparring.rollouts import Agent
from sparring.runtime.plugins import load_object
from sparring.sessions import AnySession, EpisodeIdentity, MessageSession
from sparring.sessions.identity import EpisodeLimits
from sparring.types import (
    EngineCapabilities,
    Json,
    Message,
    MessageAnswer,
    MessageRequest,
    Outcome,
    Sampling,
    StopReason,
    Task,
    Trajectory,
)

NUM_TASKS = 4
"""The number of tasks in which the explorer plays."""
MOST_TURNS = 12
"""The number of turns after which the policy refuses, unless the recipe sets a smaller `agent.max_turns`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEpisode:
    """An episode of the recipe's own agent with a scripted policy."""

    policy: str
    task: Task
    requests: tuple[MessageRequest, ...]
    """What the agent sent to the policy, turn by turn."""
    trajectory: Trajectory
    """The episode with the reward of the agent or of the recipe, and the score. Without them if `failure` is set."""
    failure: str | None
    """Why the episode ended without a result, or None."""
    is_failure_of_agent: bool
    """Whether the agent's own code raised, hung or reported something invalid, rather than a grader of the recipe."""
    seconds: float

    @property
    def reward(self) -> float | None:
        return None if self.trajectory.reward is None else self.trajectory.reward.total

    @property
    def transcript(self) -> list[tuple[str, str]]:
        """Everything that the agent sent and received, as (role, text) lines for comparison."""
        lines: list[tuple[str, str]] = []
        for number, request in enumerate(self.requests):
            lines += [(f"turn {number}, {role}", text) for role, text in write_transcript(request.messages)]
            lines += [(f"turn {number}, tool", json.dumps(tool, sort_keys=True)) for tool in request.tools]
        return lines

    @property
    def handed_over(self) -> list[tuple[str, str]]:
        """The state, the calls and the artifacts that the agent handed over, as lines for comparison."""
        parts = {
            "final_state": self.trajectory.final_state,
            "transitions": self.trajectory.transitions,
            "artifacts": self.trajectory.artifacts,
        }
        return [(name, json.dumps(part, sort_keys=True, default=str)) for name, part in parts.items() if part]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Every text that the agent wrote into its requests, with where it stands."""
        found: list[tuple[str, str]] = []
        for number, request in enumerate(self.requests):
            for message in request.messages:
                if message.get("role") != "assistant":
                    found.append((f"{message.get('role')} message of turn {number}", str(message.get("content") or "")))
            found += [(f"tool schema of turn {number}", json.dumps(tool)) for tool in request.tools]
        return [*found, *self.handed_over]


@final
class _WirePolicy:
    """Implements `protocols.MessageEngine` with a scripted policy, and keeps the requests."""

    def __init__(self, policy: ScriptedPolicy, task: Task) -> None:
        self.requests: list[MessageRequest] = []
        self.error: Exception | None = None
        """The error of the script itself, which is not the agent's."""
        self._policy, self._task = policy, task

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities()

    @property
    def fingerprint(self) -> str:
        return f"scripted:{self._policy.name}"

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        """Return the policy's next message."""
        await asyncio.sleep(0)  # lets episodes that are played together take turns
        turn = len(self.requests)
        self.requests.append(replace(request, messages=copy.deepcopy(request.messages)))
        asked = Asked(task=self._task, messages=request.messages, tools=request.tools, turn=turn)
        try:
            written = copy.deepcopy(dict(self._policy.act(asked)))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 (what an agent sends may be anything)
            self.error, written = error, {}
        message = {"role": "assistant", "content": "", **written}
        if on_delta is not None and message["content"]:
            on_delta({"content": message["content"]})
        return MessageAnswer(message=message, stop_reason=StopReason.STOP)

    async def close(self) -> None:
        """Do nothing: a script has no resources."""


@final
class OwnAgent:
    """The recipe's own agent, ready to play. Its episodes are played once and then shared by all rules."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        config = subject.config
        play, _ = load_agent(config, subject.folder, lambda _: None)
        assert play is not None, "the rule needs an agent"
        self._play: Agent = play
        given = getattr(config.agent, str(config.agent.kind))
        self.name = f"{config.agent.kind} {given if isinstance(given, str) else ' '.join(given)!r}"
        self._limits = EpisodeLimits(max_turns=min(config.agent.max_turns or MOST_TURNS, MOST_TURNS))
        self._sampling = Sampling(
            temperature=config.sampling.temperature, max_tokens=config.sampling.sampling_max_tokens
        )
        self._played: dict[tuple[str, str, str], OwnEpisode] = {}
        self._processor_seconds: list[float] = []

    @functools.cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks in which the explorer plays."""
        return self._subject.sample[:NUM_TASKS]

    @property
    def episodes(self) -> list[OwnEpisode]:
        """All episodes so far."""
        return list(self._played.values())

    @property
    def processor_seconds(self) -> float | None:
        """The median CPU time of an episode, including that of its program, or None before the first episode."""
        return median(self._processor_seconds) if self._processor_seconds else None

    @functools.cached_property
    def code(self) -> OwnCode | None:
        """The code of an agent that is a function; None for an agent that runs in other processes."""
        reference = self._subject.config.agent.function
        if reference is None:
            return None
        found = load_object(reference, folder=self._subject.folder)
        function = getattr(found, "_function", found)
        return OwnCode(self._subject.folder, [getattr(function, "__module__", "")])

    async def explore(self, task: Task, *, round: str = "first") -> OwnEpisode:
        """Play an episode in which the policy calls every offered tool with likely arguments. Each `round` is played once."""
        return await self.play(task, self._make_explorer(), round=round)

    async def play(self, task: Task, policy: ScriptedPolicy, *, round: str = "first") -> OwnEpisode:
        """Play an episode, or return it if (policy, task, round) was played before. Raises OutOfTimeError if no time is
        left, and UndecidedError if a service is not available."""
        key = (policy.name, task.id, round)
        if key not in self._played:
            self._subject.timing.need()
            began, processor_began = time.monotonic(), processor_time()
            try:
                self._played[key] = await self._play_new(task, policy)
            finally:
                self._subject.timing.count_episode(time.monotonic() - began)
                self._processor_seconds.append(processor_time() - processor_began)
        return self._played[key]

    async def explore_together(self, tasks: Sequence[Task]) -> list[OwnEpisode]:
        """Play one new episode of each task as in `explore`, all at once."""
        self._subject.timing.need(len(tasks))
        return list(await asyncio.gather(*(self._play_new(task, self._make_explorer()) for task in tasks)))

    def _make_explorer(self) -> ScriptedPolicy:
        return make_explorer(self._limits.max_turns or MOST_TURNS)

    async def _play_new(self, task: Task, policy: ScriptedPolicy) -> OwnEpisode:
        engine, began = _WirePolicy(policy, task), time.monotonic()
        session = MessageSession(
            EpisodeIdentity(f"{policy.name}/{task.id}"), engine=engine, sampling=self._sampling, limits=self._limits
        )
        result, failure = AgentResult(outcome=Outcome.POLICY_ERROR), None
        async with session:
            try:
                result = await self._result(task, session)
            except ServiceError as error:
                raise UndecidedError(str(error)) from error
            except (ClientError, InfrastructureError, RewardError, UsageError) as error:
                failure = str(error)
        if engine.error is not None:
            raise UndecidedError(f"the scripted policy cannot read what the agent sends: {engine.error!r}")
        trajectory, ungraded = await self._graded(_as_trajectory(task, session, result), result)
        return OwnEpisode(
            policy=policy.name,
            task=task,
            requests=tuple(engine.requests),
            trajectory=trajectory,
            failure=failure or (result.error if result.outcome is Outcome.POLICY_ERROR else None) or ungraded,
            is_failure_of_agent=failure is not None or result.outcome is Outcome.POLICY_ERROR,
            seconds=time.monotonic() - began,
        )

    async def _result(self, task: Task, session: AnySession) -> AgentResult:
        own = copy.deepcopy(task)
        return await self._subject.watch.call(f"run_agent(task {task.id})", functools.partial(self._play, own, session))

    async def _graded(self, trajectory: Trajectory, result: AgentResult) -> tuple[Trajectory, str | None]:
        """Return the trajectory with its reward and score, and why there is none."""
        reward = result.reward
        try:
            if reward is None and self._subject.reward is not None:
                reward = await self._subject.grade_with("reward", trajectory)
            trajectory = replace(trajectory, reward=reward)
            if self._subject.scorer is not None and result.outcome is not Outcome.POLICY_ERROR:
                score = await self._subject.grade_with("scorer", trajectory)
                trajectory = replace(trajectory, score=score.value, score_parts=score.parts)
        except GradingFailedError as error:
            return trajectory, str(error)
        return trajectory, None


def _as_trajectory(task: Task, session: AnySession, result: AgentResult) -> Trajectory:
    return Trajectory(
        id=session.id,
        task=task,
        attempt=0,
        turns=tuple(turn for turn in session.episode_turns if turn.learns),
        messages=copy.deepcopy(tuple(result.messages) or tuple(session.messages)),
        outcome=result.outcome,
        reward=None,
        score=None,
        metrics=result.metrics,
        transitions=result.transitions,
        final_state=result.final_state,
        artifacts=result.artifacts,
        error=result.error,
    )


def has_own_agent(subject: Subject) -> bool:
    """Return whether a rule has loaded the recipe's own agent."""
    return "own agent" in subject.shared


def get_own_agent(subject: Subject) -> OwnAgent:
    """Return the recipe's own agent, which all rules share. Raises UndecidedError if it cannot be loaded."""
    if not has_own_agent(subject):
        try:
            subject.shared["own agent"] = OwnAgent(subject)
        except SparringError as error:
            raise UndecidedError(f"the agent could not be loaded: {error}") from error
    return subject.shared["own agent"]


def require_results(episodes: Sequence[OwnEpisode]) -> None:
    """Raise UndecidedError if the agent failed in all episodes, which then show nothing about it."""
    if episodes and all(one.is_failure_of_agent for one in episodes):
        raise UndecidedError(f"the agent failed in all of its episodes: {episodes[0].failure}")


async def explore_all(
    subject: Subject,
    *,
    round: str = "first",
    backwards: bool = False,
    needs: Literal["results", "requests", "nothing"] = "results",
) -> list[OwnEpisode]:
    """Return the explorer's episodes of all sampled tasks, as many as there is time for, at least one.

    Raises UndecidedError if the agent failed in all of them. With `needs="requests"`, episodes that failed are enough if
    the agent requested a turn.
    """
    agent = get_own_agent(subject)
    episodes: list[OwnEpisode] = []
    with subject.timing.as_far_as_it_goes():
        for task in reversed(agent.tasks) if backwards else agent.tasks:
            episodes.append(await agent.explore(task, round=round))
    if needs == "results" or (needs == "requests" and not any(one.requests for one in episodes)):
        require_results(episodes)
    return list(reversed(episodes)) if backwards else episodes


async def list_conversations(subject: Subject) -> list[OwnEpisode]:
    """Return the explorer's episodes, or the recorded conversations (`--production`) of an agent that cannot be played."""
    if subject.lacks("agent") is None:
        return await explore_all(subject, needs="requests")
    rows = subject.user_inputs.production or ()
    return [_recorded(index, row) for index, row in enumerate(rows) if isinstance(row.get("messages"), list)]


def _recorded(index: int, row: Mapping[str, Json]) -> OwnEpisode:
    """Return a recorded conversation as an episode, with a request before each of its answers."""
    messages = tuple(one for one in row["messages"] if isinstance(one, Mapping))
    tools_of_row = row.get("tools")
    given: list[Json] = tools_of_row if isinstance(tools_of_row, list) else []
    tools = tuple(one if "function" in one else {"type": "function", "function": one} for one in given if _is_tool(one))
    name = str(row.get("id", f"recorded conversation {index + 1}"))
    requests = tuple(
        MessageRequest(session_id=name, messages=messages[:place], tools=tools, sampling=Sampling())
        for place, message in enumerate(messages)
        if message.get("role") == "assistant"
    )
    task = Task(id=name, messages=messages[:1])
    return OwnEpisode(
        policy="recorded",
        task=task,
        requests=requests,
        trajectory=Trajectory(
            id=name,
            task=task,
            attempt=0,
            turns=(),
            messages=messages,
            outcome=Outcome.FINISHED,
            reward=None,
            score=None,
        ),
        failure=None,
        is_failure_of_agent=False,
        seconds=0.0,
    )


def _is_tool(given: Json) -> bool:
    return isinstance(given, Mapping) and ("name" in given or "name" in (given.get("function") or {}))


def calls_of(request: MessageRequest, answered: Iterable[Message] = ()) -> dict[str, Mapping[str, Json]]:
    """Return the policy's calls in the messages of a request, by call id."""
    found: dict[str, Mapping[str, Json]] = {}
    for message in (*request.messages, *answered):
        for call in message.get("tool_calls") or () if message.get("role") == "assistant" else ():
            if isinstance(call.get("function"), Mapping) and "name" in call["function"]:
                found[str(call.get("id"))] = {"arguments": "{}", **call["function"]}
    return found


def results_of(request: MessageRequest) -> dict[str, str]:
    """Return the results of tools in the messages of a request, by call id."""
    return {
        str(message.get("tool_call_id")): _text(message.get("content"))
        for message in request.messages
        if message.get("role") == "tool"
    }


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)
