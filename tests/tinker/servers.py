"""Real servers that speak the Tinker API, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0
KEY = "a-key-of-the-tests"
BACKEND = {"max_lora_adapters": 6, "max_lora_rank": 8, "train_micro_batch_size": 16, "sample_max_num_sequences": 16}


@dataclass
class Server:
    """A server, which keeps its port and what it has stored when it is started again."""

    folder: Path
    model: Path
    port: int
    command: Sequence[str]
    variables: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a server may have processes of its own
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/api/v1/healthz", timeout=5.0).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(f"the server did not start: {self.log[-2000:]}")

    def kill(self) -> None:
        """Kill the server and its processes at once (SIGKILL)."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def start_own(folder: Path, model: Path) -> Server:
    """Start `sparring serve MODEL --tinker` in a new folder."""
    folder.mkdir()
    port = _find_port()
    command = (
        *(sys.executable, "-m", "sparring", "serve", str(model), "--tinker", "--checkpoints", str(folder / "stored")),
        *("--port", str(port), "--precision", "fp32", "--max-sequence-length", "256"),
    )
    variables = {**os.environ, "SPARRING_API_KEY": KEY, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    server = Server(folder, model, port, command, variables)
    server.start()
    return server


def start_skyrl(folder: Path, model: Path, environment: Path) -> Server:
    """Start SkyRL with its JAX back end in a new folder. `environment` is its Python environment."""
    folder.mkdir()
    port = _find_port()
    command = (
        *(str(environment / "bin" / "python"), str(Path(__file__).with_name("skyrl_server.py"))),
        *("--base-model", str(model), "--backend", "jax", "--backend-config", json.dumps(BACKEND)),
        *("--database-url", f"sqlite:///{folder}/database", "--checkpoints-base", str(folder / "stored")),
        *("--port", str(port)),
    )
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = Server(folder, model, port, command, {**variables, "JAX_PLATFORMS": "cpu"})
    server.start()
    return server


def _find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
