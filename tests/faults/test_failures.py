"""What failed for infrastructure reasons is in no gradient, and what user code does to its process does not move the run."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from sparring.ledger import Ledger, RolloutState
from sparring.reproduce.updates import Relearning
from sparring.runtime.faults import Fault
from sparring.trainer import MultiTurnRLTrainer
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


def test_a_failed_rollout_that_counted_as_zero_would_be_seen(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    with sqlite3.connect(run / "ledger.sqlite") as db:
        # Room between the events, so that it is claimed together with the others of its group.
        db.execute("UPDATE events SET sequence = -10 * sequence")
        db.execute("UPDATE events SET sequence = -sequence")
        num_counted = 0
        for (lost,) in db.execute(
            "SELECT id FROM rollouts WHERE reason = 'infra_error' AND split = 'train'"
        ).fetchall():
            group = f"{lost.rpartition('/')[0]}/%"
            step, claimed = db.execute(
                "SELECT step, max(sequence) FROM events WHERE state = 'claimed' AND rollout_id LIKE ?", (group,)
            ).fetchone()
            if step is None:
                continue  # its whole group was lost
            num_counted += 1
            zero = json.dumps({"outcome": "finished", "reward": 0.0, "turn_rewards": None})
            db.execute(
                "UPDATE rollouts SET state = 'trained', step = ?, reason = NULL, result = ? WHERE id = ?",
                (step, zero, lost),
            )
            event = (claimed + num_counted % 9 + 1, lost, step)
            db.execute(
                "INSERT INTO events (sequence, time, rollout_id, state, step) VALUES (?, 0, ?, 'claimed', ?)", event
            )
    assert num_counted > 0
    assert any(one.difference is not None for one in Relearning(run))


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
