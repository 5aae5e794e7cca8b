"""A trained adapter behind the OpenAI endpoint, sampled by a vLLM server that `sparring serve` starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sparring.runtime.plugins import load_object
from tests.vllm.conftest import ENVIRONMENT
from tests.vllm.processes import find_servers
from tests.vllm.test_runs import ROOT, SETTINGS

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


@contextmanager
def serving(run: Path, log: Path) -> Iterator[str]:
    """Serve a run with a local vLLM server, and yield the address."""
    command = [sys.executable, "-m", "sparring", "serve", str(run), "--engine", "vllm", "--port", "0", "--json"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SPARRING_VLLM": str(ENVIRONMENT),
        "SPARRING_ADMIN_KEY": "admin",
    }
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            printed = ""
            while not printed.endswith("}\n"):
                line = process.stdout.readline()
                assert line, log.read_text("utf-8")
                printed += line
            yield json.loads(printed)["base_url"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
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


def test_a_run_is_served_with_tool_calls_and_a_version_is_switched(run: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    operator_headers = {"authorization": "Bearer admin"}
    with (
        serving(run, log) as base_url,
        openai.OpenAI(base_url=base_url, api_key="any") as client,
        httpx.Client(base_url=base_url, headers=operator_headers, timeout=60) as operator,
    ):
        assert [one.id for one in client.models.list()] == ["chase", "chase@2"]

        question: Any = [{"role": "user", "content": "find b 2?"}]
        tools = load_object("environment:PointerChase", folder=RECIPE).tool_schemas()
        fields: dict[str, Any] = {"messages": question, "tools": list(tools), "max_tokens": 24, "temperature": 0}
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

        check_forms(client, question, list(tools))
    printed = log.read_text("utf-8")
    # The server computes in fp32 on a CPU, as the probe does.
    differences = re.findall(r"differ from those of the trained weights by ([\d.e-]+) per token", printed)
    assert len(differences) == 2
    assert all(float(one) < 1e-3 for one in differences)
    assert find_servers(Path(re.search(r"with (\S+/base)", printed)[1])) == []  # pyright: ignore[reportOptionalSubscript]
