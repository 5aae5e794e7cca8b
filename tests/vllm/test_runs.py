"""A training run that starts its vLLM servers itself, one of which is killed in the middle of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from sparring.ledger import DiscardReason, Ledger
from sparring.run_folders import RunFolder
from tests.vllm.conftest import ENVIRONMENT
from tests.vllm.processes import find_servers, kill

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "model.name=model:build_wide",
    "model.trained_weights=lora",
    "model.lora_rank=8",
    "model.lora_alpha=16",
    "warm_start.num_demonstrations=1280",
    "warm_start.steps=40",
    "rollout.max_steps_off_policy=2",
    "rollout.rollout_max_concurrency=16",
    "batch.global_batch_size=4",
    "batch.group_size=4",
    "schedule.max_steps=6",
    "schedule.val_every=6",
    "evaluation.val_num_tasks=8",
    "evaluation.allow_zero_baseline=true",
)


def steps_of(run: Path) -> list[dict[str, float]]:
    """Return the metrics of the steps that the run has finished."""
    path = run / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    found = [json.loads(line)["metrics"] for line in lines if line.endswith("}")]
    return [one for one in found if "training/num_trajectories" in one]


def test_a_killed_server_costs_a_run_nothing(tmp_path: Path) -> None:
    place = tmp_path / "place.toml"
    place.write_text(f'[engine]\ntype = "vllm"\nnum_servers = 2\nserver_environment = "{ENVIRONMENT}"\n', "utf-8")
    run = tmp_path / "runs" / "killed"
    command = ["train", "recipes/pointer_chase", "--no-check", "--on", str(place), *SETTINGS]
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sparring", *command, f"run.runs_dir={run.parent}", f"run.name={run.name}"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + 600
            while not steps_of(run) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            kill(find_servers(run / "engine" / "base")[0])
            code = process.wait(900)
        finally:
            process.kill()
    printed = (tmp_path / "output.txt").read_text("utf-8")
    assert code == 0, printed
    assert "waiting for 2 vLLM servers" in printed or "2 vLLM servers started" in printed
    assert find_servers(run / "engine" / "base") == []  # the servers stop with the run

    steps = steps_of(run)
    assert len(steps) == 6
    assert steps[-1]["engine/server_restarts"] == 1
    with Ledger(RunFolder(run).ledger) as ledger:
        assert ledger.verify(max_steps_off_policy=2) == []
        counts = ledger.counts("train")
        consumed = [id for ids in ledger.consumed().values() for id in ids]
        versions = Counter(number for id in consumed for turn in ledger.load_turns(id) for number, _ in turn.versions)
    assert len(consumed) == 6 * 16
    # Groups that had started for a step after the last one are the only rollouts that were not trained on.
    assert counts["discarded"] == counts.get(f"discarded/{DiscardReason.OPERATOR_CANCEL}", 0)
    assert len(versions) > 2  # asynchronous: turns of a batch were sampled with several versions
