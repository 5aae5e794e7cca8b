"""A run whose learner is a group of processes, which the run starts itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

import sparring
from sparring.config import read_place
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase"
SETTINGS = (
    "warm_start.num_demonstrations=64",
    "warm_start.steps=6",
    "warm_start.learning_rate=1e-2",
    "batch.global_batch_size=2",
    "batch.group_size=4",
    "schedule.max_steps=4",
    "schedule.val_every=4",
    "schedule.save_every=2",
    "evaluation.val_num_tasks=2",
    "evaluation.allow_zero_baseline=true",
    "run.num_threads=1",
    # Every step learns from nearly all episodes.
    "reward.reward=environment:shuffled_reward",
)


def train(folder: Path, name: str, *more: str, place: str | None = None, kill: bool = False) -> list[dict[str, float]]:
    """Train a run, and return the metrics of its steps. With `kill`, kill a rank after the first step."""
    overrides = [*SETTINGS, *more, f"run.runs_dir={folder}"]
    if place is not None:
        file = folder / f"{name}.toml"
        file.write_text(place, "utf-8")
        overrides = [*read_place(file).overrides(RECIPE / "recipe.toml", overrides), *overrides]
    run, ended = folder / name, threading.Event()
    killer = threading.Thread(target=kill_a_rank, args=(run, ended), daemon=True)
    if kill:
        killer.start()
    try:
        with sparring.MultiTurnRLTrainer(RECIPE, overrides=overrides, name=name, check=False, quiet=True) as trainer:
            trainer.train()
    finally:
        ended.set()
    rows = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    with Ledger(RunFolder(run).ledger) as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []
    return [one for one in rows if "training/num_trajectories" in one]


def kill_a_rank(run: Path, ended: threading.Event) -> None:
    while not ended.wait(0.05):
        metrics = run / "metrics.jsonl"
        if metrics.exists() and "training/num_trajectories" in metrics.read_text("utf-8"):
            os.kill(find_ranks(run)[1], signal.SIGKILL)
            return


def find_ranks(run: Path) -> list[int]:
    """Return the ids of the processes that serve the ranks of a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if command[1:5] == ["-P", "-m", "sparring", "learner"] and command[5].startswith(str(run)):
            found.append(int(process.name))
    return sorted(found)


@contextmanager
def rank_processes(number: int, *, recipe: Path, settings: Sequence[str]) -> Iterator[list[str]]:
    """Start ranks with the documented command, and yield their addresses."""
    command = [sys.executable, "-m", "sparring", "learner", str(recipe), *settings, "--port", "0", "--json"]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) for _ in range(number)
        ]
        for process in processes:
            stack.callback(process.kill)
        urls: list[str] = []
        for process in processes:
            assert process.stdout is not None
            document = "".join(process.stdout.readline() for _ in range(3))
            urls.append(json.loads(document)["base_url"])
        yield urls


GROUP = '[learner]\ntype = "group"\nnum_ranks = 2\nrank_timeout = 30\n'


def test_a_run_with_two_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone = train(tmp_path, "alone")
    group = train(tmp_path, "group", place=GROUP)
    assert [one["training/ranks"] for one in group] == [2.0] * 4
    for name in ("training/loss", "training/grad_norm", "training/trained_tokens", "rollout/reward/mean"):
        assert [one[name] for one in group] == pytest.approx([one[name] for one in alone], abs=1e-4, rel=1e-4)
    assert wait_for_end_of_ranks(tmp_path / "group")


def test_a_run_uses_ranks_that_run_already(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    with rank_processes(2, recipe=RECIPE, settings=SETTINGS) as urls:
        place = f'[learner]\ntype = "group"\nbase_urls = {json.dumps(urls)}\n'
        steps = train(tmp_path, "by-address", place=place)
        assert [one["training/ranks"] for one in steps] == [2.0] * 4


def test_a_run_goes_on_when_a_rank_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.set_num_threads(1)
    steps = train(tmp_path, "killed", place=GROUP, kill=True)
    assert len(steps) == 4
    assert 1.0 in [one["training/ranks"] for one in steps]
    assert "goes on with 1 ranks" in caplog.text


@pytest.mark.parametrize("more", ["", "shard_weights = true\n"], ids=["replicated", "sharded"])
def test_a_run_that_needs_all_ranks_waits_until_a_killed_one_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: str
) -> None:
    torch.set_num_threads(1)
    adapter = ["model.trained_weights=lora"] if more else []
    alone = train(tmp_path, "alone", *adapter)
    steps = train(
        tmp_path, "killed", *adapter, place=f"{GROUP}{more}min_ranks = 2\n".replace("= 30", "= 120"), kill=True
    )
    assert [one["training/ranks"] for one in steps] == [2.0] * 4
    assert "was started again, and the learner goes on with 2 ranks" in caplog.text
    for name in ("training/loss", "training/grad_norm"):
        assert [one[name] for one in steps] == pytest.approx([one[name] for one in alone], abs=1e-4, rel=1e-4)


def test_a_run_with_divided_weights_is_that_of_one_process_and_its_checkpoint_loads_there(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone = train(tmp_path, "alone")
    group = train(tmp_path, "group", place=f"{GROUP}shard_weights = true\n")
    for name in ("training/loss", "training/grad_norm", "training/update_size", "rollout/reward/mean"):
        assert [one[name] for one in group] == pytest.approx([one[name] for one in alone], abs=1e-4, rel=1e-4)
    overrides = ["learner.type=here", "schedule.max_steps=6"]
    with sparring.MultiTurnRLTrainer.attach(tmp_path / "group", overrides=overrides, quiet=True) as trainer:
        result = trainer.train(resume=True)
    assert result is not None
    assert result.step == 6


def wait_for_end_of_ranks(run: Path, seconds: float = 15.0) -> bool:
    end = time.monotonic() + seconds
    while find_ranks(run):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
