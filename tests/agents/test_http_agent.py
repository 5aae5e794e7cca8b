"""Agents behind a URL are given the episode, and answer with a reward or report it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sparring.agents.http import HttpAgent, MtrlJob, PushLimits
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import (
    AgentLost,
    ContextOverflow,
    DataError,
    InfrastructureError,
    PolicyTimeout,
    RewardError,
    ServiceError,
    UsageError,
)
from sparring.gateway import Gateway
from sparring.ledger import Ledger
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, RolloutLimits
from sparring.runtime.clock import Clock
from sparring.types import Outcome, Reward, Sampling, Task
from tests.agents.http_agents import (
    MESSAGES,
    QUICK,
    TASK,
    Behaviour,
    Payload,
    answering,
    ask,
    make_session,
    play,
    report,
    served,
)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ({"reward": 0.5}, Reward(total=0.5)),
        ({"reward": [0.5]}, Reward(total=0.5)),
        ({"rewards": [0.25, 0.5], "status_code": 200}, Reward(total=0.75, per_turn={0: 0.25, 1: 0.5})),
        (
            {"reward": 1, "components": {"a": 1}, "metrics": {"won": True, "guesses": ["crane"], "\ud83d": 3}},
            Reward(total=1.0, components={"a": 1.0}, metrics={"won": 1.0, "?": 3.0}),
        ),
    ],
)
def test_the_reward_may_stand_in_the_answer(answer: Any, reward: Reward) -> None:
    result = play(answering(answer, turns=2))
    assert (result.outcome, result.reward) == (Outcome.FINISHED, reward)


def test_an_agent_gets_the_task_the_way_to_the_policy_and_how_to_sample_in_every_spelling() -> None:
    seen: list[Payload] = []

    async def behaviour(payload: Payload) -> Response:
        seen.append(payload)
        await ask(payload)
        return JSONResponse({"reward": 1.0})

    episode = make_session()
    play(behaviour, episode=episode, job=MtrlJob(name="my-run", region="eu-west-1"))
    (payload,) = seen
    key, endpoint = payload["api_key"], payload["metadata"]["endpoint"]
    arn = "arn:aws:sagemaker:eu-west-1:000000000000:job/AgentRFT/my-run"
    assert payload["prompt"] == "find b"
    assert payload["instance"] == {"id": "t1", "prompt": "find b", **TASK.fields}
    assert payload["truth"] == "f"
    assert payload["metadata"] == {
        "jobArn": arn,
        "job_arn": arn,
        "rolloutId": key,
        "trajectoryId": key,
        "trajectory_id": key,
        "endpoint": endpoint,
        "region": "eu-west-1",
    }
    assert payload["inferenceParams"] == {"temperature": 0.5, "topP": 0.9, "maxTokens": 50}
    assert payload["inference_params"] == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 50}
    assert payload["_rollout"] == {
        "base_url": f"{endpoint}/s/{key}/v1",
        "api_key": key,
        "model_id": "default",
        "sampling_params": payload["inference_params"],
    }
    assert (payload["model_endpoint"], payload["base_url"]) == (endpoint, f"{endpoint}/v1")
    assert episode.turns[0].sampling == episode.sampling


def test_a_prompt_that_is_no_text_is_packed_into_one_with_its_row() -> None:
    seen: list[Payload] = []

    async def behaviour(payload: Payload) -> Response:
        seen.append(payload)
        await ask(payload)
        return JSONResponse({"reward": 1.0})

    messages = ({"role": "system", "content": "Be short."}, *MESSAGES)
    play(behaviour, task=Task(id="t2", messages=messages, fields={"reward_spec": {"ground_truth": "f"}}))
    packed = {"id": "t2", "prompt": list(messages), "reward_spec": {"ground_truth": "f"}}
    assert json.loads(seen[0]["prompt"]) == seen[0]["instance"] == packed
    assert seen[0]["messages"] == list(messages)


def test_an_agent_elsewhere_is_sent_the_address_under_which_it_reaches_the_gateway() -> None:
    seen: list[Payload] = []

    async def behaviour(payload: Payload) -> Response:
        seen.append(payload)
        return JSONResponse({"status": "error"})

    with pytest.raises(InfrastructureError):
        play(behaviour, endpoint="http://host.docker.internal:8000/")
    assert seen[0]["metadata"]["endpoint"] == "http://host.docker.internal:8000"
    assert seen[0]["base_url"] == "http://host.docker.internal:8000/v1"


@pytest.mark.parametrize(("answer", "status"), [({}, 202), ({"status": "processing"}, 200), ("begun", 200)])
def test_an_agent_that_has_only_begun_is_waited_for(answer: Any, status: int) -> None:
    background: list[asyncio.Task[None]] = []

    async def behaviour(payload: Payload) -> Response:
        async def go_on() -> None:
            await ask(payload)
            await report(payload, "complete", status="ready")
            await report(payload, "reward", reward=0.5, metrics={"steps": 1})

        background.append(asyncio.create_task(go_on()))
        return JSONResponse(answer, status_code=status)

    assert play(behaviour).reward == Reward(total=0.5, metrics={"steps": 1.0})


def test_what_was_reported_counts_and_the_answer_adds_its_metrics() -> None:
    async def behaviour(payload: Payload) -> Response:
        await ask(payload)
        await report(payload, "complete", status="ready")
        await report(payload, "reward", reward=0.5, metrics={"steps": 1})
        return JSONResponse({"reward": 0.75, "metrics": {"steps": 9, "won": True}})

    assert play(behaviour).reward == Reward(total=0.5, metrics={"won": 1.0, "steps": 1.0})


def test_an_agent_that_rewards_and_answers_need_not_complete() -> None:
    async def behaviour(payload: Payload) -> Response:
        await ask(payload)
        await report(payload, "reward", reward=0.5)
        return JSONResponse({})

    assert play(behaviour).reward == Reward(total=0.5)


def test_a_reported_reward_counts_though_the_agent_hangs() -> None:
    async def behaviour(payload: Payload) -> Response:
        await ask(payload)
        await report(payload, "complete", status="ready")
        await report(payload, "reward", reward=0.5)
        await asyncio.sleep(60)
        raise AssertionError("unreachable")

    # It hangs up when the grace for the answer is over, well before the deadline.
    assert play(behaviour, limits=replace(QUICK, timeout_seconds=30.0)).reward == Reward(total=0.5)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"status": "error", "error": "the shop was down", "reward": 0.0}, "the shop was down"),
        ({"errorType": "ValidationError", "errorMessage": "no prompt"}, "no prompt"),
        ({"status_code": 500, "stop_reason": "boom"}, "boom"),
        ({"status": "error", "error": "half a \ud83d"}, r"half a \?"),
    ],
)
def test_an_agent_that_reports_failure_gives_no_reward_and_after_a_turn_the_policy_is_responsible(
    answer: Any, reason: str
) -> None:
    failed = play(answering(answer))
    assert (failed.outcome, failed.reward) == (Outcome.POLICY_ERROR, None)
    assert re.search(reason, str(failed.error))
    with pytest.raises(InfrastructureError, match=reason):
        play(answering(answer, turns=0))


def test_a_failure_may_be_reported_too() -> None:
    async def behaviour(payload: Payload) -> Response:
        await ask(payload)
        await report(payload, "complete", status="failed", error="the shop was down")
        return JSONResponse({"reward": 0.0})

    failed = play(behaviour)
    assert (failed.outcome, failed.reward) == (Outcome.POLICY_ERROR, None)
    assert failed.error == "The agent gave up the episode: the shop was down."


@pytest.mark.parametrize("status", [400, 422, 500])
def test_an_agent_whose_code_fails_after_a_turn_failed_because_of_the_policy(status: int) -> None:
    pushed: list[str] = []
    failed = play(failing_at_first(1, status, pushed, turns=1))
    assert (failed.outcome, failed.reward, len(pushed)) == (Outcome.POLICY_ERROR, None, 1)
    assert f"answered {status}: busy" in str(failed.error)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_outage_after_a_turn_is_infrastructure(status: int) -> None:
    pushed: list[str] = []
    with pytest.raises(InfrastructureError, match=f"answered {status}: busy"):
        play(failing_at_first(1, status, pushed, turns=1))
    with pytest.raises(InfrastructureError, match="it reported an outage: no disk"):
        play(answering({"status_code": status, "error": "no disk"}))
    assert len(pushed) == 1


def test_an_outage_of_the_engine_that_makes_the_agent_fail_is_infrastructure() -> None:
    async def behaviour(payload: Payload) -> Response:
        await ask(payload)
        with pytest.raises(httpx.HTTPStatusError):
            await ask(payload)
        return PlainTextResponse("it raised", status_code=500)

    with pytest.raises(InfrastructureError, match="answered 500"):
        play(behaviour, episode=make_session("one", InfrastructureError("no engine")))


@pytest.mark.parametrize("reward", [0.0, None])
def test_a_policy_cannot_void_an_episode_by_what_makes_its_agent_fail(reward: float | None) -> None:
    """The recipe's reward scores such episodes. Without one they are lost and not tried again, and nothing ends the run."""

    async def run() -> None:
        async def behaviour(payload: Payload) -> Response:
            raise ValueError(await ask(payload))

        with Ledger() as ledger:
            async with Gateway() as gateway, served(behaviour) as url, HttpAgent(url, gateway=gateway) as agent:
                engine = ScriptedEngine(lambda _request: "crash", encode=ByteTokenizer().encode)
                collector = Collector(
                    agent=EpisodeAgent(agent.play),
                    policy=MainPolicy(engine, TemplateChat(ByteTokenizer())),
                    ledger=ledger,
                    seed=0,
                    grading=Grading(reward=None if reward is None else lambda _: reward),
                    limits=RolloutLimits(timeout_seconds=10, max_concurrency=1, max_retries=3),
                )
                plan = GroupPlan(task=TASK, position=0, group_size=2, sampling=Sampling(max_tokens=20))
                group = await collector.play_group(plan)
            counts = {name: count for name, count in ledger.counts().items() if name.startswith("discarded/")}
        if reward is None:
            assert (group.num_lost, group.num_unrewarded) == (2, 2)
            assert counts == {"discarded/reward_error": 2}
        else:
            assert group.rewards == [0.0, 0.0]
            assert {one.outcome for one in group.trajectories} == {Outcome.POLICY_ERROR}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [(ContextOverflow("full"), Outcome.MAX_TOKENS), (PolicyTimeout("late"), Outcome.POLICY_TIMEOUT)],
)
def test_an_agent_that_fails_over_the_policys_limits_met_them(limit: Exception, outcome: Outcome) -> None:
    result = play(answering({"reward": 1.0}), episode=make_session(limit))
    assert (result.outcome, result.reward, result.error) == (outcome, None, str(limit))


