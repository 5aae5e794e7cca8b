"""The commands and the program of docs/tinker-server.md run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from sparring.cli import app

OLDER = """
import tinker
for kind, names in ((tinker.ServiceClient, ["create_lora_training_client"]),
                    (tinker.TrainingClient, ["save_weights_and_get_sampling_client"])):
    for name in names if tinker.__version__ < "0.3" else []:
        def wrap(*given, method=getattr(kind, name), **named):
            found = method(*given, **named)
            found.result = lambda: found
            return found
        setattr(kind, name, wrap)
"""
"""Older clients return a client where the newest returns a future of it. The page is for the newest."""
PAGE = (Path(__file__).parents[3] / "docs" / "tinker-server.md").read_text("utf-8")


def read_block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


async def serve(model: Path, folder: Path) -> tuple[asyncio.subprocess.Process, dict[str, str]]:
    """Run the page's command on a model, and return the process and what it prints."""
    command = shlex.split(read_block("sh"))[1:]
    command[command.index("path/to/model")] = str(model)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sparring", *command, "--port", "0", "--json"),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    printed = b""
    while not printed.endswith(b"}\n"):
        line = await process.stdout.readline()
        assert line, printed
        printed += line
    return process, json.loads(printed)


def test_the_command_of_the_page_serves_and_prints_a_key(model_folder: Path, tmp_path: Path) -> None:
    async def run() -> None:
        process, served = await serve(model_folder, tmp_path)
        try:
            async with httpx.AsyncClient(base_url=served["base_url"]) as http:
                for key, status in [("", 401), (f"tml-{served['api_key']}", 200)]:
                    answer = await http.get("/api/v1/get_server_capabilities", headers={"x-api-key": key})
                    assert answer.status_code == status
                assert answer.json()["supported_models"][0]["model_name"] == str(model_folder)
        finally:
            process.terminate()
            await process.wait()

    asyncio.run(run())


def test_the_program_of_the_page_trains_and_saves(model_folder: Path, tmp_path: Path, client_python: str) -> None:
    async def run() -> None:
        process, served = await serve(model_folder, tmp_path)
        key = f"tml-{served['api_key']}"
        try:
            client = await asyncio.create_subprocess_exec(
                *(client_python, "-c", OLDER + read_block("python")),
                env={**os.environ, "TINKER_BASE_URL": served["base_url"], "TINKER_API_KEY": key},
                stdout=subprocess.PIPE,
            )
            out, _ = await client.communicate()
        finally:
            process.terminate()
            await process.wait()
        *steps, sampled, path = out.decode().splitlines()
        losses = [float(line.split()[0]) for line in steps[-10:]]
        assert losses[-1] < losses[0]
        assert 1 <= len(json.loads(sampled)) <= 8
        run_id, kind, name = path.removeprefix("tinker://").split("/")
        assert (tmp_path / "tinker-runs" / run_id.replace(":", "_") / kind / name / "weights.safetensors").is_file()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--checkpoints", "a"], "--checkpoints is for Tinker's clients; add --tinker"),
        (["--tinker", "--temperature", "1"], "--temperature is for OpenAI clients"),
        (["--tinker", "--engine", "vllm"], "--engine is for OpenAI clients"),
    ],
)
def test_options_of_the_other_kind_of_server_are_refused(options: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["serve", "model", *options])
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.split())
