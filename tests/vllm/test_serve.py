"""A trained adapter behind the OpenAI endpoint, sampled by two vLLM servers that `sparring serve` starts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import openai
import pytest

from sparring.assembly import load_policy
from sparring.engines.servers.teacher import ServerTeacher
from sparring.engines.torch_engine import TorchEngine
from sparring.evaluation.policies import checkpoint_of, named_checkpoint
from sparring.ledger import Ledger
from sparring.models.policy import Policy
from sparring.run_folders import RunFolder
from sparring.runtime.plugins import load_object
from sparring.training import checkpoints
from sparring.training.distillation import LogprobSource
from sparring.types import Turn, Weights
from tests.vllm.conftest import ENVIRONMENT
from tests.vllm.processes import find_servers, kill, read_address
from tests.vllm.test_runs import ROOT, SETTINGS, steps_of
from tests.vllm.test_tokens import TOLERANCE

RECIPE = ROOT / "recipes" / "pointer_chase"
CHANGES = (
    "warm_start.num_demonstrations=1280",
    "warm_start.steps=60",
    "schedule.max_steps=2",
    "schedule.save_every=1",
    "evaluation.allow_zero_baseline=true",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained an adapter for two steps with the engine in process, and whose prompts list the tool."""
    folder = tmp_path_factory.mktemp("served")
    recipe = Path(shutil.copytree(RECIPE, folder / "recipe"))
    code = (recipe / "environment.py").read_text("utf-8")
    (recipe / "environment.py").write_text(code.replace('    describe_tools = "prompt"\n', ""), "utf-8")
    command = ["train", str(recipe), "--no-check", "--no-supervise", *SETTINGS, *CHANGES]
    sparring([*command, f"run.runs_dir={folder / 'runs'}", "run.name=chase"])
    return folder / "runs" / "chase"


def sparring(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "sparring", *command], cwd=ROOT, env=environment, check=True)


@dataclass(frozen=True, kw_only=True)
class Served:
    base_url: str
    log: Path

    @property
    def base(self) -> Path:
        """The folder of the base model."""
        found = re.search(r"with (\S+/base)", self.log.read_text("utf-8"))
        assert found is not None
        return Path(found[1])


