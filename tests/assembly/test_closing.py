"""An engine whose run cannot be loaded is closed, so that the servers that it started end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sparring.assembly import load_training_parts
from sparring.assembly import run as assembly
from sparring.config import load_config
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ServiceError
from sparring.ledger import Ledger
from sparring.trainer import MultiTurnRLTrainer
from tests.serving.test_serve import vllm_server

RECIPE = Path(__file__).parents[1] / "faults" / "recipe"


@pytest.mark.parametrize("part", ["check_vocabularies", "build_learner", "build_teacher"])
def test_a_part_that_cannot_be_loaded_closes_the_engine(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[TorchEngine] = []
    close = TorchEngine.close

    async def note(engine: TorchEngine) -> None:
        closed.append(engine)
        await close(engine)

    def fail(*_: Any) -> None:
        raise ServiceError("no answer")

    monkeypatch.setattr(TorchEngine, "close", note)
    monkeypatch.setattr(assembly, part, fail)
    with Ledger() as ledger, pytest.raises(ServiceError, match="no answer"):
        load_training_parts(load_config(RECIPE / "recipe.toml"), RECIPE, ledger)
    assert len(closed) == 1


def test_a_dry_run_leaves_no_files_for_servers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with vllm_server() as address:
            places = ["engine.type=vllm", f"engine.base_urls=['{address}']", f"engine.adapters_dir={tmp_path}"]
            settings = ["model.trained_weights=lora", "model.lora_rank=2"]
            trainer = MultiTurnRLTrainer(RECIPE, overrides=[*places, *settings], quiet=True)
            await asyncio.to_thread(trainer.train, dry_run=True)

    asyncio.run(scenario())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
