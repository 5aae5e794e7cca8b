"""Servers that a person starts with the commands of docs/vllm.md."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from sparring.engines.servers.engine import ServersEngine
from sparring.errors import ServiceError
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import Policy
from sparring.types import Completion, Weights
from tests.contracts.cases import CONTEXT, LETTERS
from tests.vllm.conftest import ALPHA, ENVIRONMENT, RANK, build_model
from tests.vllm.test_runs import ROOT
from tests.vllm.test_tokens import TOLERANCE, differences, request, sample

PAGE = (ROOT / "docs" / "vllm.md").read_text("utf-8")
COMMANDS = re.findall(r"(?:^    .*\bvllm serve MODEL .*\\\n)(?:^    .*\n)+", PAGE, flags=re.MULTILINE)
"""The commands that start servers, without the lines before them."""
FOR_THE_CPU = f" --dtype float32 --enforce-eager --max-num-seqs 8 --max-num-batched-tokens {8 * CONTEXT}"
"""Arguments that the page's table gives for the CPU."""


@contextmanager
def started(command: str, base: Path, log: Path) -> Iterator[str]:
    """Run a command of the page in a shell, with this base model, at a free port, and yield the address."""
    assert ENVIRONMENT is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for written, used in (("MODEL", str(base)), ("--port 8000", f"--port {port}"), ("-len 4096", f"-len {CONTEXT}")):
        assert command.count(written) == 1, (command, written)
        command = command.replace(written, used)
    folders = [str(Path(ENVIRONMENT).resolve() / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    variables = {
        **os.environ,
        "PATH": os.pathsep.join(folders),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", command.rstrip() + FOR_THE_CPU],
            cwd=ROOT,
            env=variables,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def connect(url: str, shape: AdapterShape | None, folder: Path, weights: Weights, log: Path) -> ServersEngine:
    """Return an engine as soon as the server answers."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return ServersEngine([url], shape=shape, folder=folder, weights=weights)
        except ServiceError:  # it is still loading the model
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(1)


def test_the_page_has_a_command_for_adapters_and_one_for_all_weights() -> None:
    assert ["--enable-lora" in one for one in COMMANDS] == [True, False]
    assert ["sparring_files" in one for one in COMMANDS] == [False, True]


@pytest.mark.parametrize("trained", ["lora", "full"])
def test_an_engine_samples_with_a_server_that_was_started_by_hand(
    trained: str, base: Path, policy: Policy, adapters: tuple[Weights, Weights], tmp_path: Path
) -> None:
    log, asked = tmp_path / "vllm.log", [request(number) for number in range(4)]
    if trained == "lora":
        command, shape, first, second = COMMANDS[0], AdapterShape(rank=RANK, alpha=ALPHA), *adapters
    else:
        line = next(one for one in PAGE.splitlines() if one.startswith("    PLUGIN="))
        command, shape = f"{line}\n{COMMANDS[1]}", None
        policy = Policy(build_model(), LETTERS, max_positions=CONTEXT)
        first = second = policy.snapshot()

    async def scenario(engine: ServersEngine) -> list[Completion]:
        await engine.load_weights(second, 1)
        return await asyncio.gather(*map(engine.sample, asked))

    torch.set_num_threads(1)
    with started(command, base, log) as url:
        turns = sample(lambda: connect(url, shape, tmp_path / "run", first, log), scenario)
    assert {turn.fingerprint for turn in turns} == {second.fingerprint}
    assert max(differences(policy, second, list(zip(asked, turns, strict=True)))) < TOLERANCE
