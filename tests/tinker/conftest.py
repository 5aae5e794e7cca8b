"""A real Tinker server, SkyRL with its JAX back end. `make tinker` installs it and runs its tests; without it they are
skipped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from sparring.models.small import small_model

ENVIRONMENT = os.environ.get("SPARRING_TEST_TINKER")
"""The folder of SkyRL's Python environment."""
ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0
BACKEND = {"max_lora_adapters": 6, "max_lora_rank": 8, "train_micro_batch_size": 16, "sample_max_num_sequences": 16}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.name.startswith("test_skyrl"):
            item.add_marker(pytest.mark.timeout(1800))
            if not ENVIRONMENT:
                item.add_marker(pytest.mark.skip(reason="needs SkyRL, which `make tinker` installs"))


@dataclass
class SkyRL:
    """A server, which keeps its port, database and checkpoints when it is started again."""

    folder: Path
    model: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def start(self) -> None:
        assert ENVIRONMENT is not None
        command = [
            str((ROOT / ENVIRONMENT / "bin" / "python").absolute()), str(Path(__file__).with_name("skyrl_server.py")),
            "--base-model", str(self.model), "--backend", "jax", "--backend-config", json.dumps(BACKEND),
            "--database-url", f"sqlite:///{self.folder}/database", "--checkpoints-base", str(self.folder / "stored"),
            "--port", str(self.port),
        ]  # fmt: skip
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**variables, "JAX_PLATFORMS": "cpu"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the engine is a child of the server
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/api/v1/healthz", timeout=5.0).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise AssertionError(f"SkyRL did not start: {self.log[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_server(folder: Path, model: Path) -> SkyRL:
    folder.mkdir()
    server = SkyRL(folder, model, find_port())
    server.start()
    return server


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has learned nothing."""
    conversation = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "c b a"}]
    model, tokenizer = small_model(0, [conversation], vocabulary_size=280, width=64, layers=2, max_positions=256)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def skyrl(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[SkyRL]:
    server = start_server(tmp_path_factory.mktemp("skyrl") / "server", model_folder)
    yield server
    server.kill()
