"""Agents written for SageMaker MTRL, with AWS's own packages, play through the gateway; only the endpoint is new.

They run in a virtual environment of their own, which `make clients CLIENTS=mtrl` makes: tests/clients/mtrl/requirements.txt, in
$CLIENT_VENVS/mtrl (.clients/mtrl by default).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import pytest

from sparring.agents.http import HttpAgent, MtrlJob, PushLimits, invocation
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import Gateway
from sparring.ledger import Ledger
from sparring.sessions import EpisodeIdentity, Session
from sparring.trainer import MultiTurnRLTrainer
from sparring.types import Outcome, Reward, Sampling, Task

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CLIENT_VENVS", ROOT / ".clients")) / "mtrl" / "bin" / "python"
AGENT = Path(__file__).parent / "mtrl" / "agent.py"
RECIPE = ROOT / "recipes" / "pointer_chase" / "recipe.toml"

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing: make clients CLIENTS=mtrl"),
]

CALL = '<tool_call>{"name": "find", "arguments": {"title": "Emma"}}</tool_call>'


def task(**fields: Any) -> Task:
    prompt = {"role": "user", "content": "Where is Emma?"}
    return Task(id="emma", messages=(prompt,), fields={"truth": "B3", **fields})


def session(*script: Any) -> Session:
    engine = ScriptedEngine(script or [CALL, "It is at B3."], encode=ByteTokenizer().encode)
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=200)
    return Session(EpisodeIdentity("episode"), engine=engine, chat=TemplateChat(ByteTokenizer()), sampling=sampling)


def environment(**more: str) -> dict[str, str]:
    """Credentials that sign, and open nothing at AWS."""
    ours = ("PYTHONPATH", "RFT_RUNTIME_ENDPOINT", "AWS_PROFILE")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_REGION": "us-east-1"}
    return {**inherited, **keys, "AWS_EC2_METADATA_DISABLED": "true", **more}


def free_port() -> int:
    """Without the digits 404: the SDK passes over errors whose text has them, also those of a URL."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        if "404" not in str(port):
            return port


