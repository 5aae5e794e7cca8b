"""Recipes that are graded by what was done train, warm start included: a database, files, a game, a process, Gymnasium."""

import shutil
from pathlib import Path

import pytest

from sparring.ledger import Ledger
from sparring.trainer import MultiTurnRLTrainer

RECIPES = Path(__file__).parents[1] / "checks" / "state_graded"
MODEL = """
from sparring.models.small import small_model


def build(seed):
    return small_model(seed, ["user\\n", "assistant\\n", "tool\\n"], width=32, layers=1, max_positions=4096)
"""
FEW = (
    "model.name=model:build", "model.precision=fp32", "model.trained_weights=full", "run.num_threads=1",
    "environment.max_turns=3", "sampling.sampling_max_tokens=8", "batch.global_batch_size=1", "batch.group_size=2",
    "warm_start.num_demonstrations=2", "warm_start.steps=1", "warm_start.batch_size=2", "schedule.max_steps=2",
    "schedule.val_every=0", "evaluation.allow_zero_baseline=true", "evaluation.val_num_tasks=1",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RECIPES.glob("*/recipe.toml")))
def test_a_recipe_that_is_graded_by_its_state_trains(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(RECIPES / name, tmp_path / "recipe")
    (folder / "model.py").write_text(MODEL, "utf-8")
    overrides = [*FEW, f"run.runs_dir={tmp_path / 'runs'}"]
    result = MultiTurnRLTrainer(folder / "recipe.toml", overrides=overrides, quiet=True, check=False).train()
    assert result is not None
    assert (result.status, result.step) == ("completed", 2)
    with Ledger(result.run / "ledger.sqlite") as ledger:
        counts = ledger.counts("train")
        assert counts["trained"] + counts["discarded"] == counts["planned_total"] > 0
