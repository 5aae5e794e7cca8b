"""A worker polls a real gateway, plays with a function of the user's, reports, renews, and gives back what it cannot end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sparring.agents.pull import PullAgent
from sparring.agents.result import AgentResult
from sparring.agents.worker import Worker, main, work
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import InfrastructureError, RewardError, ServiceError, UsageError
from sparring.gateway import Gateway, WorkQueue
from sparring.ledger import Ledger
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, RolloutLimits
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Outcome, Reward, Sampling, Task

KEY = "a worker key"
TASK = Task(id="t1", messages=({"role": "user", "content": "find b"},), fields={"truth": "f"})


def make_session() -> Session:
    engine = ScriptedEngine(["one", "two", "three"], encode=ByteTokenizer().encode)
    return Session(
        EpisodeIdentity("episode"), engine=engine, chat=TemplateChat(ByteTokenizer()), sampling=Sampling(max_tokens=50)
    )


def ask(invocation: Any) -> str:
    """One turn with the stock client."""
    with openai.OpenAI(base_url=invocation["base_url"], api_key=invocation["api_key"], timeout=20) as client:
        answer = client.chat.completions.create(model="policy", messages=invocation["messages"])
    return answer.choices[0].message.content or ""


async def ask_async(invocation: Any) -> str:
    return await asyncio.to_thread(ask, invocation)


def played(play: Any, *, episode: Session | None = None, lease_seconds: float = 60.0, **options: Any) -> AgentResult:
    async def run() -> AgentResult:
        queue = WorkQueue(KEY, lease_seconds=lease_seconds)
        async with Gateway(queue=queue) as gateway, episode or make_session() as session:
            worker = asyncio.ensure_future(Worker(gateway.base_url, play, key=KEY).run())
            agent = PullAgent(queue, gateway=gateway, timeout_seconds=options.get("timeout_seconds", 60.0))
            playing = asyncio.ensure_future(agent.play(TASK, session))
            try:
                await asyncio.wait({playing, worker}, return_when=asyncio.FIRST_COMPLETED)
                return await playing
            finally:
                worker.cancel()
                playing.cancel()
                await asyncio.gather(worker, playing, return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (0.5, Reward(total=0.5)),
        ([0.25, 0.5], Reward(total=0.75, per_turn={0: 0.25, 1: 0.5})),
        (
            {"reward": 1, "components": {"a": 1}, "metrics": {"won": True}},
            Reward(total=1.0, components={"a": 1.0}, metrics={"won": 1.0}),
        ),
    ],
)
def test_what_the_function_returns_is_the_reward(answer: Any, reward: Reward) -> None:
    def play(invocation: Any) -> Any:
        assert invocation["truth"] == "f"
        assert [ask(invocation), ask(invocation)] == ["one", "two"]
        return answer

    episode = make_session()
    result = played(play, episode=episode)
    assert (result.outcome, result.reward) == (Outcome.FINISHED, reward)
    assert len(episode.turns) == 2


def test_an_async_function_may_report_by_itself() -> None:
    async def play(invocation: Any) -> None:
        await ask_async(invocation)
        headers = {"authorization": f"Bearer {invocation['api_key']}"}
        async with httpx.AsyncClient(base_url=invocation["base_url"], headers=headers) as client:
            await client.post("/episode/complete", json={"status": "ready"})
            await client.post("/episode/reward", json={"reward": 0.5})

    assert played(play).reward == Reward(total=0.5)


def raising(invocation: Any) -> float:
    ask(invocation)
    raise ValueError("the shop was down")


def failing(invocation: Any) -> dict[str, Any]:
    ask(invocation)
    return {"status": "error", "error": "the shop was down", "reward": 0.0}


@pytest.mark.parametrize("play", [raising, failing])
def test_a_function_that_fails_after_a_turn_ends_its_episode_as_an_error_of_the_policy(play: Any) -> None:
    failed = played(play)
    assert (failed.outcome, failed.reward) == (Outcome.POLICY_ERROR, None)
    assert re.search(r"gave up the episode: .*the shop was down", str(failed.error))


def in_trouble(invocation: Any) -> float:
    ask(invocation)
    raise InfrastructureError("the shop was down")


def reporting_trouble(invocation: Any) -> dict[str, Any]:
    ask(invocation)
    return {"status_code": 503, "error": "the shop was down"}


@pytest.mark.parametrize("play", [in_trouble, reporting_trouble])
def test_a_function_reports_an_outage_after_a_turn_as_one(play: Any) -> None:
    with pytest.raises(InfrastructureError, match=r"gave it back: .*the shop was down.*, after 1 turns"):
        played(play)


def test_a_function_that_fails_before_a_turn_is_an_outage() -> None:
    def play(_invocation: Any) -> float:
        raise ValueError("no key")

    with pytest.raises(InfrastructureError, match="no key"):
        played(play)


def test_a_function_that_returns_nothing_leaves_the_reward_to_the_recipe() -> None:
    finished = played(lambda invocation: ask(invocation) and None)
    assert (finished.outcome, finished.reward) == (Outcome.FINISHED, None)


def test_a_reward_that_does_not_fit_the_turns_ends_the_worker_and_the_run() -> None:
    def play(invocation: Any) -> list[float]:
        ask(invocation)
        return [1.0, 2.0, 3.0]

    with pytest.raises(RewardError, match="3 numbers for 1 turns"):
        played(play)


def test_an_episode_longer_than_a_lease_is_renewed() -> None:
    def play(invocation: Any) -> float:
        ask(invocation)
        pause.wait(3.0)
        ask(invocation)
        return 1.0

    pause, episode = threading.Event(), make_session()
    assert played(play, episode=episode, lease_seconds=1.5).reward == Reward(total=1.0)
    assert len(episode.turns) == 2


def test_a_worker_that_is_stopped_gives_its_episode_back_and_the_next_one_plays_it() -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def stuck(_invocation: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        def play(invocation: Any) -> float:
            ask(invocation)
            return 1.0

        queue = WorkQueue(KEY)
        async with Gateway(queue=queue) as gateway, make_session() as session:
            first = asyncio.ensure_future(Worker(gateway.base_url, stuck, key=KEY).run())
            playing = asyncio.ensure_future(PullAgent(queue, gateway=gateway).play(TASK, session))
            await begun.wait()
            first.cancel()
            second = asyncio.ensure_future(Worker(gateway.base_url, play, key=KEY).run())
            assert (await asyncio.wait_for(playing, 30)).reward == Reward(total=1.0)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)

    asyncio.run(run())


def test_workers_play_a_group_side_by_side_and_the_ledger_accounts_for_it() -> None:
    async def run() -> None:
        playing, most = 0, 0

        async def play(invocation: Any) -> float:
            nonlocal playing, most
            playing += 1
            most = max(most, playing)
            await ask_async(invocation)
            await asyncio.sleep(0.1)
            playing -= 1
            return float(most)

        queue = WorkQueue(KEY)
        with Ledger() as ledger:
            async with Gateway(queue=queue) as gateway:
                collector = Collector(
                    agent=EpisodeAgent(PullAgent(queue, gateway=gateway).play),
                    policy=MainPolicy(
                        ScriptedEngine(lambda _request: "one", encode=ByteTokenizer().encode),
                        TemplateChat(ByteTokenizer()),
                    ),
                    grading=Grading(),
                    ledger=ledger,
                    seed=0,
                    limits=RolloutLimits(timeout_seconds=60, max_concurrency=8),
                )
                worker = asyncio.ensure_future(Worker(gateway.base_url, play, key=KEY).run(concurrency=3))
                plan = GroupPlan(task=TASK, position=0, group_size=6, sampling=Sampling(max_tokens=20))
                group = await collector.play_group(plan)
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)
            assert len(group.trajectories) == 6
            assert most == 3
            assert ledger.verify() == []

    asyncio.run(run())


def asked(send: Callable[[httpx.Request], httpx.Response], run: Callable[[Worker], Awaitable[None]]) -> list[float]:
    """Run a worker against a gateway with scripted answers; return the seconds that it slept."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    async def main() -> None:
        client = httpx.AsyncClient(transport=httpx.MockTransport(send))
        worker = Worker(
            "http://gateway",
            print,
            key=KEY,
            patience_seconds=10.0,
            client=client,
            clock=lambda: sum(slept),
            sleep=sleep,
            rng=random.Random(0),
        )
        await run(worker)

    asyncio.run(main())
    return slept


