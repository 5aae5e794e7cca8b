"""A trainer that is killed anywhere goes on, and ends with the weights of one that was not."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from sparring.faults import POINTS, Fault
from sparring.ledger import Ledger, RolloutState
from sparring.training import checkpoints
from tests.faults.training import Training

KILLS = [
    Fault(point, "kill", at=at)
    for point, at in {
        "step.claiming": 2, "step.claimed": 2, "learner.forward": 5, "learner.microbatch": 6, "learner.optimizing": 4,
        "learner.optimized": 5, "engine.loading": 3, "engine.loaded": 3, "ledger.committing": 60, "tracker.logging": 2,
        "checkpoint.staging": 3, "checkpoint.renaming": 3, "checkpoint.renamed": 3, "checkpoint.pruning": 3,
        "evaluation.playing": 3, "run.closing": 1,
    }.items()
]  # fmt: skip
assert {fault.point for fault in KILLS} <= POINTS.keys()


def fingerprint(training: Training) -> str:
    """Of everything that the last checkpoint holds: weights, optimizer, data order."""
    manifest = json.loads((checkpoints.newest(training.run / "checkpoints") / "manifest.json").read_text())
    return json.dumps(manifest, sort_keys=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(tmp_path_factory.mktemp("uninterrupted"))
    assert training.over() == 0
    return training


@pytest.mark.parametrize("fault", KILLS, ids=lambda fault: fault.point)
def test_a_kill_anywhere_changes_nothing_in_the_end(uninterrupted: Training, tmp_path: Path, fault: Fault) -> None:
    training = Training(tmp_path)
    assert training.over(fault, log=tmp_path / "faults") == -signal.SIGKILL
    assert (tmp_path / "faults").read_text() == f"{fault.point}=kill\n"
    with Ledger(training.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
    assert training.over(fault, log=tmp_path / "faults", resume=True) == 0
    assert fingerprint(training) == fingerprint(uninterrupted)
    with Ledger(training.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        trained = Counter(one.step for one in ledger.rollouts(state=RolloutState.TRAINED))
        counts = ledger.counts()
    # Of every step the episodes of one play, and no other.
    assert trained == dict.fromkeys(range(1, 5), 4)
    assert counts["planned_total"] == counts["trained"] + counts["discarded"] + counts["evaluated"]
