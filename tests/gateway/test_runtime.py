"""An agent reports its episode over MTRL's routes or the plain ones: each step once, in AWS's or OpenAI's words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import InfrastructureError
from sparring.gateway import EpisodeEndpoint, Gateway, ModelServer, Version, Versions
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Reward, Sampling

JOB = "arn:aws:sagemaker:us-east-1:000000000000:job/AgentRFT/test"
ASK: Any = {"messages": [{"role": "user", "content": "find b"}]}


def session(*script: Any, **options: Any) -> Session:
    engine = ScriptedEngine(script or ["one", "two", "three"], encode=ByteTokenizer().encode, **options)
    return Session(
        EpisodeIdentity("episode"), engine=engine, chat=TemplateChat(ByteTokenizer()), sampling=Sampling(max_tokens=50)
    )


class Agent:
    """What an MTRL agent sends, request by request."""

    def __init__(self, client: httpx.AsyncClient, entry: EpisodeEndpoint) -> None:
        self.client, self.entry = client, entry
        self.headers = {"X-Amzn-SageMaker-Job-Arn": JOB, "X-Amzn-SageMaker-Trajectory-Id": entry.api_key}

    async def sample(self, path: str = "/sample", **fields: Any) -> httpx.Response:
        return await self.client.post(path, json={**ASK, **fields}, headers=self.headers)

    async def complete(self, **fields: Any) -> httpx.Response:
        body = {"JobArn": JOB, "TrajectoryId": self.entry.api_key, **fields}
        return await self.client.post("/complete-rollout", json=body)

    async def reward(self, *rewards: float, **fields: Any) -> httpx.Response:
        body = {"JobArn": JOB, "TrajectoryId": self.entry.api_key, "Rewards": rewards, **fields}
        return await self.client.post("/update-reward", json=body)


def played(play: Callable[[Agent], Awaitable[Any]], episode: Session | None = None) -> Any:
    async def run() -> Any:
        async with Gateway() as gateway, episode or session() as chat_session:
            entry = gateway.register(chat_session)
            async with httpx.AsyncClient(base_url=entry.endpoint, timeout=10) as client:
                return await play(Agent(client, entry))

    return asyncio.run(run())


def refused(response: httpx.Response, status: int, kind: str, message: str) -> None:
    """An error as AWS spells it."""
    assert (response.status_code, response.headers["x-amzn-errortype"]) == (status, kind), response.text
    error = response.json()
    assert error["__type"] == kind
    assert error["message"] == error["Message"]
    assert message in error["message"]


@pytest.mark.parametrize("path", ["/sample", "/v1/chat/completions", "/chat/completions"])
def test_turns_are_played_for_the_trajectory_that_the_header_names(path: str) -> None:
    async def play(agent: Agent) -> None:
        # Whatever token the agent signed for AWS does not matter.
        agent.headers["Authorization"] = "Bearer sagemaker-api-key-abc"
        answers = [(await agent.sample(path, model="default")).json() for _ in range(2)]
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["one", "two"]

    episode = session()
    played(play, episode)
    assert len(episode.turns) == 2


def test_a_sample_may_also_show_its_key_as_bearer_or_in_the_path() -> None:
    async def play(agent: Agent) -> None:
        key = agent.entry.api_key
        shown = await agent.client.post("/sample", json=ASK, headers={"Authorization": f"Bearer {key}"})
        in_path = await agent.client.post(f"/s/{key}/sample", json=ASK)
        assert (shown.status_code, in_path.status_code) == (200, 200)

    played(play)


@pytest.mark.parametrize(("path", "fields"), [("/sample-with-response-stream", {}), ("/sample", {"stream": True})])
def test_a_sample_streams_as_chat_completions_do(path: str, fields: dict[str, Any]) -> None:
    async def play(agent: Agent) -> None:
        response = await agent.sample(path, **fields)
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.text.strip().split("\n\n")
        assert events[-1] == "data: [DONE]"
        deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events[:-1]]
        assert "".join(delta.get("content", "") for delta in deltas) == "one"

    played(play)


@pytest.mark.parametrize(
    ("rewards", "reward"),
    [
        ([0.5], Reward(total=0.5)),
        ([0.25, 1], Reward(total=1.25, per_turn={0: 0.25, 1: 1.0})),
    ],
)
def test_completed_and_rewarded_in_either_order(rewards: list[float], reward: Reward) -> None:
    async def play(agent: Agent, *, reward_first: bool) -> Reward:
        for _ in range(2):
            await agent.sample()
        waiting = asyncio.create_task(agent.entry.report.wait())
        steps = [agent.complete(Status="ready"), agent.reward(*rewards)]
        for step in reversed(steps) if reward_first else steps:
            assert not waiting.done()
            response = await step
            assert (response.status_code, response.json()) == (200, {})
        return await waiting

    for reward_first in (False, True):
        assert played(lambda agent, first=reward_first: play(agent, reward_first=first)) == reward


def test_components_and_metrics_arrive_with_the_reward() -> None:
    async def play(agent: Agent) -> Reward:
        await agent.sample()
        await agent.complete()
        await agent.reward(0.75, Components={"right": 1, "late": -0.25}, Metrics={"num_guesses": 3})
        return await agent.entry.report.wait()

    expected = Reward(total=0.75, components={"right": 1.0, "late": -0.25}, metrics={"num_guesses": 3.0})
    assert played(play) == expected


@pytest.mark.parametrize("seal", ["complete", "reward"])
def test_no_turn_follows_a_report(seal: str) -> None:
    async def play(agent: Agent) -> None:
        await agent.sample()
        await (agent.complete() if seal == "complete" else agent.reward(1.0))
        refused(await agent.sample(), 409, "ConflictException", "not in valid status for a turn")
        async with openai.AsyncOpenAI(base_url=agent.entry.base_url, api_key=agent.entry.api_key) as client:
            with pytest.raises(openai.ConflictError, match="not in valid status"):
                await client.chat.completions.create(model="default", messages=ASK["messages"])

    episode = session()
    played(play, episode)
    assert len(episode.turns) == 1


def test_a_turn_on_its_way_ends_with_the_episode() -> None:
    async def run() -> None:
        sampling, freed = asyncio.Event(), asyncio.Event()

        async def sleep(_seconds: float) -> None:
            sampling.set()
            try:
                await asyncio.Event().wait()
            finally:
                freed.set()

        async def play(agent: Agent) -> None:
            asking = asyncio.create_task(agent.sample())
            await sampling.wait()
            await agent.complete()
            refused(await asking, 409, "ConflictException", "not in valid status")
            await asyncio.wait_for(freed.wait(), timeout=5)

        async with Gateway() as gateway, session("never", sleep=sleep) as episode:
            entry = gateway.register(episode)
            async with httpx.AsyncClient(base_url=entry.endpoint, timeout=10) as client:
                await play(Agent(client, entry))
        assert episode.turns == ()

    asyncio.run(run())


def test_a_second_report_is_a_conflict_that_the_sdk_takes_for_the_first() -> None:
    async def play(agent: Agent) -> None:
        await agent.sample()
        await agent.complete()
        refused(await agent.complete(), 409, "ConflictException", "not in valid status to be completed")
        await agent.reward(1.0)
        refused(await agent.reward(1.0), 409, "ConflictException", "not in valid status for a reward")

    played(play)


def test_a_report_with_a_client_token_may_be_sent_again_but_not_changed() -> None:
    async def play(agent: Agent) -> Reward:
        await agent.sample()
        for _ in range(2):
            assert (await agent.complete(Status="ready", ClientToken="a")).status_code == 200
        refused(await agent.complete(Status="failed", ClientToken="a"), 409, "ConflictException", "a separate token")
        refused(await agent.complete(ClientToken="b"), 409, "ConflictException", "not in valid status")
        for _ in range(2):
            assert (await agent.reward(1.0, ClientToken="a")).status_code == 200
        refused(await agent.reward(2.0, ClientToken="a"), 409, "ConflictException", "a different reward")
        return await agent.entry.report.wait()

    assert played(play).total == 1.0


def test_a_failed_episode_has_no_reward() -> None:
    async def play(agent: Agent) -> None:
        await agent.sample()
        await agent.complete(Status="failed")
        refused(await agent.reward(0.0), 409, "ConflictException", "it was completed as failed")
        with pytest.raises(InfrastructureError, match="gave up the episode"):
            await agent.entry.report.wait()

    played(play)


def test_a_trajectory_that_is_not_there_is_not_found() -> None:
    async def run() -> None:
        async with Gateway() as gateway:
            async with session() as episode:
                entry = gateway.register(episode)
            async with httpx.AsyncClient(base_url=entry.endpoint) as client:
                for response in [
                    # Ended, never there, none named.
                    await Agent(client, entry).complete(),
                    await Agent(client, entry).reward(1.0, TrajectoryId="sk-guess"),
                    await Agent(client, entry).sample(),
                    await client.post("/sample", json=ASK),
                ]:
                    refused(response, 404, "ResourceNotFoundException", "does not belong to a running episode")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/complete-rollout", {"Status": "done"}, "Status: "),
        ("/complete-rollout", {"JobArn": ""}, "JobArn: "),
        ("/complete-rollout", {"JobArn": "x" * 257}, "JobArn: "),
        ("/complete-rollout", {"TrajectoryId": ""}, "TrajectoryId: "),
        ("/complete-rollout", {"Verdict": "good"}, "Verdict: "),
        ("/update-reward", {"Rewards": []}, "Rewards: "),
        ("/update-reward", {"Rewards": 1.0}, "Rewards: "),
        ("/update-reward", {"Rewards": ["1.0"]}, "Rewards.0: "),
        ("/update-reward", {"Rewards": [True]}, "Rewards.0: "),
        ("/update-reward", {"Rewards": [1.0, 2.0, 3.0]}, "3 numbers for 1 turns"),
        ("/update-reward", {"Rewards": [1.0], "Metrics": {"guess": "crane"}}, "Metrics.guess: "),
    ],
)
def test_a_report_that_makes_no_sense_names_its_field_and_can_be_corrected(
    path: str, fields: dict[str, Any], message: str
) -> None:
    async def play(agent: Agent) -> Reward:
        await agent.sample()
        body: Any = {"JobArn": JOB, "TrajectoryId": agent.entry.api_key}
        refused(await agent.client.post(path, json={**body, **fields}), 400, "ValidationException", message)
        await agent.complete()
        await agent.reward(1.0)
        return await agent.entry.report.wait()

    assert played(play).total == 1.0


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1]",
        b'{"Rewards": [NaN]}',
        b'{"Rewards": [1e999]}',
        b'{"Rewards": [1' + b"0" * 400 + b"]}",
        b'{"Rewards": [1], "Metrics": {"\\ud800": 1}}',
        b'{"Rewards": [1], "TrajectoryId": "\\ud800"}',
    ],
)
def test_a_body_that_is_no_report_is_refused(body: bytes) -> None:
    async def play(agent: Agent) -> None:
        named = f'{{"JobArn": "{JOB}", "TrajectoryId": "{agent.entry.api_key}", "Rewards": '.encode()
        response = await agent.client.post(
            "/update-reward",
            content=body.replace(b'{"Rewards": ', named),
            headers={"content-type": "application/json"},
        )
        assert (response.status_code, response.headers["x-amzn-errortype"]) == (400, "ValidationException")

    played(play)


def test_a_list_of_many_numbers_must_fit_the_turns_and_the_refusal_is_kept() -> None:
    async def play(agent: Agent) -> None:
        for _ in range(3):
            await agent.sample()
        assert agent.entry.report.refusal is None
        await agent.reward(1.0, 2.0)
        assert "2 numbers for 3 turns" in str(agent.entry.report.refusal)
        assert agent.entry.report.reward is None

    played(play)


def test_the_job_arn_may_stand_in_its_header() -> None:
    async def play(agent: Agent) -> None:
        body = {"TrajectoryId": agent.entry.api_key}
        refused(await agent.client.post("/complete-rollout", json=body), 400, "ValidationException", "JobArn")
        response = await agent.client.post("/complete-rollout", json=body, headers=agent.headers)
        assert response.status_code == 200
        agent.headers["X-Amzn-SageMaker-Job-Arn"] = "x" * 257
        refused(await agent.sample(), 400, "ValidationException", "257 characters")

    played(play)


def test_a_sample_is_refused_in_the_words_of_aws() -> None:
    async def play(agent: Agent) -> None:
        refused(await agent.sample(top_k=5), 400, "ValidationException", "top_k")
        refused(await agent.sample(), 503, "InternalServiceError", "gone")

    played(play, session(InfrastructureError("gone")))


@pytest.mark.parametrize("in_path", [False, True])
def test_agents_that_are_not_of_mtrl_report_in_plain_words(in_path: bool) -> None:
    async def play(agent: Agent) -> Reward:
        root = f"/s/{agent.entry.api_key}" if in_path else ""
        headers = {} if in_path else {"Authorization": f"Bearer {agent.entry.api_key}"}

        async def post(path: str, **body: Any) -> tuple[int, Any]:
            response = await agent.client.post(f"{root}/v1/{path}", json=body, headers=headers)
            return response.status_code, response.json()

        await agent.sample()
        await agent.sample()
        status, wrong = await post("episode/reward", reward=[1.0, "2"])
        assert (status, wrong["error"]["param"]) == (400, "reward.1")
        assert (await post("episode/reward", reward=[0.5, 1], components={"a": 1.5}, metrics={"b": 2})) == (200, {})
        assert (await post("episode/reward", reward=3.0))[0] == 409
        status, wrong = await post("episode/complete")
        assert (status, wrong["error"]["param"]) == (400, "status")
        assert (await post("episode/complete", status="ready", client_token="a")) == (200, {})
        assert (await post("episode/complete", status="ready", client_token="a")) == (200, {})
        assert (await post("episode/complete", status="ready"))[0] == 409
        return await agent.entry.report.wait()

    expected = Reward(total=1.5, per_turn={0: 0.5, 1: 1.0}, components={"a": 1.5}, metrics={"b": 2.0})
    assert played(play) == expected


def test_a_plain_failure_states_why_and_a_wrong_key_opens_nothing() -> None:
    async def play(agent: Agent) -> None:
        async def post(key: str, **body: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            return await agent.client.post("/v1/episode/complete", json=body, headers=headers)

        response = await post("sk-guess", status="failed")
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "x-amzn-errortype" not in response.headers
        await post(agent.entry.api_key, status="failed", error="the shop was down")
        with pytest.raises(InfrastructureError, match="the shop was down"):
            await agent.entry.report.wait()

    played(play)


def test_a_served_model_has_no_episodes_to_report_on() -> None:
    async def run() -> None:
        engine = ScriptedEngine(["a"], encode=ByteTokenizer().encode)
        chat = TemplateChat(ByteTokenizer())
        server = ModelServer(versions=Versions([Version("m", engine)]), chat=chat, sampling=Sampling())
        async with server, httpx.AsyncClient(base_url=server.base_url.removesuffix("/v1")) as client:
            body = {"JobArn": JOB, "TrajectoryId": "t"}
            refused(await client.post("/complete-rollout", json=body), 404, "ResourceNotFoundException", "no episodes")
            # The SDK's client asks for the model "default"; a served one has a name of its own.
            assert (await client.post("/sample", json={**ASK, "model": "m"})).status_code == 200

    asyncio.run(run())