def test_a_gateway_that_is_not_there_is_waited_for_but_not_for_ever() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async def run(worker: Worker) -> None:
        with pytest.raises(ServiceError, match=r"did not answer for 10 s: .*refused"):
            await worker.run()

    slept = asked(refuse, run)
    assert slept[0] <= 0.5
    assert 10 <= sum(slept) < 30


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_gateway_that_is_busy_is_waited_for_but_not_for_ever(status: int) -> None:
    async def run(worker: Worker) -> None:
        with pytest.raises(ServiceError, match=rf"did not answer for 10 s: it answered {status}: later"):
            await worker.run()

    assert 10 <= sum(asked(lambda _: httpx.Response(status, text="later"), run)) < 30


def test_a_wrong_key_is_reported_and_not_tried_again() -> None:
    async def run(worker: Worker) -> None:
        with pytest.raises(ServiceError, match="returned no episode: 401: no"):
            await worker.run()

    assert asked(lambda _: httpx.Response(401, text="no"), run) == []


def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARRING_WORKER_KEY", raising=False)
    with pytest.raises(UsageError, match="set SPARRING_WORKER_KEY"):
        work("http://gateway", print)
    with pytest.raises(UsageError, match="give http://HOST:PORT"):
        Worker("gateway:8000", print, key=KEY)
    with pytest.raises(UsageError, match="would not run any episode"):
        asyncio.run(Worker("http://gateway", print, key=KEY).run(0))


def test_the_command_line_loads_the_function_and_reports_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARRING_WORKER_KEY", raising=False)
    (tmp_path / "mine.py").write_text("def play(invocation):\n    return 1.0\n")
    assert main(["http://gateway", "mine:play"]) == 2
    assert "no worker key was given" in capsys.readouterr().err
    assert main(["http://gateway", "mine:plya"]) == 2
    assert "did you mean 'play'" in capsys.readouterr().err


def test_the_worker_of_the_documentation_plays_from_a_process_of_its_own(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")
    ((name, code),) = re.findall(r"<!-- worker: (\S+) -->\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / name).write_text(code)

    async def run() -> AgentResult:
        queue = WorkQueue(KEY)
        async with Gateway(queue=queue) as gateway, make_session() as session:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sparring.agents.worker",
                gateway.base_url,
                f"{Path(name).stem}:play",
                "--concurrency",
                "2",
                cwd=tmp_path,
                env={**os.environ, "SPARRING_WORKER_KEY": KEY},
            )
            try:
                task = Task(id="t1", messages=TASK.messages, fields={"answer": "one"})
                return await PullAgent(queue, gateway=gateway, timeout_seconds=120.0).play(task, session)
            finally:
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130

    assert asyncio.run(run()).reward == Reward(total=1.0)


def test_it_needs_nothing_that_trains() -> None:
    async def run() -> str:
        code = "import json, sys, sparring.agents.worker; print(json.dumps(sorted(sys.modules)))"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0].decode()

    assert not {"torch", "transformers", "starlette"} & set(json.loads(asyncio.run(run())))
