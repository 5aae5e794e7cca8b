"""A server for Tinker's clients in this process, with a model of a few thousand parameters."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest

from sparring.serving.access import Access
from sparring.serving.tinker.app import create_app
from sparring.serving.tinker.base import BaseModel
from sparring.serving.tinker.checkpoints import Checkpoints
from sparring.serving.tinker.service import TinkerService
from tests.faults.recipe.tiny import build

KEY = "a-key-of-the-tests"


@dataclass(frozen=True)
class Server:
    service: TinkerService
    address: str
    http: httpx.AsyncClient


Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model, tokenizer = build(0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def serve(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return a function that serves the model. All servers of a test write checkpoints into one folder."""
    monkeypatch.setattr("sparring.serving.tinker.app.POLL_SECONDS", 0.5)

    @asynccontextmanager
    async def serve() -> AsyncIterator[Server]:
        base = BaseModel(str(model_folder), name="tiny", max_sequence_length=128, precision="fp32")
        service = TinkerService(base, Checkpoints(tmp_path / "checkpoints"))
        access = Access(api_key=KEY)
        listener = access.listen(create_app(service, gate=access.open_gate("tinker")))
        await listener.start()
        headers = {"x-api-key": f"tml-{KEY}"}
        try:
            async with httpx.AsyncClient(base_url=listener.address, headers=headers, timeout=60) as http:
                yield Server(service, listener.address, http)
        finally:
            await listener.stop()
            await service.close()

    return serve


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with `client_python` for each interpreter that has the package tinker: those in SPARRING_TEST_TINKER_CLIENTS, or
    this one."""
    if "client_python" in metafunc.fixturenames:
        given = [path for path in os.environ.get("SPARRING_TEST_TINKER_CLIENTS", "").split(":") if path]
        found = given or ([sys.executable] if find_spec("tinker") else [])
        skip = pytest.param("", marks=pytest.mark.skip(reason="needs the package tinker: make tinker-server"))
        metafunc.parametrize("client_python", found or [skip])
