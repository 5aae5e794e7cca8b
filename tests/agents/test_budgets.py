"""What an episode may use up (turns, tokens, time) is enforced by the runtime for every agent, and is how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.responses import JSONResponse

from sparring.agents import CommandAgent, EnvironmentAgent, FunctionAgent
from sparring.agents.http import HttpAgent, PushLimits
from sparring.agents.pull import PullAgent
from sparring.agents.worker import Worker
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.environments import Environment, tool
from sparring.gateway import Gateway, WorkQueue
from sparring.ledger import Ledger
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, RolloutLimits
from sparring.sessions import EpisodeIdentity, EpisodeLimits, Session
from sparring.types import Outcome, Sampling, StopReason, Task, Trajectory
from tests.agents.http_agents import served

TASK = Task(id="t1", messages=({"role": "user", "content": "find b"},))
SLOW_START = 1.2
CALL = '<tool_call>{"name": "wait", "arguments": {}}</tool_call>'
PROGRAM = textwrap.dedent("""
    import json, os, sys, time, urllib.request
    mode = sys.argv[1]
    messages = json.load(sys.stdin)["messages"]
    if mode == "hang after a turn":  # without the seconds that the import of a client takes
        headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
    if mode.startswith("hang"):
        time.sleep(600)
    import openai
    with openai.OpenAI() as client:
        for _ in range(50):
            try:
                client.chat.completions.create(model="policy", messages=messages)
            except openai.APIStatusError:
                if mode == "raise":
                    raise
                break
    print(json.dumps({"reward": 0.25}))