@pytest.mark.parametrize("reward", ["much", [1.0, 2.0, 3.0], True, float("nan"), 10**400])
def test_a_reward_that_is_none_is_an_error(reward: Any) -> None:
    async def behaviour(payload: Payload) -> Response:
        await ask(payload)
        return Response(json.dumps({"reward": reward}), media_type="application/json")

    with pytest.raises(RewardError, match="The reward that the agent reports"):
        play(behaviour)


def test_a_reward_that_never_comes_is_an_error_that_names_what_was_refused() -> None:
    async def behaviour(payload: Payload) -> Response:
        await ask(payload)
        await report(payload, "complete", status="ready")
        assert (await report(payload, "reward", reward=[1.0, 2.0])).status_code == 400
        return PlainTextResponse("done")

    with pytest.raises(RewardError, match=r"not rewarded within 2 s.*2 numbers for 1 turns"):
        play(behaviour, limits=replace(QUICK, timeout_seconds=2.0))


@pytest.mark.parametrize("turns", [0, 1])
def test_an_agent_that_does_not_answer_in_time_is_cut_off_and_an_outage_only_before_a_turn(turns: int) -> None:
    reported: list[int] = []

    async def behaviour(payload: Payload) -> Response:
        for _ in range(turns):
            await ask(payload)
        await asyncio.sleep(3.0)
        reported.append((await report(payload, "reward", reward=1.0)).status_code)
        return JSONResponse({})

    late = "did not answer within 2 s"
    if turns:
        played = play(behaviour, limits=replace(QUICK, timeout_seconds=2.0))
        assert (played.outcome, played.reward) == (Outcome.POLICY_TIMEOUT, None)
        assert re.search(late, played.error or "")
    else:
        with pytest.raises(InfrastructureError, match=late):
            play(behaviour, limits=replace(QUICK, timeout_seconds=2.0))
    # The episode is over: its key opens nothing, or the gateway is gone.
    assert reported in ([], [401])


