"""A trainer that is killed anywhere goes on, and ends with the weights of one that was not."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from sparring.ledger import Ledger, RolloutState
from sparring.reproduce.updates import Relearning
from sparring.run_folders.stored import read_metrics
from sparring.runtime.faults import POINTS, Fault
from sparring.training import checkpoints
from tests.faults.training import Training

KILLS = [
    Fault(point, "kill", at=at)
    for point, at in {
        "step.claiming": 2, "step.claimed": 2, "learner.forward": 4, "learner.microbatch": 4, "learner.optimizing": 3,
        "learner.optimized": 3, "engine.loading": 3, "engine.loaded": 3, "ledger.committing": 20, "tracker.logging": 2,
        "checkpoint.staging": 3, "checkpoint.renaming": 3, "checkpoint.renamed": 3, "checkpoint.pruning": 2,
        "evaluation.playing": 3, "run.closing": 1,
    }.items()
]  # fmt: skip
NUM_SEEDS = int(os.environ.get("FAULT_SEEDS", "1"))
assert {fault.point for fault in KILLS} <= POINTS.keys()


def fingerprint(training: Training) -> str:
    """Of everything that the last checkpoint holds: weights, optimizer, data order."""
    manifest = json.loads((checkpoints.find_newest(training.run / "checkpoints") / "manifest.json").read_text())
    return json.dumps(manifest, sort_keys=True)


@pytest.fixture(scope="module", params=range(NUM_SEEDS), ids=lambda seed: f"seed {seed}")
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(tmp_path_factory.mktemp("uninterrupted"), (f"run.seed={request.param}",))
    assert training.over() == 0
    return training


def read_charts(training: Training) -> list[tuple[int, float, float | None]]:
    """Return what the charts of a run show: of each step its number, reward and loss."""
    metrics, _ = read_metrics(training.run / "metrics.jsonl")
    return [(step, one["rollout/reward/mean"], one.get("training/loss")) for step, one in metrics.items() if step > 0]


@pytest.mark.parametrize("fault", KILLS, ids=lambda fault: fault.point)
def test_a_kill_anywhere_changes_nothing_in_the_end(uninterrupted: Training, tmp_path: Path, fault: Fault) -> None:
    training = Training(tmp_path, uninterrupted.overrides)
    assert training.over(fault, log=tmp_path / "faults") == -signal.SIGKILL
    assert (tmp_path / "faults").read_text() == f"{fault.point}=kill\n"
    with Ledger(training.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
    assert training.over(fault, log=tmp_path / "faults", resume=True) == 0
    assert fingerprint(training) == fingerprint(uninterrupted)
    assert read_charts(training) == read_charts(uninterrupted)
    with Ledger(training.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        trained = Counter(one.step for one in ledger.rollouts(state=RolloutState.TRAINED))
        counts = ledger.counts()
    # Of every step the episodes of one play, and no other.
    assert trained == dict.fromkeys(range(1, 5), 6)
    assert counts["planned_total"] == counts["trained"] + counts["discarded"] + counts["evaluated"]


def test_a_run_whose_play_runs_ahead_skips_no_task_and_trains_what_was_played_before(tmp_path: Path) -> None:
    # Two steps ahead and two groups a step: when step 3 is claimed (groups 4 and 5), groups 6 to 9 are in play. The checkpoint is
    # of step 2. First in, first out: what is trained must be groups 0 to 7, each once.
    # The checkpoint is written meanwhile: the delay is longer than that takes.
    faults = (Fault("step.claiming", "delay", at=3, seconds=3.0), Fault("step.claimed", "kill", at=3))
    training = Training(tmp_path, ("rollout.max_steps_off_policy=2",))
    assert training.over(*faults, log=tmp_path / "faults") == -signal.SIGKILL
    assert training.over(*faults, log=tmp_path / "faults", resume=True) == 0
    with Ledger(training.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=2) == []
        trained = ledger.rollouts(state=RolloutState.TRAINED)
        counts = ledger.counts()
    places = Counter((one.step, one.id.split("/")[1].rpartition("-")[2]) for one in trained)
    assert places == {(1 + place // 2, str(place)): 3 for place in range(8)}
    # What it was trained on leads from the warm start to its last checkpoint.
    relearned = list(Relearning(training.run))
    assert [one.step for one in relearned] == [0, 1, 2, 3, 4]
    assert all(one.difference is None for one in relearned)
    assert "checkpoint" in relearned[-1].recorded
    # What step 3 was to be trained on was played before the crash, by weights that the checkpoint knows.
    assert {one.id.split("/")[1] for one in trained if one.step == 3} == {"4", "5"}
    assert counts["planned_total"] == counts["trained"] + counts["discarded"] + counts["evaluated"]