""")


def ask(base_url: str, api_key: str, mode: str) -> float:
    """Ask until the policy refuses; then raise, or make the best of it."""
    with openai.OpenAI(base_url=base_url, api_key=api_key, timeout=60) as client:
        for _ in range(50):
            try:
                client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "find b"}])
            except openai.APIStatusError:
                if mode in ("raise", "start slowly"):
                    raise
                break
    return 0.25


async def invoked(invocation: Any, mode: str) -> float:
    if mode == "hang after a turn":
        async with openai.AsyncOpenAI(base_url=invocation["base_url"], api_key=invocation["api_key"]) as client:
            await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "find b"}])
    if mode.startswith("hang"):
        await asyncio.Event().wait()
    if mode == "start slowly":
        await asyncio.sleep(SLOW_START)
    return await asyncio.to_thread(ask, invocation["base_url"], invocation["api_key"], mode)


class Idle(Environment):
    """An environment in which nothing happens."""

    mode = "raise"

    async def reset(self, task: Task) -> None:
        if self.mode == "hang":
            await asyncio.Event().wait()
        if self.mode == "start slowly":
            await asyncio.sleep(SLOW_START)

    @tool
    async def wait(self) -> str:
        """Wait."""
        if self.mode == "hang after a turn":
            await asyncio.Event().wait()
        return "b"


KINDS = ["function", "command", "url", "pull", "environment"]
Play = Callable[[Task, Session], Awaitable[Any]]


@contextlib.asynccontextmanager
async def agent(kind: str, mode: str, folder: Path) -> AsyncIterator[Play]:
    """An agent of a kind, which asks for turns until it is refused, and then raises or rewards itself; or hangs."""
    queue, patience = WorkQueue("key"), 5.0 if mode.startswith("hang") else 60.0
    async with Gateway(queue=queue) as gateway, contextlib.AsyncExitStack() as stack:
        match kind:
            case "function":

                async def play(task: Task, session: Any) -> float:
                    return await invoked({"base_url": session.base_url, "api_key": session.api_key}, mode)

                yield FunctionAgent(play, enter=gateway.register).play
            case "command":
                (folder / "program.py").write_text(PROGRAM)
                command = [sys.executable, "program.py", mode]
                yield CommandAgent(command, enter=gateway.register, folder=folder).play
            case "url":

                async def behaviour(payload: Any) -> JSONResponse:
                    return JSONResponse({"reward": await invoked(payload, mode)})

                url = await stack.enter_async_context(served(behaviour))
                http = HttpAgent(url, gateway=gateway, limits=PushLimits(timeout_seconds=patience, max_retries=0))
                yield (await stack.enter_async_context(http)).play
            case "pull":

                async def work(invocation: Any) -> float:
                    return await invoked(invocation, mode)

                worker = asyncio.ensure_future(Worker(gateway.base_url, work, key="key").run())
                yield PullAgent(queue, gateway=gateway, timeout_seconds=patience).play
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)
            case _:
                environment = type("Idle", (Idle,), {"mode": mode})
                yield EnvironmentAgent(environment, max_turns=50).play


def played(
    kind: str, mode: str, folder: Path, *, timeout_seconds: float = 60.0, seconds: float = 0.0, **budget: int
) -> tuple[Trajectory | Outcome, Ledger]:
    """One attempt at an episode whose policy takes its time, and has a budget."""
    ledger = Ledger()

    async def run() -> Trajectory | Outcome:
        engine = ScriptedEngine(
            lambda _: CALL if kind == "environment" else "eight by",
            encode=ByteTokenizer().encode,
            seconds=lambda _: seconds,
        )
        async with agent(kind, mode, folder) as play:
            collector = Collector(
                agent=EpisodeAgent(play),
                policy=MainPolicy(engine, TemplateChat(ByteTokenizer())),
                grading=Grading(reward=lambda _: 0.0),
                ledger=ledger,
                seed=0,
                limits=RolloutLimits(timeout_seconds=timeout_seconds, max_concurrency=1, **budget),
            )
            plan = GroupPlan(task=TASK, position=0, group_size=1, sampling=Sampling(max_tokens=100))
            return await collector.play_episode(plan, 0)

    return asyncio.run(run()), ledger


@pytest.mark.parametrize("mode", ["raise", "make the best of it"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens(kind: str, mode: str, tmp_path: Path) -> None:
    length = 9 if kind != "environment" else len(CALL) + 1
    trajectory, ledger = played(kind, mode, tmp_path, max_tokens=2 * length + 4)
    with ledger:
        assert ledger.verify() == []
    assert isinstance(trajectory, Trajectory)
    assert trajectory.outcome is Outcome.MAX_TOKENS
    assert [len(turn.token_ids) for turn in trajectory.turns] == [length, length, 4]
    # The last one was cut, and was announced.
    assert (trajectory.turns[-1].stop_reason, trajectory.turns[-1].sampling.max_tokens) == (StopReason.LENGTH, 4)
    assert trajectory.reward is not None
    rewards_itself = kind != "environment" and mode != "raise"
    assert trajectory.reward.total == (0.25 if rewards_itself else 0.0)


@pytest.mark.parametrize("mode", ["raise", "make the best of it"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "environment"])
def test_turns(kind: str, mode: str, tmp_path: Path) -> None:
    trajectory, ledger = played(kind, mode, tmp_path, max_turns=2)
    ledger.close()
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.MAX_TURNS, 2)
    assert trajectory.reward is not None
    assert trajectory.reward.total == (0.0 if mode == "raise" else 0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_time_that_the_policy_used_up(kind: str, tmp_path: Path) -> None:
    trajectory, ledger = played(kind, "raise", tmp_path, timeout_seconds=200.0, seconds=300.0)
    ledger.close()
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.outcome, trajectory.turns) == (Outcome.POLICY_TIMEOUT, ())
    assert "deadline" in str(trajectory.error)


@pytest.mark.parametrize("kind", KINDS)
def test_time_that_the_agent_used_up(kind: str, tmp_path: Path) -> None:
    trajectory, ledger = played(kind, "hang", tmp_path, timeout_seconds=2.0)
    assert trajectory is Outcome.INFRASTRUCTURE_ERROR
    with ledger:
        (rollout,) = ledger.rollouts()
        assert ledger.verify() == []
    assert rollout.reason == "env_timeout"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "command"])
def test_time_that_was_used_up_before_the_first_request(kind: str, tmp_path: Path) -> None:
    trajectory, ledger = played(kind, "start slowly", tmp_path, timeout_seconds=2.0, seconds=300.0)
    assert trajectory is Outcome.INFRASTRUCTURE_ERROR
    with ledger:
        (rollout,) = ledger.rollouts()
        assert ledger.verify() == []
    assert rollout.reason == "env_timeout"
    assert "requested its first turn after 1." in str(rollout.detail)


@pytest.mark.parametrize("kind", KINDS)
def test_what_hangs_after_a_turn_was_led_there_by_the_policy(kind: str, tmp_path: Path) -> None:
    trajectory, ledger = played(kind, "hang after a turn", tmp_path, timeout_seconds=4.0)
    with ledger:
        assert ledger.verify() == []
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.POLICY_TIMEOUT, 1)


def refuse_second(**limits: int) -> httpx.Response:
    """Return the response to a client's second request."""

    async def run() -> httpx.Response:
        engine = ScriptedEngine(lambda _: "eight by", encode=ByteTokenizer().encode)
        session = Session(
            EpisodeIdentity("e"),
            engine=engine,
            chat=TemplateChat(ByteTokenizer()),
            sampling=Sampling(max_tokens=9),
            limits=EpisodeLimits(**limits),
        )
        async with Gateway() as gateway, session:
            endpoint = gateway.register(session)
            headers = {"authorization": f"Bearer {endpoint.api_key}"}
            async with httpx.AsyncClient(base_url=endpoint.base_url, headers=headers) as client:
                body = {"model": "m", "messages": list(TASK.messages)}
                assert (await client.post("/chat/completions", json=body)).status_code == 200
                return await client.post("/chat/completions", json=body)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("budget", "code", "key"),
    [
        ({"max_tokens": 9}, "max_tokens_exceeded", "rollout.rollout_max_tokens"),
        ({"max_turns": 1}, "max_turns_exceeded", "agent.max_turns"),
    ],
)
def test_a_turn_beyond_the_budget_is_refused_for_good(budget: Any, code: str, key: str) -> None:
    refused = refuse_second(**budget)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
    assert refused.headers["x-should-retry"] == "false"
    assert key in refused.json()["error"]["message"]


def test_an_answer_that_fills_the_context_ends_with_length_and_the_next_request_is_too_long() -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda _: "x" * 1000, encode=ByteTokenizer().encode, max_context_tokens=400)
        session = Session(
            EpisodeIdentity("e"), engine=engine, chat=TemplateChat(ByteTokenizer()), sampling=Sampling(max_tokens=900)
        )
        async with Gateway() as gateway, session:
            endpoint = gateway.register(session)
            async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
                messages: list[Any] = [*TASK.messages]
                answer = await client.chat.completions.create(model="m", messages=messages)
                assert answer.choices[0].finish_reason == "length"
                assert answer.usage is not None
                assert answer.usage.total_tokens == 400
                messages += [answer.choices[0].message.model_dump(exclude_none=True), *TASK.messages]
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.chat.completions.create(model="m", messages=messages)
                assert refused.value.code == "context_length_exceeded"
                assert refused.value.response.headers["x-should-retry"] == "false"

    asyncio.run(run())
