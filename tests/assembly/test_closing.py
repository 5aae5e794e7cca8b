"""An engine whose run cannot be loaded is closed, so that the servers that it started end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sparring.assembly import load_training_parts
from sparring.config import load_config
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ServiceError
from sparring.ledger import Ledger
from sparring.trainer import MultiTurnRLTrainer
from tests.serving.test_serve import vllm_server

RECIPE = Path(__file__).parents[1] / "faults" / "recipe"


UNUSED_ADDRESS = "http://127.0.0.1:9"
LEARNER = ("learner.type=remote", f"learner.base_url={UNUSED_ADDRESS}")
TEACHER = (
    "algorithm.teacher=expert",
    "policies.expert.role=endpoint",
    f"policies.expert.base_url={UNUSED_ADDRESS}/v1",
    "policies.expert.model=expert",
)


@pytest.mark.parametrize("elsewhere", [LEARNER, TEACHER], ids=["learner", "teacher"])
def test_a_part_that_cannot_be_loaded_closes_the_engine(
    elsewhere: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[TorchEngine] = []
    close = TorchEngine.close

    async def note(engine: TorchEngine) -> None:
        closed.append(engine)
        await close(engine)

    monkeypatch.setattr(TorchEngine, "close", note)
    with Ledger() as ledger, pytest.raises(ServiceError, match="does not answer"):
        load_training_parts(load_config(RECIPE / "recipe.toml", elsewhere), RECIPE, ledger)
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
