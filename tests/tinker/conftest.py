"""The servers of these tests: Sparring's own, and SkyRL with its JAX back end. `make tinker` installs SkyRL and runs its tests;
without it they are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from sparring.models.small import small_model
from tests.tinker.servers import ROOT, Server, start_own, start_skyrl

ENVIRONMENT = os.environ.get("SPARRING_TEST_TINKER")
"""The folder of SkyRL's Python environment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if item.path.name.startswith("test_skyrl"):
            item.add_marker(pytest.mark.timeout(1800))
            if not ENVIRONMENT:
                item.add_marker(pytest.mark.skip(reason="needs SkyRL, which `make tinker` installs"))
        elif "own_server" in getattr(item, "fixturenames", ()) and find_spec("tinker") is None:
            item.add_marker(pytest.mark.skip(reason="needs the package tinker: make tinker"))


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
def own_server(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Server]:
    server = start_own(tmp_path_factory.mktemp("own") / "server", model_folder)
    yield server
    server.kill()


@pytest.fixture(scope="session")
def skyrl(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Server]:
    assert ENVIRONMENT is not None
    server = start_skyrl(tmp_path_factory.mktemp("skyrl") / "server", model_folder, (ROOT / ENVIRONMENT).absolute())
    yield server
    server.kill()