def test_a_reward_without_a_turn_is_not_the_policys() -> None:
    with pytest.raises(InfrastructureError, match="requested no turn from the policy"):
        play(answering({"reward": 1.0}, turns=0))


def failing_at_first(num_failures: int, status: int, pushed: list[str], *, turns: int = 0) -> Behaviour:
    async def behaviour(payload: Payload) -> Response:
        pushed.append(payload["api_key"])
        for _ in range(turns):
            await ask(payload)
        if len(pushed) <= num_failures:
            return PlainTextResponse("busy", status_code=status)
        await ask(payload)
        return JSONResponse({"reward": 1.0})

    return behaviour


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_agent_that_cannot_take_the_episode_is_asked_again_each_time_later(status: int) -> None:
    pushed: list[str] = []
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    longest = type("Longest", (random.Random,), {"uniform": lambda _self, _low, high: high})()
    result = play(
        failing_at_first(3, status, pushed), clock=Clock(sleep=sleep), rng=longest, limits=replace(QUICK, tps_limit=1e9)
    )
    assert result.reward == Reward(total=1.0)
    assert paused == [0.5, 1.0, 2.0]
    assert len(set(pushed)) == 4, "each attempt has a key of its own"


def test_a_connection_that_breaks_is_tried_again() -> None:
    async def run() -> None:
        pushed = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal pushed
            head = await reader.readuntil(b"\r\n\r\n")
            is_push = head.startswith(b"POST")
            pushed += is_push
            if not is_push or pushed > 1:
                body = b'{"status": "error", "error": "second"}'
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rollout"
        async with server, Gateway() as gateway, make_session() as episode, HttpAgent(url, gateway=gateway) as agent:
            with pytest.raises(InfrastructureError, match="second"):
                await agent.play(TASK, episode)
        assert pushed == 2

    asyncio.run(run())


