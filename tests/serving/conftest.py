"""A run that trained an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.trainer import MultiTurnRLTrainer
from tests.faults.recipe.tiny import build

TINY = Path(__file__).parents[1] / "faults" / "recipe"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of LoRA on a model in a folder, each saved and validated."""
    folder = tmp_path_factory.mktemp("exports")
    model, tokenizer = build(0)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    overrides = [
        f"run.runs_dir={folder / 'runs'}",
        f"model.name={folder / 'base'}",
        "model.trained_weights=lora",
        "model.lora_rank=2",
        "schedule.max_steps=2",
        "schedule.save_every=1",
        "schedule.val_every=1",
        "schedule.keep_checkpoints=5",
    ]
    with MultiTurnRLTrainer(TINY, overrides=overrides, name="run", check=False, quiet=True) as trainer:
        trainer.train()
    return folder / "runs" / "run"
