"""What clients say through a recording is on disk before they get the answer, and serves as demonstrations and for scoring."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from sparring.chat.demonstrations import tokenize_conversation
from sparring.engines.openai import OpenAIEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.errors import DataError, ServiceError
from sparring.gateway.app import create_app
from sparring.ledger import Ledger
from sparring.run_folders.stored import read_trajectories
from sparring.scorers import evaluate_score
from sparring.serving.access import Access
from sparring.serving.record import Recording, record
from sparring.types import Outcome, Trajectory
from sparring.web.listener import Listener
from tests.foreign import ExpertEndpoint, act, serving
from tests.gateway.builders import CHAT

ROOT = Path(__file__).parents[2]
GET: Any = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
LINKS = {"a": "b", "b": "c"}


async def chase(client: openai.AsyncOpenAI, question: str = "find a 2?", **options: Any) -> None:
    """Play one conversation as an agent would."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        answer = await client.chat.completions.create(model="any", messages=messages, tools=[GET], **options)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            key = json.loads(call.function.arguments)["key"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": LINKS[key]})


def recorded(folder: Path, play: Callable[[str], Awaitable[Any]], *, engine: Any = None) -> list[Trajectory]:
    engine = engine or ScriptedMessages(act, name="expert")

    async def run() -> None:
        async with Recording(folder, engine, model="expert") as recording:
            listener = Listener(create_app(recording), "127.0.0.1", 0)
            await listener.start()
            await play(listener.base_url)
            await listener.stop()
        await engine.close()

    asyncio.run(run())
    with Ledger(folder / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
    return read_trajectories(folder)


def client_of(base_url: str, api_key: str = "unused", **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=60, **options)


def test_conversations_are_separated_by_their_messages_and_episodes_by_name(tmp_path: Path) -> None:
    async def play(base_url: str) -> None:
        async with client_of(base_url) as client:
            await asyncio.gather(chase(client), chase(client, "find b 1?"))
        async with client_of(base_url.replace("/v1", "/s/tour/v1")) as client:
            await chase(client)
            await chase(client, "find b 1?")

    trajectories = recorded(tmp_path / "out", play)
    openings = {(one.task.id, one.attempt): (one.task.messages[0]["content"], len(one.turns)) for one in trajectories}
    assert list(openings) == [("conversation-1", 0), ("conversation-2", 0), ("tour", 0), ("tour", 1)]
    assert {openings["conversation-1", 0], openings["conversation-2", 0]} == {("find a 2?", 3), ("find b 1?", 2)}
    assert [openings["tour", 0], openings["tour", 1]] == [("find a 2?", 3), ("find b 1?", 2)]
    for trajectory in trajectories:
        assert trajectory.messages[-1]["content"] == "ans c"
        assert trajectory.task.fields["tools"] == [GET]
        assert trajectory.outcome is Outcome.FINISHED
        assert not any(turn.token_ids for turn in trajectory.turns)


def test_answers_that_are_sampled_again_are_separate_conversations(tmp_path: Path) -> None:
    async def play(base_url: str) -> None:
        async with client_of(base_url) as client:
            asked: Any = {"model": "any", "messages": [{"role": "user", "content": "find a 1?"}]}
            await client.chat.completions.create(**asked)
            await client.chat.completions.create(**asked)
            # A retry of an SDK is no new answer.
            await client.chat.completions.create(**asked, extra_headers={"x-stainless-retry-count": "1"})
            first = await client.responses.create(model="any", input="find b 0?")
            await client.responses.create(model="any", input="again", previous_response_id=first.id)

    trajectories = recorded(tmp_path / "out", play)
    assert [(one.task.id, one.attempt, len(one.turns)) for one in trajectories] == [
        ("conversation-1", 0, 1),
        ("conversation-1", 1, 1),
        ("conversation-2", 0, 2),
    ]
    assert [message["content"] for message in trajectories[2].messages] == ["find b 0?", "ans b", "again", "ans b"]


def test_before_another_endpoint_streams_and_failures_pass_and_only_what_was_asked_is_sent(tmp_path: Path) -> None:
    async def play(base_url: str) -> None:
        async with client_of(base_url, max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "find a 0?"}], stream=True, temperature=0.5
            )
            texts = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
            assert "".join(text or "" for text in texts) == "ans a"
            with pytest.raises(openai.InternalServerError, match="expert raised"):
                await client.chat.completions.create(model="any", messages=[{"role": "system", "content": "no user"}])

    with serving(ExpertEndpoint(tmp_path / "upstream").start) as upstream:
        (trajectory,) = recorded(
            tmp_path / "out", play, engine=OpenAIEngine(upstream.base_url, "expert", max_retries=0)
        )
    (turn,) = trajectory.turns
    assert turn.sampling.temperature == 0.5
    assert turn.sampling.top_p != turn.sampling.top_p, "the endpoint's own is not known"