@pytest.mark.parametrize("turns", [0, 1])
def test_an_agent_that_is_gone_after_a_turn_may_have_been_ended_by_the_policy(turns: int) -> None:
    async def run() -> InfrastructureError:
        async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            if head.startswith("post"):
                size = int(head.partition("content-length:")[2].split()[0])
                payload = json.loads(await reader.readexactly(size))
                for _ in range(turns):
                    await ask(payload)
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rollout"
        limits = replace(QUICK, max_retries=0)
        async with (
            server,
            Gateway() as gateway,
            make_session() as episode,
            HttpAgent(url, gateway=gateway, limits=limits) as agent,
        ):
            with pytest.raises(InfrastructureError) as raised:
                await agent.play(TASK, episode)
        return raised.value

    assert isinstance(asyncio.run(run()), AgentLost) == bool(turns)


def test_retries_are_bounded() -> None:
    pushed: list[str] = []
    with pytest.raises(InfrastructureError, match="failed: it answered 503: busy"):
        play(
            failing_at_first(9, 503, pushed),
            limits=replace(QUICK, max_retries=2),
            clock=Clock(sleep=lambda _: asyncio.sleep(0)),
        )
    assert len(pushed) == 3


def test_an_episode_that_was_refused_is_not_pushed_again() -> None:
    pushed: list[str] = []
    with pytest.raises(InfrastructureError, match="answered 404"):
        play(failing_at_first(1, 404, pushed))
    assert len(pushed) == 1