@pytest.fixture(scope="module")
def served(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The run behind `sparring serve` with two local vLLM servers."""
    options = ["--engine", "vllm", "--num-servers", "2", "--max-tokens", "400"]
    command = [sys.executable, "-m", "sparring", "serve", str(run), *options]
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SPARRING_VLLM": str(ENVIRONMENT),
        "SPARRING_ADMIN_KEY": "admin",
        "SPARRING_API_KEY": "any",
    }
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, "--port", "0", "--json"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            printed = ""
            while not printed.endswith("}\n"):
                line = process.stdout.readline()
                assert line, log.read_text("utf-8")
                printed += line
            served = Served(base_url=json.loads(printed)["base_url"], log=log)
            yield served
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert find_servers(served.base) == []
        finally:
            process.kill()


def check_forms(client: openai.OpenAI, question: Any, tools: list[Any]) -> None:
    """Ask for answers that the policy has never given: a call of another tool, and JSON."""
    number: Any = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    put: Any = {"type": "function", "function": {"name": "put", "parameters": number}}
    fields: dict[str, Any] = {"model": "chase", "messages": question, "max_tokens": 400, "seed": 1}
    for tool_choice in ("required", {"type": "function", "function": {"name": "put"}}):
        forced = client.chat.completions.create(tools=[put], tool_choice=tool_choice, **fields)
        assert forced.choices[0].finish_reason == "tool_calls"
        for call in forced.choices[0].message.tool_calls or []:
            assert call.type == "function"
            assert call.function.name == "put"
            assert json.loads(call.function.arguments) in ({"n": 1}, {"n": 22})
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": number, "strict": True}}
    whole = client.chat.completions.create(response_format=form, tools=tools, tool_choice="none", **fields)
    assert whole.choices[0].finish_reason == "stop"
    assert json.loads(whole.choices[0].message.content or "") in ({"n": 1}, {"n": 22})
    chunks = list(
        client.chat.completions.create(response_format=form, tools=tools, tool_choice="none", stream=True, **fields)
    )
    assert chunks[-1].choices[0].finish_reason == "stop"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert json.loads(text) in ({"n": 1}, {"n": 22})
    unsupported: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="response_format"):
            client.chat.completions.create(response_format=unsupported, stream=stream, **fields)


def list_tools() -> list[Any]:
    return list(load_object("environment:PointerChase", folder=RECIPE).tool_schemas())


def test_a_run_is_served_with_tool_calls_and_a_version_is_switched(served: Served) -> None:
    operator_headers = {"authorization": "Bearer admin"}
    with (
        openai.OpenAI(base_url=served.base_url, api_key="any") as client,
        httpx.Client(base_url=served.base_url, headers=operator_headers, timeout=60) as operator,
    ):
        assert [one.id for one in client.models.list()] == ["chase", "chase@2"]

        question: Any = [{"role": "user", "content": "find b 2?"}]
        fields: dict[str, Any] = {"messages": question, "tools": list_tools(), "max_tokens": 24, "temperature": 0}
        answer = client.chat.completions.create(model="chase", **fields)
        assert answer.model == "chase@2"
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, list(json.loads(call.function.arguments))) == ("get", ["key"])
        result: Any = [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "f"}]
        further = client.chat.completions.create(model="chase", **{**fields, "messages": [*question, *result]})
        assert further.usage is not None
        assert further.usage.prompt_tokens > (answer.usage.total_tokens if answer.usage else 0)
        streamed = client.chat.completions.create(model="chase", stream=True, top_p=0.9, **fields)
        assert list(streamed)[-1].choices[0].finish_reason == "tool_calls"

        assert operator.post("/sparring/versions", json={"default": "chase@1"}).json()["default"] == "chase@1"
        assert client.chat.completions.create(model="chase", **fields).model == "chase@1"
        assert operator.post("/sparring/versions", json={"default": "chase@2"}).json()["default"] == "chase@2"
        assert client.chat.completions.create(model="chase", **fields).model == "chase@2"

        check_forms(client, question, list_tools())
    # The servers compute in fp32 on a CPU, as the probe does.
    pattern = r"differ from those of the trained weights by ([\d.e-]+) per token"
    differences = re.findall(pattern, served.log.read_text("utf-8"))
    assert len(differences) == 2
    assert all(float(one) < 1e-3 for one in differences)


def load_expert(run: Path) -> tuple[Policy, Weights]:
    """Return the model of a run, and its weights after step 2."""
    folder, step = named_checkpoint(f"{run}@2")
    policy = load_policy(folder.trained_config(), folder.code)
    return policy, checkpoints.load_weights(checkpoint_of(folder, step), policy)


async def score(source: LogprobSource, turns: Sequence[Turn]) -> list[list[float]]:
    """Return the log-probabilities of the sampled ids of each turn."""
    found = [
        await source.logprobs([*turn.prompt_ids, *turn.token_ids], turn.sampling.temperature, len(turn.prompt_ids))
        for turn in turns
    ]
    await source.close()
    return found


def test_a_vllm_server_is_the_teacher_of_a_run(run: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    url, key = read_address(find_servers(served.base)[0])
    monkeypatch.setenv("EXPERT_KEY", key)
    models = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}).json()["data"]
    policy, weights = load_expert(run)
    expert = next(one["id"] for one in models if weights.fingerprint[:12] in one["id"])  # its adapter
    settings = (
        "warm_start.num_demonstrations=320",
        "warm_start.steps=20",
        "batch.global_batch_size=4",
        "batch.group_size=1",
        "algorithm.advantage_method=none",
        "algorithm.teacher=expert",
        "policies.expert.role=endpoint",
        f"policies.expert.base_url={url}/v1",
        f"policies.expert.model={expert}",
        "policies.expert.api_key_env=EXPERT_KEY",
        "schedule.max_steps=2",
        "schedule.val_every=2",
        "evaluation.val_num_tasks=2",
        "evaluation.allow_zero_baseline=true",
        f"run.runs_dir={run.parent}",
        "run.name=student",
    )
    sparring(["train", str(run.parents[1] / "recipe"), "--no-check", "--no-supervise", *settings])

    student = RunFolder(run.parent / "student")
    with Ledger(student.ledger) as ledger:
        turns = {
            step: [turn for id in ids for turn in ledger.load_turns(id)] for step, ids in ledger.consumed().items()
        }
    assert len(turns) == 2
    trained = [turn for step in turns.values() for turn in step if turn.is_trained]
    expected = asyncio.run(score(TorchEngine(policy, weights), trained))
    teacher = ServerTeacher(url, expert, tokenizer=policy.tokenizer, api_key=key)
    assert asyncio.run(score(teacher, trained)) == [pytest.approx(one, abs=TOLERANCE) for one in expected]

    own = iter(expected)
    for metrics, step in zip(steps_of(student.path), turns.values(), strict=True):
        found = [
            a - b for turn in step if turn.is_trained for a, b in zip(turn.sampled_logprobs, next(own), strict=True)
        ]
        assert metrics["training/teacher_kl"] == pytest.approx(fmean(found), abs=TOLERANCE)


async def converse(client: openai.AsyncOpenAI, is_stream: bool, stop: asyncio.Event) -> list[str]:
    """Hold conversations until `stop`, and return how each request ended: with "answer", or with an error."""
    ends: list[str] = []
    while not stop.is_set():
        messages: list[Any] = [{"role": "user", "content": "find b 3?"}]
        for result in ("f", "c", "a"):
            fields: Any = {"messages": messages, "tools": list_tools(), "max_tokens": 24, "temperature": 0}
            try:
                if is_stream:
                    stream: Any = await client.chat.completions.create(model="chase", stream=True, **fields)
                    calls = [
                        one
                        for chunk in [chunk async for chunk in stream]
                        for one in chunk.choices[0].delta.tool_calls or ()
                    ]
                else:
                    answer = await client.chat.completions.create(model="chase", **fields)
                    calls = answer.choices[0].message.tool_calls or []
            except openai.APIError as error:
                ends.append(str(error))
                break
            ends.append("answer")
            if not calls:
                break
            call = calls[0].model_dump(exclude={"index"})
            messages += [
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": result},
            ]
    return ends


def test_a_killed_server_breaks_off_streams_only_and_serves_the_adapter_again(run: Path, served: Served) -> None:
    first, second = find_servers(served.base)
    url, key = read_address(first)

    async def play(seconds: float, *, victim: int, then: float) -> tuple[list[str], list[str]]:
        """Return how requests and streams end around the end of a server."""
        stop = asyncio.Event()
        async with openai.AsyncOpenAI(base_url=served.base_url, api_key="any", max_retries=0, timeout=300) as client:
            # Requests go to the servers in turn, so each server gets whole requests and streams.
            clients = [asyncio.create_task(converse(client, number >= 4, stop)) for number in range(8)]
            await asyncio.sleep(seconds)
            kill(victim)
            await asyncio.sleep(then)
            stop.set()
            ends = await asyncio.gather(*clients)
        return [*chain(*ends[:4])], [*chain(*ends[4:])]

    def check(whole: list[str], streams: list[str]) -> None:
        assert set(whole) == {"answer"}
        assert "answer" in streams
        for error in set(streams) - {"answer"}:
            assert "broke off a turn" in error

    check(*asyncio.run(play(2, victim=first, then=2)))
    deadline = time.monotonic() + 300
    while not is_healthy(url) and time.monotonic() < deadline:
        time.sleep(0.5)
    # Now only the server that was started again can answer.
    check(*asyncio.run(play(0, victim=second, then=2)))
    _, weights = load_expert(run)
    models = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}).json()["data"]
    assert any(weights.fingerprint[:12] in one["id"] for one in models)


def is_healthy(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    return False
