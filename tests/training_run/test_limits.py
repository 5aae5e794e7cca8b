"""`limits.max_cost` ends a run as completed, with a checkpoint of its last step."""

import shutil
from pathlib import Path

import pytest

from sparring.config import validate
from sparring.errors import ConfigError
from sparring.run_folders import RunFolder
from sparring.trainer import MultiTurnRLTrainer
from tests.test_cli import SMALL

CHASE = Path(__file__).parents[2] / "recipes" / "pointer_chase"


def test_a_run_ends_with_a_checkpoint_before_it_costs_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CHASE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    limits = ["schedule.max_steps=5", "limits.max_cost=0.000001", "tracking.prices.hour=1", "schedule.val_every=0"]
    with MultiTurnRLTrainer(tmp_path / "toy", overrides=[*SMALL, *limits], check=False, quiet=True) as trainer:
        result = trainer.train()
    assert (result.status, result.step) == ("completed", 1)
    assert (RunFolder(result.run).checkpoints / "00001").is_dir() or any(
        path.name.endswith("1") for path in RunFolder(result.run).checkpoints.iterdir()
    )


def test_a_limit_on_cost_needs_a_price() -> None:
    recipe = {"environment": {"target": "a:B"}, "reward": {"reward": "a:b"}, "limits": {"max_cost": 3.0}}
    with pytest.raises(ConfigError, match=r"limits.max_cost: .*tracking.prices"):
        validate(recipe)
    assert validate(recipe, ["tracking.prices.hour=2.5"]).limits.max_cost == 3.0
