"""A run in worker processes is the run without them, and goes on when they die."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.run_folders.stored import read_trajectories
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import checkpoints
from tests.workers.machine import machine
from tests.workers.test_workers import wait_until

RECIPE = Path(__file__).parent / "recipe" / "recipe.toml"


def trained(runs_dir: Path, *overrides: str) -> Path:
    """The folder of a finished run."""
    trainer = MultiTurnRLTrainer(
        RECIPE, overrides=[f"run.runs_dir={runs_dir}", *overrides], name="run", check=False, quiet=True
    )
    trainer.train()
    trainer.close()
    return runs_dir / "run"


def fingerprint(run: Path) -> str:
    """Of everything that the last checkpoint holds: weights, optimizer, data order."""
    return (checkpoints.find_newest(run / "checkpoints") / "manifest.json").read_text()


def test_the_same_run_reaches_the_same_weights_with_workers_and_without(tmp_path: Path) -> None:
    here, there = (trained(tmp_path / str(num), f"environment.workers={num}") for num in (0, 2))
    assert fingerprint(here) == fingerprint(there)
    for step in (1, 2):
        here_played, there_played = (
            read_trajectories(run / f"trajectories/train-{step}.jsonl") for run in (here, there)
        )
        for one, other in zip(here_played, there_played, strict=True):
            # An environment opens each, so that its message has to arrive here.
            assert one.messages[0]["content"] == f"{one.task.id} of 2?"
            assert one.messages == other.messages
            assert (one.reward, one.score, one.score_parts) == (other.reward, other.score, other.score_parts)
            assert one.final_state == other.final_state


def test_a_run_with_workers_on_two_machines_reaches_the_same_weights(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    here = trained(tmp_path / "here", "environment.workers=0")
    cache, without_key = tmp_path / "cache", {"SPARRING_API_KEY": ""}
    with (
        machine(address, "--processes", "1", cache=cache, variables=without_key) as first,
        machine(address, "--processes", "1", cache=cache, variables=without_key) as second,
    ):
        there = trained(tmp_path / "there", f"environment.listen={address}")
        # The run does not wait for the second one, which may come after its end.
        wait_until(lambda: any("has ended or cannot be reached" in one.output for one in (first, second)), 60)
    assert fingerprint(here) == fingerprint(there)
    with Ledger(there / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []


def test_a_run_goes_on_when_a_worker_is_killed_and_discards_what_that_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inherited by workers; this process reads it only when it starts.
    monkeypatch.setenv("SPARRING_FAULTS", "worker.answering=kill,at=30")
    monkeypatch.setenv("SPARRING_FAULTS_LOG", str(tmp_path / "faults.txt"))
    run = trained(tmp_path, "environment.workers=1")
    assert (tmp_path / "faults.txt").read_text() == "worker.answering=kill\n"
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
        rollouts = ledger.rollouts(split="train")
    lost = [one for one in rollouts if one.state is RolloutState.DISCARDED]
    assert {one.reason for one in lost} == {DiscardReason.INFRA_ERROR}
    assert all("was ended by SIGKILL" in str(one.detail) for one in lost)
    # 2 steps of 2 groups of 3: none is missing, since each lost one was run again.
    assert sum(one.state is RolloutState.TRAINED for one in rollouts) == 12