def test_a_recording_demonstrates_and_is_scored_again(tmp_path: Path) -> None:
    async def play(base_url: str) -> None:
        async with client_of(base_url) as client:
            await chase(client)

    (trajectory,) = recorded(tmp_path / "out", play)
    ids, mask = tokenize_conversation(CHAT, trajectory.messages, trajectory.task.fields["tools"])
    text = CHAT.decode([token for token, is_sampled in zip(ids, mask, strict=True) if is_sampled])
    assert text.count("<tool_call>") == 2
    assert "ans c" in text
    assert "get(" in CHAT.decode(ids)

    def scorer(trajectory: Trajectory) -> float:
        return float(trajectory.messages[-1]["content"] == "ans c")

    assert asyncio.run(evaluate_score(scorer, trajectory)).value == 1.0


def test_what_the_endpoint_did_not_answer_takes_no_number_and_no_file(tmp_path: Path) -> None:
    async def play(base_url: str) -> None:
        broken: Any = {"model": "any", "messages": [{"role": "system", "content": "no user"}]}
        named = client_of(base_url.replace("/v1", "/s/tour/v1"), max_retries=0)
        async with client_of(base_url, max_retries=0) as client, named:
            for one in (client, named, client):
                with pytest.raises(openai.InternalServerError, match="expert raised"):
                    await one.chat.completions.create(**broken)
            await chase(client)
            await chase(named)

    trajectories = recorded(tmp_path / "out", play)
    assert [one.id for one in trajectories] == ["recorded/1/conversation-1/0.0", "recorded/2/tour/0.0"]
    files = sorted(path.name for path in (tmp_path / "out" / "trajectories").iterdir())
    assert files == ["recorded-1.jsonl", "recorded-2.jsonl"]
    with Ledger(tmp_path / "out" / "ledger.sqlite") as ledger:
        assert [rollout.id for rollout in ledger.rollouts()] == [one.id for one in trajectories]


def test_nothing_is_left_behind_where_the_address_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        access = Access(port=taken.getsockname()[1])
        with pytest.raises(ServiceError, match="cannot be bound"):
            record("http://127.0.0.1:1/v1", "m", tmp_path / "runs" / "out", access=access)
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_comes_before_the_folder_is_made_waits_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        recording = Recording(tmp_path / "out", ScriptedMessages(act, name="expert"), model="expert")
        listener = Listener(create_app(recording), "127.0.0.1", 0)
        await listener.start()
        async with client_of(listener.base_url) as client:
            playing = asyncio.ensure_future(chase(client))
            await asyncio.sleep(0.2)
            assert not playing.done()
            recording.open()
            await playing
        await listener.stop()
        await recording.close()

    asyncio.run(run())
    assert len(read_trajectories(tmp_path / "out")) == 1


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="needs a new folder"):
        Recording(tmp_path, ScriptedMessages(["a"], name="a"), model="a")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_command_keeps_every_answered_turn_also_when_it_is_killed(tmp_path: Path, number: int) -> None:
    with serving(ExpertEndpoint(tmp_path / "upstream").start) as upstream:
        command = [sys.executable, "-m", "sparring", "record", "--upstream", upstream.base_url, "--model", "expert"]
        command += ["--out", "taped", "--port", "0", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as process:
            assert process.stdout is not None
            lines: list[str] = []
            while "}" not in "".join(lines):
                lines.append(process.stdout.readline())
            ready = json.loads("".join(lines))

            async def play() -> None:
                async with client_of(ready["base_url"], ready["api_key"]) as client:
                    await chase(client, seed=7)

            try:
                asyncio.run(play())
                process.send_signal(number)
                assert process.wait(60) == (0 if number == signal.SIGINT else -signal.SIGKILL)
            finally:
                process.kill()
    (trajectory,) = read_trajectories(tmp_path / "taped")
    assert [message["role"] for message in trajectory.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    manifest = json.loads((tmp_path / "taped" / "manifest.json").read_text())
    assert manifest["upstream"] == f"openai:expert@{upstream.base_url}"
    assert manifest["created"] <= time.time()
