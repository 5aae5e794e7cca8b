"""A gateway that is killed under load has every turn that it answered in the ledger."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import pytest

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import Gateway
from sparring.ledger import Ledger, RolloutState
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Sampling
from tests.faults.training import processes

NUM_MOMENTS = 50 if int(os.environ.get("FAULT_SEEDS", "1")) > 1 else 4
NUM_EPISODES = 16
MOST_ANSWERS = 200
"""A server is killed after so many at the latest."""
DEADLINE_SECONDS = 60.0


def serve(pipe: Connection, path: Path) -> None:
    """A real gateway whose policy never gives the same answer twice; goes on until it is killed."""
    asyncio.run(_served(pipe, path))


async def _served(pipe: Connection, path: Path) -> None:
    number = itertools.count()
    tokenizer, drawn = ByteTokenizer(), random.Random(0)
    engine = ScriptedEngine(
        lambda _: f"answer {next(number)}",
        encode=tokenizer.encode,
        seconds=lambda _: drawn.uniform(0, 0.01),
        max_context_tokens=1_000_000,
    )
    with Ledger(path) as ledger:
        async with Gateway() as gateway:
            keys = []
            for id in map(str, range(NUM_EPISODES)):
                ledger.plan_nowait(id, task_id="t", attempt=0)
                ledger.advance_nowait(id, RolloutState.LEASED)
                ledger.advance_nowait(id, RolloutState.RUNNING)
                session = Session(
                    EpisodeIdentity(id),
                    engine=engine,
                    chat=TemplateChat(tokenizer),
                    sampling=Sampling(max_tokens=64),
                    ledger=ledger,
                )
                keys.append(gateway.register(session).api_key)
            pipe.send((gateway.base_url, keys))
            await asyncio.Event().wait()


@dataclass
class Load:
    """Agents that ask as fast as they are answered, until no answer comes."""

    base_url: str
    keys: list[str]
    answers: dict[int, list[str]] = field(default_factory=dict)
    """By episode what arrived whole, in order."""
    num_answers: int = 0

    async def until_killed(self, pid: int, *, after: int) -> None:
        async with httpx.AsyncClient(base_url=self.base_url, timeout=DEADLINE_SECONDS) as client:
            agents = [self._agent(client, number, key, pid, after) for number, key in enumerate(self.keys)]
            await asyncio.gather(*agents)

    async def _agent(self, client: httpx.AsyncClient, number: int, key: str, pid: int, after: int) -> None:
        received = self.answers.setdefault(number, [])
        messages = [{"role": "user", "content": f"Begin {number}."}]
        while True:
            body = {"model": "policy", "messages": messages}
            try:
                answer = await client.post("/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
            except httpx.TransportError:
                return  # the server is gone
            assert answer.status_code == 200, answer.text
            message = answer.json()["choices"][0]["message"]
            received.append(message["content"])
            messages += [message, {"role": "user", "content": "Go on."}]
            self.num_answers += 1
            if self.num_answers == after:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("moment", range(NUM_MOMENTS))
def test_every_turn_that_was_answered_is_there(tmp_path: Path, moment: int) -> None:
    path = tmp_path / "ledger.sqlite"
    here, there = Pipe()
    server = processes.Process(target=serve, args=(there, path))
    server.start()
    try:
        assert here.poll(DEADLINE_SECONDS), "the gateway does not start"
        load = Load(*here.recv())
        assert server.pid is not None
        asyncio.run(load.until_killed(server.pid, after=random.Random(moment).randint(1, MOST_ANSWERS)))
        server.join(DEADLINE_SECONDS)
        assert server.exitcode == -signal.SIGKILL
    finally:
        server.kill()
        server.join()
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        for number, received in load.answers.items():
            recorded = [turn.message["content"] for turn in ledger.load_turns(str(number))]
            # What was recorded and not answered any more is at most the turn that was in progress.
            assert recorded[: len(received)] == received
            assert len(recorded) - len(received) <= 1
