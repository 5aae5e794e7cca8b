"""What failed for infrastructure reasons is in no gradient, and what user code does to its process does not move the run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sparring import relearning
from sparring.faults import Fault
from sparring.ledger import Ledger, RolloutState
from sparring.relearning import Relearning
from sparring.trainer import MultiTurnRLTrainer
from sparring.types import Reward, Trajectory, TrajectoryGroup
from tests.faults.training import Training

RECIPE = Path(__file__).parent / "recipe"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which a part of the episodes was lost for good: nothing is tried again."""
    overrides = ("rollout.rollout_max_retries=0", "rollout.max_lost_share=1.0", "batch.group_size=4")
    training = Training(tmp_path_factory.mktemp("failing"), overrides)
    assert training.over(Fault("environment.reset", "error", share=0.2, times=1000)) == 0
    return training.run


def test_the_weights_are_those_of_the_same_steps_without_the_failed_rollouts(trained: Path) -> None:
    with Ledger(trained / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        counts = ledger.counts("train")
    # Two groups of four a step and four steps, less what was lost.
    assert counts["discarded/infra_error"] > 0
    assert counts[RolloutState.TRAINED] < 32
    steps = list(Relearning(trained))
    # Bit for bit: the same tokens in, the same gradients, the same hash of the weights.
    assert [one.difference for one in steps] == [None] * 5
    assert "checkpoint" in steps[-1].recorded


def test_a_failed_rollout_that_counted_as_zero_would_be_seen(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_zeros(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return [
            replace(group, trajectories=group.trajectories + (_zero(group.trajectories[0]),) * (4 - len(group.trajectories)))
            for group in groups
        ]  # fmt: skip

    members = relearning._groups
    monkeypatch.setattr(relearning, "_groups", lambda trajectories: with_zeros(members(trajectories)))
    assert any(one.difference is not None for one in Relearning(trained))


def _zero(like: Trajectory) -> Trajectory:
    return replace(like, id="failed", turns=(), reward=Reward(total=0.0))


@pytest.mark.parametrize(("times", "code"), [(2, 0), (3, 1)])
def test_an_outage_while_the_expert_plays_for_the_warm_start_is_tried_again(
    tmp_path: Path, times: int, code: int
) -> None:
    training = Training(tmp_path, ("schedule.max_steps=1", "rollout.rollout_max_retries=2"))
    assert training.over(Fault("environment.reset", "error", times=times)) == code


def test_an_environment_that_changes_the_working_folder_does_not_take_the_run_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = shutil.copytree(RECIPE, tmp_path / "recipe", ignore=shutil.ignore_patterns("__pycache__"))
    code = (recipe / "tiny.py").read_text()
    moves = f"    def reset(self, task):\n        import os; os.chdir({str(recipe)!r})\n\n    @tool\n"
    (recipe / "tiny.py").write_text(code.replace("    @tool\n", moves))
    monkeypatch.chdir(tmp_path)
    settings = ["run.runs_dir=runs", "schedule.max_steps=1"]
    with MultiTurnRLTrainer("recipe", overrides=settings, name="run", check=False, quiet=True) as trainer:
        result = trainer.train()
    assert Path.cwd() == recipe
    assert result is not None
    assert result.run == Path("runs/run")
    assert (tmp_path / "runs" / "run" / "checkpoints" / "000001").is_dir()
    assert (tmp_path / "runs" / "run" / "metrics.jsonl").is_file()
    assert not (recipe / "runs").exists()
