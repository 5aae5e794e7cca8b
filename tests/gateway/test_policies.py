"""Every policy of an episode has a key of its own; whatever is reported with any of them is of the episode."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.agents import CommandAgent, FunctionAgent
from sparring.agents.http import MtrlJob, invocation
from sparring.engines.scripted import Answer
from sparring.errors import UsageError
from sparring.gateway import EpisodeEndpoints, Gateway
from sparring.gateway.app import create_app
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Reward, Sampling, Task
from tests.gateway.builders import USER, raw, session

TASK = Task(id="t1", messages=(USER,), fields={"wish": "tea", "policies": "a column"})


def episode(*, main: list[Answer], customer: list[Answer]) -> Session:
    """The agent's session in an episode with a customer that does not learn."""
    identity = EpisodeIdentity("episode")
    engines = {"main": session(main)._engine, "customer": session(customer)._engine}
    parts: dict[str, Any] = {"chat": session([])._chat, "sampling": Sampling(max_tokens=200)}
    other = Session(identity.for_policy("customer", 0, learns=False), engine=engines["customer"], **parts)
    return Session(identity, engine=engines["main"], others={"customer": other}, **parts)


def post(app: Any, path: str, key: str, **body: Any) -> Any:
    return raw(app, "POST", path, json=body, headers={"authorization": f"Bearer {key}"})


def test_a_key_asks_its_policy_and_a_report_with_any_ends_the_turns_of_all() -> None:
    chat_session = episode(main=["what?", "more"], customer=["tea", "more"])
    endpoints = EpisodeEndpoints("policy")
    key = endpoints.register(chat_session)
    other = endpoints.register(chat_session.of("customer"), of=key)
    app = create_app(endpoints)

    def ask(key: str) -> Any:
        return post(app, "/v1/chat/completions", key, model="any", messages=[USER])

    assert [ask(one).json()["choices"][0]["message"]["content"] for one in (key, other)] == ["what?", "tea"]
    assert [(turn.id, turn.policy, turn.learns) for turn in chat_session.episode_turns] == [
        (0, None, True),
        (1, "customer", False),
    ]
    assert post(app, "/v1/episode/reward", other, reward=[1.0]).status_code == 200
    assert endpoints.report(key).reward == Reward(total=1.0)
    assert [ask(one).status_code for one in (key, other)] == [409, 409]
    chat_session.close()
    assert [ask(one).status_code for one in (key, other)] == [401, 401]


def test_an_agent_behind_a_url_gets_the_other_policies_and_only_where_there_are_any() -> None:
    gateway = Gateway()
    with_customer, alone = gateway.register(episode(main=[], customer=[])), gateway.register(session([]))
    task = Task(id="t1", messages=(USER,))
    details: dict[str, Any] = {"endpoint": "http://gateway", "job": MtrlJob()}
    payload = invocation(task, Sampling(), with_customer, **details)
    assert payload["policies"] == {
        "customer": {"base_url": "http://gateway/v1", "api_key": with_customer.policies["customer"].api_key}
    }
    assert payload["api_key"] != payload["policies"]["customer"]["api_key"]
    assert payload.keys() - {"policies"} == invocation(task, Sampling(), alone, **details).keys()
    assert invocation(TASK, Sampling(), alone, **details)["policies"] == "a column"


def test_a_function_reaches_each_policy_with_a_client() -> None:
    async def play(task: Task, session: Any) -> list[float]:
        async with session.client() as agent, session.of("customer").client() as customer:
            for client in (agent, customer):
                await client.chat.completions.create(model="any", messages=list(task.messages))
        return [1.0]

    async def run() -> Any:
        async with Gateway() as gateway, chat_session:
            return await FunctionAgent(play).entering(gateway.register).play(TASK, chat_session)

    chat_session = episode(main=["what?"], customer=["tea"])
    result = asyncio.run(run())
    assert result.reward == Reward(total=1.0, per_turn={0: 1.0})
    assert len(chat_session.episode_turns) == 2


def test_the_clients_of_all_episodes_load_the_certificates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    create = ssl.create_default_context
    monkeypatch.setattr(
        ssl, "create_default_context", lambda *args, **kwargs: loaded.append(1) or create(*args, **kwargs)
    )

    async def play(task: Task, session: Any) -> float:
        async with session.client() as client:
            await client.chat.completions.create(model="any", messages=list(task.messages))
        return 1.0

    def play_blocking(task: Task, session: Any) -> float:
        with session.sync_client() as client:
            client.chat.completions.create(model="any", messages=list(task.messages))
        return 1.0

    async def run() -> list[Any]:
        async with Gateway() as gateway:
            agents = [FunctionAgent(one).entering(gateway.register) for one in (play, play_blocking)]
            return [await one.play(TASK, session(["what?"])) for one in 2 * agents]

    assert [result.reward.total for result in asyncio.run(run())] == [1.0, 1.0, 1.0, 1.0]
    assert len(loaded) <= 1


def test_a_function_that_names_no_policy_of_the_recipe_ends_the_run() -> None:
    async def play(task: Task, session: Any) -> float:
        session.of("judge")
        return 1.0

    async def run() -> Any:
        async with Gateway() as gateway, chat_session:
            return await FunctionAgent(play).entering(gateway.register).play(TASK, chat_session)

    chat_session = episode(main=[], customer=[])
    with pytest.raises(UsageError, match=r"Add \[policies.judge\]"):
        asyncio.run(run())


PROGRAM = """
import json, sys, openai
task = json.load(sys.stdin)
with openai.OpenAI() as agent, openai.OpenAI(**task["policies"]["customer"]) as customer:
    for client in (agent, customer):
        client.chat.completions.create(model="any", messages=task["messages"])
print(json.dumps({"reward": [0.5]}))
"""


def test_a_program_reaches_each_policy_with_a_client(tmp_path: Path) -> None:
    async def run() -> Any:
        async with Gateway() as gateway, chat_session:
            return await CommandAgent([sys.executable, "program.py"], enter=gateway.register, folder=tmp_path).play(
                TASK, chat_session
            )

    (tmp_path / "program.py").write_text(PROGRAM)
    chat_session = episode(main=["what?"], customer=["tea"])
    result = asyncio.run(run())
    assert result.reward == Reward(total=0.5, per_turn={0: 0.5})
    assert [turn.policy for turn in chat_session.episode_turns] == [None, "customer"]
