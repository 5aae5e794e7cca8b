"""`sparring serve`: versions of a run next to each other, and vLLM servers that must compute with its weights."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import LoraSettings, Policy
from sparring.run_folders import RunFolder
from sparring.web.listener import Listener
from tests.contracts.vllm_routes import VLLMRoutes
from tests.faults.recipe.tiny import build

ROOT = Path(__file__).parents[2]
ADMIN = {"authorization": "Bearer admin"}


@asynccontextmanager
async def vllm_server(scale: float = 1.0, **faults: Any) -> AsyncIterator[str]:
    """Yield the address of a server with the routes of vLLM, and with the base model of `run`, or with its parameters
    multiplied by `scale`."""
    model, tokenizer = build(0)
    for parameter in model.parameters():
        parameter.data *= scale
    policy = Policy(model, tokenizer, max_positions=128, lora=LoraSettings(rank=2))
    engine = TorchEngine(policy, policy.snapshot(), kv_cache_tokens=4096)
    listener = Listener(VLLMRoutes(engine, faults, model.config.vocab_size).app, "127.0.0.1", 0)
    await listener.start()
    try:
        yield listener.base_url
    finally:
        await listener.stop()
        await engine.close()


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[dict[str, Any]]:
    """Run `sparring serve`, yield what it prints when it answers, and stop it with Ctrl-C. Then add its `stderr`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sparring", "serve", *arguments, "--port", "0", "--json"),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SPARRING_API_KEY": "any", "SPARRING_ADMIN_KEY": "admin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        printed = b""
        while not printed.endswith(b"}\n"):
            line = await process.stdout.readline()
            assert line, (await process.stderr.read()).decode()
            printed += line
        served = json.loads(printed)
        yield served
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        served["stderr"] = (await process.stderr.read()).decode()
    finally:
        if process.returncode is None:
            process.kill()


async def answers(base_url: str, models: list[str]) -> dict[str, tuple[str, list[float]]]:
    """Return, for each name, the version that answered, and the log-probabilities of its greedy answer."""
    found = {}
    async with openai.AsyncOpenAI(base_url=base_url, api_key="any") as client:
        for model in models:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "7?"}],
                temperature=0,
                max_tokens=8,
                logprobs=True,
            )
            tokens = (answer.choices[0].logprobs and answer.choices[0].logprobs.content) or []
            found[model] = (answer.model, [one.logprob for one in tokens])
    return found


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_versions_of_a_run_are_served_and_switched(run: Path, engine: str) -> None:
    async def scenario() -> dict[str, Any]:
        async with vllm_server() as address:
            place = ["--engine", "vllm", "--vllm-url", address] if engine == "vllm" else []
            async with serving(str(run), *place, "--canary", "run@1=0") as ready:
                assert ready["model"] == "run"
                found: dict[str, Any] = await answers(ready["base_url"], ["run", "run@1", "run@2"])
                async with httpx.AsyncClient(base_url=ready["base_url"], headers=ADMIN) as operator:
                    changed = await operator.post("/sparring/versions", json={"default": f"{run}@1"})
                    assert changed.json()["default"] == "run@1"
                    found["switched"] = (await answers(ready["base_url"], ["run"]))["run"]
                    refused = await operator.post("/sparring/versions", json={"default": "run@7"})
                    assert (refused.status_code, "000007" in refused.text) == (400, True)
            return {**found, "stderr": ready["stderr"]}

    found = asyncio.run(scenario())
    assert found["run"] == found["run@2"]
    assert found["switched"] == found["run@1"]
    assert (found["run@1"][0], found["run@2"][0]) == ("run@1", "run@2")
    assert found["run@1"][1] != pytest.approx(found["run@2"][1], abs=1e-4)
    if engine == "vllm":
        assert (
            "run@2: the log-probabilities of 63 tokens differ from those of the trained weights by" in found["stderr"]
        )


def test_vllm_servers_answer_as_the_engine_in_process_does(run: Path) -> None:
    async def scenario() -> tuple[Any, Any]:
        async with vllm_server() as address:
            async with serving(f"{run}@2", "--engine", "vllm", "--vllm-url", address) as ready:
                far = await answers(ready["base_url"], ["run"])
            async with serving(f"{run}@2") as ready:
                return far, await answers(ready["base_url"], ["run"])

    far, here = asyncio.run(scenario())
    assert far["run"][1] == pytest.approx(here["run"][1], abs=1e-4)


