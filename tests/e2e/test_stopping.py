"""A trainer that is stopped in the middle of a computation, and goes on in the same process, ends as one that was not."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from sparring.ledger import Ledger, RolloutState
from sparring.runtime.faults import Fault, arm_for_block
from sparring.trainer import MultiTurnRLTrainer, TrainResult
from sparring.training import checkpoints

RECIPE = Path(__file__).parents[1] / "faults" / "recipe" / "recipe.toml"


def trainer_of(runs_dir: Path, *overrides: str) -> MultiTurnRLTrainer:
    settings = [f"run.runs_dir={runs_dir}", "schedule.save_every=1", *overrides]
    return MultiTurnRLTrainer(RECIPE, overrides=settings, name="run", check=False, quiet=True)


def trained(trainer: MultiTurnRLTrainer, *, resume: bool = False) -> TrainResult:
    result = trainer.train(resume=resume)
    assert result is not None
    return result


def fingerprint(run: Path) -> str:
    """Of everything that the last checkpoint holds: weights, optimizer, data order."""
    return (checkpoints.find_newest(run / "checkpoints") / "manifest.json").read_text()


def stopped(trainer: MultiTurnRLTrainer, fault: Fault, log: Path) -> TrainResult:
    """The result of a training that is stopped during a delay, and ends before the delay does."""
    with arm_for_block(fault, log=log):
        assert trainer.train(wait=False) is None
        deadline = time.monotonic() + 60
        while not log.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        trainer.stop()
        result = trainer.wait(60)
        assert time.monotonic() - began < fault.seconds
    assert result.status == "stopped"
    return result


@pytest.mark.parametrize(
    ("fault", "settings", "step"),
    [
        # The warm start has two optimizer steps; before the second one.
        (Fault("learner.optimizing", "delay", at=2, seconds=5.0), (), 0),
        # Two optimizer steps of the warm start, two of step 1; then between the two of step 2.
        (Fault("learner.optimized", "delay", at=5, seconds=7.0), ("algorithm.num_passes=2",), 1),
    ],
    ids=["warm start", "between two passes"],
)
def test_what_was_given_up_leaves_no_trace(tmp_path: Path, fault: Fault, settings: tuple[str, ...], step: int) -> None:
    with trainer_of(tmp_path / "whole", *settings) as trainer:
        whole = trained(trainer)
    with trainer_of(tmp_path / "part", *settings) as trainer:
        part = stopped(trainer, fault, tmp_path / "faults")
        assert part.step == step
        status = json.loads((part.run / "status.json").read_text())
        assert (status["status"], status["step"]) == ("stopped", step)
        assert trained(trainer, resume=True).step == 4
        assert fingerprint(part.run) == fingerprint(whole.run)


def test_where_play_runs_ahead_no_task_is_skipped_and_none_trained_twice(tmp_path: Path) -> None:
    # Two optimizer steps of the warm start, two of RL; before the third. Groups 4 and 5 are given up, and 6 to 9 in play.
    fault = Fault("learner.optimizing", "delay", at=5, seconds=5.0)
    with trainer_of(tmp_path, "rollout.max_steps_off_policy=2") as trainer:
        assert stopped(trainer, fault, tmp_path / "faults").step == 2
        run = trained(trainer, resume=True).run
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=2) == []
        places = Counter(
            (one.step, one.id.split("/")[1].rpartition("-")[2]) for one in ledger.rollouts(state=RolloutState.TRAINED)
        )
    # Two groups of three a step, in the order of the data.
    assert places == {(1 + place // 2, str(place)): 3 for place in range(8)}
