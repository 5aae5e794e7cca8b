"""`sparring verify` finds what is wrong with a run's ledger and checkpoints, also while the run writes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.config import load_config
from sparring.ledger import Ledger, RolloutState
from sparring.ledger.verification import verify_file
from sparring.run_folders import RunFolder
from sparring.training.checkpoint_files import write

CHASE = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "recipe.toml"


def fill(checkpoint: Path) -> None:
    (checkpoint / "state.json").write_text("{}")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two rollouts: one trained in step 1, whose checkpoint is there, and one that is played."""
    folder = RunFolder.create(load_config(CHASE, [f"run.runs_dir={tmp_path}"]), CHASE, name="one")
    write(folder.checkpoints, 1, fill)
    with Ledger(folder.path / "ledger.sqlite") as ledger:
        for name in ("a", "b"):
            ledger.plan_nowait(name, task_id="t", attempt=0)
        for state in ("LEASED", "RUNNING", "FINISHED", "SCORED", "ADMITTED"):
            ledger.advance_nowait("a", RolloutState[state])
        ledger.advance_nowait("a", RolloutState.CLAIMED, step=1)
        ledger.publish_nowait(1, "000001")
        ledger.advance_nowait("b", RolloutState.LEASED)
    return folder


def verify(run: RunFolder) -> Result:
    return CliRunner().invoke(app, ["verify", str(run.path), "--json"])


def test_a_sound_run_is_sound(run: RunFolder) -> None:
    result = verify(run)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["broken"] == []


def test_a_broken_invariant_is_named(run: RunFolder) -> None:
    with sqlite3.connect(run.path / "ledger.sqlite") as db:
        db.execute("DELETE FROM lineage")
    result = verify(run)
    assert result.exit_code == 3
    assert "rollout a: trained for step 1, but the run has no checkpoint" in result.stdout


def test_a_checkpoint_that_is_gone_is_named_unless_there_is_a_newer_one(run: RunFolder) -> None:
    gone = run.checkpoints / "000001"
    with Ledger(run.ledger) as ledger:
        write(
            run.checkpoints,
            3,
            fill,
            announce=lambda name, digest: ledger.announce_nowait(3, name, digest),
        )
    gone.rename(run.path / "elsewhere")
    assert verify(run).exit_code == 0
    shutil.rmtree(run.checkpoints / "000003")
    result = verify(run)
    assert result.exit_code == 3
    assert f"{gone} is missing, but the ledger's training up to step 1 depends on it" in result.output


def test_a_ledger_that_does_not_reach_the_runs_step_or_is_gone_is_named(run: RunFolder) -> None:
    run.set_status("stopped", step=2)
    result = verify(run)
    assert result.exit_code == 3
    assert "ledger.sqlite ends before step 2, which the run has taken" in result.stdout
    run.ledger.unlink()
    shutil.rmtree(run.checkpoints)
    assert "it has not run any episode yet" in verify(run).output
    run.record_training({"contents": {}}, {})
    assert "is missing, but the run has been trained" in verify(run).output


def test_a_damaged_checkpoint_is_named(run: RunFolder) -> None:
    (run.checkpoints / "000001" / "state.json").write_text("[]")
    result = verify(run)
    assert result.exit_code == 3
    assert "state.json does not have the hash" in result.stdout


def test_a_run_that_is_writing_is_seen_as_of_one_moment_and_does_not_wait(run: RunFolder) -> None:
    path = run.path / "ledger.sqlite"
    with sqlite3.connect(path, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")  # a commit in progress, of which half is written
        writer.execute("UPDATE rollouts SET state = 'running' WHERE id = 'b'")
        assert verify_file(path) == []
        writer.execute("ROLLBACK")