def test_answers_have_the_limits_of_the_run_unless_others_are_chosen(run: Path) -> None:
    async def ask(*options: str) -> list[tuple[int, str | None]]:
        found = []
        async with (
            serving(str(run), *options) as ready,
            openai.AsyncOpenAI(base_url=ready["base_url"], api_key="any") as client,
        ):
            for _ in range(4):
                answer = await client.chat.completions.create(model="run", messages=[{"role": "user", "content": "7?"}])
                assert answer.usage is not None
                found.append((answer.usage.completion_tokens, answer.choices[0].message.content))
        return found

    # The untrained model rarely ends an answer, so the limit does.
    limit = RunFolder(run).config().sampling.sampling_max_tokens
    own = asyncio.run(ask())
    assert max(num for num, _ in own) == limit
    assert len({text for _, text in own}) > 1
    greedy = asyncio.run(ask("--max-tokens", "3", "--temperature", "0"))
    assert max(num for num, _ in greedy) <= 3
    assert len({text for _, text in greedy}) == 1


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("scale", "fault", "message"),
    [
        (1.0, "empty_adapter", "compute without its adapter"),
        (8.0, "none", "Check that they serve the base model of the run"),
    ],
)
def test_servers_with_other_weights_are_refused(run: Path, scale: float, fault: str, message: str) -> None:
    async def scenario() -> Result:
        async with vllm_server(scale, **{fault: True}) as address:
            command = ("serve", str(run), "--port", "0", "--engine", "vllm", "--vllm-url", address)
            return await asyncio.to_thread(sparring, *command)

    refused = asyncio.run(scenario())
    assert refused.exit_code == 4
    assert "run@2 is not served" in refused.stderr
    assert message in refused.stderr


def test_what_vllm_cannot_serve_is_refused(run: Path, tmp_path: Path) -> None:
    full = Path(shutil.copytree(run, tmp_path / "full"))
    recipe = (full / "run.toml").read_text("utf-8").replace('trained_weights = "lora"', 'trained_weights = "full"')
    (full / "run.toml").write_text(re.sub(r"(?m)^lora_.*\n", "", recipe), "utf-8")
    trained = sparring("serve", str(full), "--engine", "vllm")
    assert (trained.exit_code, "sparring export" in trained.stderr) == (2, True), trained.stderr
    model = sparring("serve", str(run.parents[1] / "base"), "--engine", "vllm")
    assert (model.exit_code, "is not a run" in model.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--canary", "run@1"], "write RUN@STEP=SHARE"),
        (["--canary", "run@1=2"], "a share from 0 to 1"),
        (["--canary", "other@1=0.1"], "is not a version of run"),
        (["--canary", "run@warm_start=0.1"], "write a step after @, or best"),
        (["--canary", "run@../../other=0.1"], "write a step after @, or best"),
        (["--canary", "run@²=0.1"], "write a step after @, or best"),
        (["--engine", "vllm", "--vllm-url", "127.0.0.1:1"], "--vllm-url is '127.0.0.1:1'; use one like"),
        (
            ["--engine", "vllm", "--vllm-url", "http://u:secret@127.0.0.1:1"],
            "--vllm-url is an address that contains a user",
        ),
        (["--engine", "vllm", "--vllm-url", "http://a:1", "--vllm-url", "http://a:1/v1"], "names a server twice"),
        (
            ["--engine", "vllm", "--vllm-url", "http://a:1", "--vllm-key-env", "sk-1"],
            "--vllm-key-env is not a valid name",
        ),
        (["--vllm-url", "http://127.0.0.1:1"], "add --engine vllm"),
        (["--engine", "vllm", "--vllm-url", "http://127.0.0.1:1", "--num-servers", "2"], "give one of them"),
    ],
)
def test_options_that_do_not_fit_are_refused(run: Path, options: list[str], message: str) -> None:
    refused = sparring("serve", str(run), "--port", "0", *options)
    assert (refused.exit_code, message in refused.stderr) == (2, True), refused.stderr
    assert "secret" not in refused.stderr
