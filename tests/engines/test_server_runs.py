"""A training run that samples with servers, one of which stops in the middle of it, or whose folder of weights is gone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import sparring
from sparring.assembly.policies import load_policy
from sparring.config import load_config
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import DiskError
from sparring.ledger import DiscardReason, Ledger
from sparring.run_folders import RunFolder
from sparring.web.listener import Listener
from tests.contracts.sglang_routes import SGLangRoutes

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase"
SETTINGS = (
    "model.trained_weights=lora",
    "model.lora_rank=4",
    "model.lora_alpha=8",
    "warm_start.num_demonstrations=64",
    "warm_start.steps=10",
    "warm_start.learning_rate=1e-2",
    "rollout.max_steps_off_policy=2",
    "rollout.rollout_max_concurrency=8",
    "batch.global_batch_size=2",
    "batch.group_size=4",
    "schedule.max_steps=4",
    "schedule.val_every=4",
    "evaluation.val_num_tasks=2",
    "evaluation.allow_zero_baseline=true",
)
NUM_TURNS = 8
"""The number of turns after which the first server stops."""


@contextmanager
def sglang_servers(num_turns: int = NUM_TURNS) -> Iterator[list[str]]:
    """Yield the addresses of two servers with the recipe's base model. The first one stops after `num_turns`."""
    policy = load_policy(load_config(RECIPE, SETTINGS), RECIPE)
    urls: list[str] = []
    is_ready, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        engines = [TorchEngine(policy, policy.snapshot(), kv_cache_tokens=16384) for _ in range(2)]
        servers = [SGLangRoutes(engine) for engine in engines]
        listeners = [Listener(server.app, "127.0.0.1", 0) for server in servers]
        for listener in listeners:
            await listener.start()
            urls.append(listener.base_url.removesuffix("/v1"))
        is_ready.set()
        while servers[0].num_turns < num_turns and not ended.is_set():  # noqa: ASYNC110 - the count has no event
            await asyncio.sleep(0.05)
        # It stops while it holds a turn.
        servers[0].faults["seconds"] = 60.0
        num_before = servers[0].num_requests
        while servers[0].num_requests == num_before and not ended.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await listeners[0].stop()
        await ended.wait()
        await listeners[1].stop()
        for engine in engines:
            await engine.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_ready.wait(60)
        yield urls
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
        loop.close()


def test_a_run_with_sglang_servers_trains_although_one_of_them_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 0.01)
    torch.set_num_threads(1)
    with sglang_servers() as urls:
        place = [f"engine.base_urls={urls}", "engine.type=sglang", f"run.runs_dir={tmp_path}"]
        with sparring.MultiTurnRLTrainer(RECIPE, overrides=[*SETTINGS, *place], check=False, quiet=True) as trainer:
            result = trainer.train()
    assert result is not None
    rows = [json.loads(line)["metrics"] for line in (result.run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [one for one in rows if "training/num_trajectories" in one]
    assert len(steps) == 4
    assert steps[-1]["engine/servers_up"] == 0.5
    assert sum(one["engine/retried_turns"] for one in steps) >= 1
    with Ledger(RunFolder(result.run).ledger) as ledger:
        assert ledger.verify(max_steps_off_policy=2) == []
        counts = ledger.counts("train")
        consumed = [id for ids in ledger.consumed().values() for id in ids]
        versions: Counter[Any] = Counter(
            number for id in consumed for turn in ledger.load_turns(id) for number, _ in turn.versions
        )
    assert len(consumed) == 4 * 8
    # Groups that had started for a step after the last one are the only rollouts that were not trained on.
    assert counts["discarded"] == counts.get(f"discarded/{DiscardReason.OPERATOR_CANCEL}", 0)
    assert len(versions) > 1


def test_a_run_whose_folder_of_adapters_is_gone_ends_and_is_resumed_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 0.01)
    torch.set_num_threads(1)
    shared = tmp_path / "shared"
    ended = threading.Event()

    def lose_folder() -> None:
        metrics = tmp_path / "runs" / "run" / "metrics.jsonl"
        while not (metrics.exists() and "training/num_trajectories" in metrics.read_text("utf-8")):
            if ended.wait(0.01):
                return
        shared.rename(tmp_path / "elsewhere")

    with sglang_servers(num_turns=10**9) as urls:
        place = [f"engine.base_urls={urls}", "engine.type=sglang", f"engine.adapters_dir={shared}"]
        changes = [*SETTINGS, *place, "schedule.save_every=1", f"run.runs_dir={tmp_path / 'runs'}"]
        thread = threading.Thread(target=lose_folder)
        thread.start()
        try:
            trainer = sparring.MultiTurnRLTrainer(RECIPE, overrides=changes, name="run", check=False, quiet=True)
            with trainer, pytest.raises(DiskError, match="its file system is mounted") as error:
                trainer.train()
        finally:
            ended.set()
            thread.join()
        assert error.value.exit_code == 4
        assert str(shared) in str(error.value)
        assert not shared.exists()
        run = RunFolder(tmp_path / "runs" / "run")
        assert run.status()["status"] == "failed"

        (tmp_path / "elsewhere").rename(shared)
        with sparring.MultiTurnRLTrainer.attach(run.path, quiet=True) as trainer:
            result = trainer.train(resume=True)
    assert result is not None
    assert (result.status, result.step) == ("completed", 4)
    with Ledger(run.ledger) as ledger:
        assert ledger.verify(max_steps_off_policy=2) == []
        assert sorted(ledger.consumed()) == [1, 2, 3, 4]