@contextlib.asynccontextmanager
async def served(*program: str | Path, endpoint: str) -> AsyncIterator[str]:
    """The URL of an AgentCore agent, when it is up."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        PYTHON, *program, str(port), env=environment(RFT_RUNTIME_ENDPOINT=endpoint)
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client, asyncio.timeout(120):
            while True:
                assert process.returncode is None, "the agent did not start"
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/ping")).is_success:
                        break
                await asyncio.sleep(0.2)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def test_a_strands_agent_with_wrapped_model_and_decorated_entrypoint_plays_and_is_rewarded() -> None:
    async def run() -> None:
        async with Gateway() as gateway, served(AGENT, "handler", endpoint=gateway.base_url.removesuffix("/v1")) as url:
            agent = HttpAgent(url, gateway=gateway, limits=PushLimits(timeout_seconds=60))

            async with session() as scalar:
                played = await agent.play(task(), scalar)
            assert played.outcome is Outcome.FINISHED
            # What its answer contains in addition to the reward arrives as well; MTRL drops it.
            assert played.reward == Reward(total=1.0, metrics={"num_messages": 4.0})
            assert [turn.parent for turn in scalar.turns] == [None, 0]
            assert scalar.turns[0].sampling == scalar.sampling
            assert [message["role"] for message in scalar.messages] == ["user", "assistant", "tool", "assistant"]

            async with session(CALL, "I cannot say.") as listed:
                played = await agent.play(task(per_turn=True), listed)
            assert played.reward == Reward(total=0.25, per_turn={0: 0.25, 1: 0.0}, metrics={"num_messages": 4.0})

            # The decorator reports a second time, is refused, and goes on.
            async with session() as reported:
                played = await agent.play(task(reports=True), reported)
            assert played.reward is not None
            assert played.reward.total == 0.5

            async with session() as broken:
                failed = await agent.play(task(breaks=True), broken)
                assert failed.outcome is Outcome.POLICY_ERROR
                assert "gave up the episode" in str(failed.error)
            await agent.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(("max_concurrency", "own_model"), [(1, False), (6, True)])
def test_episodes_do_not_mix_one_at_a_time_or_each_with_a_model_of_its_own(
    max_concurrency: int, own_model: bool
) -> None:
    """`wrap_model` writes the trajectory into the model: one that several episodes share at once mixes their turns."""

    async def run() -> None:
        async with Gateway() as gateway, served(AGENT, "handler", endpoint=gateway.base_url.removesuffix("/v1")) as url:
            agent = HttpAgent(
                url, gateway=gateway, limits=PushLimits(timeout_seconds=60, max_concurrency=max_concurrency)
            )

            async def play(answer: str) -> float:
                async with session(CALL, answer) as episode:
                    played = await agent.play(task(own_model=own_model), episode)
                    assert len(episode.turns) == 2
                    assert played.reward is not None
                    return played.reward.total

            answers = ["B3", "C1", "B3", "C1", "B3", "C1"]
            rewards = await asyncio.gather(*(play(answer) for answer in answers))
            await agent.aclose()
        assert rewards == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]

    asyncio.run(run())


def test_an_agent_of_the_toolkit_plays_in_the_background() -> None:
    async def run() -> None:
        async with Gateway() as gateway, served(AGENT, "toolkit", endpoint="") as url, session("At B3.") as episode:
            async with HttpAgent(url, gateway=gateway, limits=PushLimits(timeout_seconds=60)) as agent:
                assert (await agent.play(task(), episode)).reward == Reward(total=1.0)
            assert len(episode.turns) == 1

    asyncio.run(run())


async def invoked(command: str, episode: Session) -> tuple[dict[str, Any], Reward]:
    """What an agent prints that is sent an invocation on stdin, and the reward that it reported."""
    async with Gateway(port=free_port()) as gateway, episode:
        registered = gateway.register(episode)
        sent = invocation(task(), episode.sampling, registered, endpoint=registered.endpoint, job=MtrlJob(name="test"))
        process = await asyncio.create_subprocess_exec(
            PYTHON, AGENT, command, stdin=PIPE, stdout=PIPE, env=environment()
        )
        printed, _ = await asyncio.wait_for(process.communicate(json.dumps(sent).encode()), timeout=120)
        assert process.returncode == 0
        return json.loads(printed.splitlines()[-1]), await asyncio.wait_for(registered.report.wait(), timeout=1)


def test_the_sdks_feedback_client_lands_its_reward_once() -> None:
    episode = session(CALL, "It is at B3.")
    printed, reward = asyncio.run(invoked("feedback", episode))
    assert reward == Reward(total=1.25, per_turn={0: 0.25, 1: 1.0})
    assert [turn.parent for turn in episode.turns] == [None, 0]
    assert printed["answer"] == "It is at B3."
    # The SDK means to pass over these, but looks for "not in valid status" in a text that has no body of the answer.
    assert "409 Client Error" in printed["again"]
    assert "409 Client Error" in printed["error"]
    assert printed["unknown"] is None
    # Here it would find the words, and its decorator skips a trajectory that is over.
    assert "not in valid status" in printed["turn"]


def test_the_services_own_client_reads_answers_streams_and_errors() -> None:
    episode = session("one", "two")
    printed, reward = asyncio.run(invoked("boto3", episode))
    assert printed["sampled"] == "one"
    assert printed["streamed"] >= 3
    kinds = {name: kind for name, (kind, _) in printed["errors"].items()}
    assert kinds == {
        "conflict": "ConflictException",
        "late": "ConflictException",
        "unknown": "ResourceNotFoundException",
        "invalid": "ValidationException",
    }
    assert "does not belong to a running episode" in printed["errors"]["unknown"][1]
    assert reward == Reward(total=0.75, per_turn={0: 0.5, 1: 0.25})


def test_an_agent_with_the_sdks_decorator_learns_pointer_chase(tmp_path: Path) -> None:
    """From a warm start at 0.15; only the endpoint is not AWS's. The recipe's own environment and reward are left out."""
    for file in RECIPE.parent.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    before, _, rest = RECIPE.read_text().partition("[environment]")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(before + rest[rest.index("[warm_start]") :])
    port = free_port()
    overrides = [
        f"run.runs_dir={tmp_path}",
        "schedule.max_steps=12",
        "schedule.val_every=0",
        "schedule.save_every=0",
        f"agent.gateway_port={port}",
        "agent.tps_limit=1000",
        "agent.max_turns=5",
        "rollout.rollout_max_concurrency=32",
        "batch.global_batch_size=8",
        "optimizer.learning_rate=1e-3",
    ]

    async def run() -> list[float]:
        async with served(AGENT.parent / "pointer_chase.py", endpoint=f"http://127.0.0.1:{port}") as url:
            trainer = MultiTurnRLTrainer(recipe, overrides=[*overrides, f"agent.url={url}"], quiet=True, check=False)
            result = await asyncio.to_thread(trainer.train)
            await asyncio.to_thread(trainer.close)
        assert result is not None
        assert (result.status, result.step) == ("completed", 12)
        with Ledger(result.run / "ledger.sqlite") as ledger:
            assert ledger.verify() == []
            assert ledger.counts()["trained"] == 12 * 64
        rows = [json.loads(line)["metrics"] for line in (result.run / "metrics.jsonl").read_text().splitlines()]
        return [row["rollout/reward/mean"] for row in rows if "rollout/reward/mean" in row]

    rewards = asyncio.run(run())
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.15, rewards
