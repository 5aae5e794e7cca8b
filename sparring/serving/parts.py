"""Serve the engine or the learner of a recipe in a separate process, for a run in another process or on another
machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from sparring.assembly import build_engine, build_learner, load_algorithm, load_policy
from sparring.config import Config
from sparring.engines.server import ServedModel, engine_app
from sparring.models.precision import resolve_device
from sparring.run_folders.recipe_files import find_code_folder
from sparring.runtime import interrupts
from sparring.runtime.allocator import return_large_blocks
from sparring.runtime.machine import default_threads
from sparring.training.learner import TorchLearner
from sparring.training.rank import RankLearner
from sparring.training.server import learner_app
from sparring.web.listener import Listener


def serve_engine(
    recipe: Path, config: Config, *, host: str, port: int, api_key: str | None, on_ready: Callable[[str], None]
) -> None:
    """Serve the engine of a recipe's model, with untrained weights, until interrupted.

    `on_ready` receives the address. Raises ServiceError if the model cannot be loaded or the address is in use.
    """
    torch.set_num_threads(config.run.num_threads or default_threads())
    policy = load_policy(config, find_code_folder(recipe))
    weights = policy.snapshot()
    model = ServedModel(
        device=str(policy.device), weights=weights, base_fingerprint=partial(policy.base_fingerprint, weights)
    )
    app = engine_app(build_engine(config, policy, weights), api_key=api_key, model=model)
    interrupts.run(_serve(Listener(app, host, port), on_ready))


def serve_learner(
    recipe: Path,
    config: Config,
    *,
    host: str,
    port: int,
    api_key: str | None,
    on_ready: Callable[[str], None],
    shards_weights: bool = False,
) -> None:
    """Serve the learner of a recipe's model until interrupted. With `shards_weights`, the ranks of a group divide the
    weights. Raises the same errors as `serve_engine`."""
    torch.set_num_threads(config.run.num_threads or default_threads())
    folder = find_code_folder(recipe)
    algorithm = load_algorithm(config, folder)
    # A model that does not fit the device is loaded into the main memory first.
    device = resolve_device(config.model.device)
    if shards_weights:
        return_large_blocks()

    def load() -> TorchLearner:
        policy = load_policy(config, folder, device="cpu" if shards_weights else device)
        if shards_weights:
            policy.check_sharding()
        return build_learner(config, policy, algorithm)

    learner = RankLearner(load, shards_weights=shards_weights, device_type=device.partition(":")[0])
    interrupts.run(_serve(Listener(learner_app(learner, api_key=api_key), host, port), on_ready))


async def _serve(listener: Listener, on_ready: Callable[[str], None]) -> None:
    await listener.start()
    try:
        on_ready(listener.base_url.removesuffix("/v1"))
        await asyncio.Event().wait()
    finally:
        await listener.stop()
