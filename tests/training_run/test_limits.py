"""`limits.max_cost` and `limits.max_seconds` end a run as completed, with a checkpoint of its last step."""

import shutil
from pathlib import Path

import pytest

from sparring.config import validate
from sparring.errors import ConfigError
from sparring.run_folders import RunFolder
from sparring.trainer import MultiTurnRLTrainer
from sparring.training.checkpoints import find_newest, format_name
from tests.test_cli import SMALL

CHASE = Path(__file__).parents[2] / "recipes" / "pointer_chase"


@pytest.mark.parametrize(
    ("limit", "last"),
    [(("limits.max_cost=0.000001", "tracking.prices.hour=1"), 1), (("limits.max_seconds=2",), 900)],
    ids=["cost", "seconds"],
)
def test_a_run_ends_with_a_checkpoint_of_the_step_that_reaches_a_limit(
    limit: tuple[str, ...], last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CHASE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    settings = [*SMALL, "schedule.max_steps=1000", "schedule.max_epochs=1000", "schedule.val_every=0", *limit]
    with MultiTurnRLTrainer(tmp_path / "toy", overrides=settings, check=False, quiet=True) as trainer:
        result = trainer.train()
    assert result is not None
    assert result.status == "completed"
    assert 1 <= result.step <= last
    assert find_newest(RunFolder(result.run).checkpoints).name == format_name(result.step)


def test_that_the_data_ended_before_the_last_step_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CHASE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "toy" / "few.py").write_text(
        "import environment\n\n\ndef tasks():\n    return list(environment.train_tasks())[:4]\n"
    )
    # Two epochs of four tasks are at most two steps of four groups. The model from scratch hardly succeeds, so after the
    # first step, all tasks rest.
    settings = [
        *SMALL, "schedule.max_steps=9", "schedule.max_epochs=2", "schedule.val_every=0", "data.train=few:tasks",
        "batch.global_batch_size=4", "curriculum.select=mixed",
    ]  # fmt: skip
    with MultiTurnRLTrainer(tmp_path / "toy", overrides=settings, check=False, quiet=True) as trainer:
        result = trainer.train()
    assert result is not None
    assert result.status == "completed"
    (message,) = [one.getMessage() for one in caplog.records if "the data ended" in one.getMessage()]
    assert message.startswith(
        f"the data ended after step {result.step} of 9: the tasks were offered schedule.max_epochs = 2 times"
    )
    assert "of the offers were skipped (curriculum.select)" in message


def test_a_limit_on_cost_needs_a_price() -> None:
    recipe = {"environment": {"target": "a:B"}, "reward": {"reward": "a:b"}, "limits": {"max_cost": 3.0}}
    with pytest.raises(ConfigError, match=r"limits.max_cost: .*tracking.prices"):
        validate(recipe)
    assert validate(recipe, ["tracking.prices.hour=2.5"]).limits.max_cost == 3.0