def test_an_agent_that_is_not_there_is_reported_before_the_first_episode() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            url = f"http://127.0.0.1:{bound.getsockname()[1]}/rollout"
        async with Gateway() as gateway, make_session() as episode, HttpAgent(url, gateway=gateway) as agent:
            with pytest.raises(ServiceError, match=r"cannot be reached: GET http://127.0.0.1:\d+/health failed"):
                await agent.play(TASK, episode)
        async with Gateway() as gateway, make_session() as episode, served(answering({}), health=503) as url:
            agent = HttpAgent(url, gateway=gateway)
            with pytest.raises(ServiceError, match=r"is not ready: GET .* answered 503"):
                await agent.play(TASK, episode)
            await agent.aclose()

    asyncio.run(run())


def test_health_is_asked_once_and_agents_without_that_route_are_fine() -> None:
    async def run() -> None:
        asked: list[str] = []

        async def note(request: httpx.Request) -> None:
            asked.append(request.url.path)

        async with Gateway() as gateway, served(answering({"reward": 1.0}), health=404) as url:
            agent = HttpAgent(url, gateway=gateway, limits=PushLimits(tps_limit=1000))
            agent._client.event_hooks = {"request": [note]}
            for _ in range(2):
                async with make_session() as episode:
                    await agent.play(TASK, episode)
            await agent.aclose()
        assert asked == ["/health", "/rollout", "/rollout"]

    asyncio.run(run())


def test_starts_are_paced_and_concurrency_is_bounded() -> None:
    async def run() -> None:
        now, playing, most = 0.0, 0, 0
        paused: list[float] = []

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            paused.append(seconds)

        async def behaviour(payload: Payload) -> Response:
            nonlocal playing, most
            playing += 1
            most = max(most, playing)
            await ask(payload)
            await asyncio.sleep(0.05)
            playing -= 1
            return JSONResponse({"reward": 1.0})

        async with Gateway() as gateway, served(behaviour) as url:
            limits, clock = PushLimits(tps_limit=2.0, max_concurrency=2), Clock(monotonic=lambda: now, sleep=sleep)
            async with HttpAgent(url, gateway=gateway, limits=limits, clock=clock) as agent:

                async def episode() -> None:
                    async with make_session() as session:
                        await agent.play(TASK, session)

                await asyncio.gather(*(episode() for _ in range(5)))
        assert paused == [0.5] * 4
        assert most == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HttpAgent("localhost:9000", gateway=Gateway()), "give the whole URL"),
        (lambda: MtrlJob(name="my run"), "cannot be part of an ARN"),
        (lambda: PushLimits(tps_limit=0), "give a number above 0"),
        (lambda: PushLimits(max_concurrency=0), "give a number above 0"),
        (lambda: PushLimits(max_retries=-1), "0 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_task_that_is_no_json_is_named() -> None:
    with pytest.raises(DataError, match="Task t3 cannot be sent"):
        play(answering({}), task=Task(id="t3", messages=(), fields={"when": object()}))


def test_the_collector_plays_it_like_any_agent_and_retries_its_failures() -> None:
    async def run() -> None:
        pushed: list[Payload] = []

        async def behaviour(payload: Payload) -> Response:
            pushed.append(payload)
            await ask(payload)
            if len(pushed) == 1:
                return PlainTextResponse("the shop was down", status_code=503)
            return JSONResponse({"reward": len(pushed) / 4})

        async def no_pause(_seconds: float) -> None:
            pass

        with Ledger() as ledger:
            async with Gateway() as gateway, served(behaviour) as url, HttpAgent(url, gateway=gateway) as agent:
                engine = ScriptedEngine(lambda _request: "one", encode=ByteTokenizer().encode)
                collector = Collector(
                    agent=EpisodeAgent(agent.play),
                    policy=MainPolicy(engine, TemplateChat(ByteTokenizer())),
                    ledger=ledger,
                    seed=0,
                    grading=Grading(reward=lambda _: 9.0),
                    clock=Clock(sleep=no_pause),
                    limits=RolloutLimits(timeout_seconds=10, max_concurrency=1, max_retries=1),
                )
                plan = GroupPlan(task=TASK, position=0, group_size=2, sampling=Sampling(max_tokens=20))
                group = await collector.play_group(plan)
        assert group.rewards == [0.5, 0.75]
        assert [len(trajectory.turns) for trajectory in group.trajectories] == [1, 1]

    asyncio.run(run())
