"""After each update the engine must compute with the weights that were published."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
import torch

from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ServiceError
from sparring.training.handshake import Handshake
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import EngineCapabilities, Weights

LESSON = build_demonstration_batch([([1, 2, 3, 4, 5, 6], [False, False, True, True, True, True])])


@dataclass
class Claims:
    """An engine that reports that it has loaded the weights, and computes with those it had, or with damaged ones."""

    engine: TorchEngine
    fingerprint: str = ""

    @property
    def capabilities(self) -> EngineCapabilities:
        return self.engine.capabilities

    async def logprobs(self, token_ids, temperature=1.0):
        return await self.engine.logprobs(token_ids, temperature)


def learned(learner: TorchLearner, rate: float = 0.05) -> Weights:
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(rate)
    return learner.export_weights()


def test_an_engine_that_took_the_weights_passes(tiny_policy) -> None:
    async def main() -> list[dict[str, float]]:
        learner = TorchLearner(tiny_policy(("q_proj",)))
        engine = TorchEngine(learner._policy, learner.export_weights(), kv_cache_tokens=256)
        handshake, found = Handshake(engine, learner), []
        for step, rate in ((1, 0.05), (2, 0.05), (3, 0.0)):
            weights = learned(learner, rate)
            await engine.load_weights(weights, version=step)
            found.append(await handshake.check(weights, step, LESSON))
        await engine.close()
        return found

    found = asyncio.run(main())
    assert max(one["training/probe_difference"] for one in found) < 1e-4
    # Before the first update nothing was asked; the third has a learning rate of 0.
    moved = [one.get("training/probe_change") for one in found]
    assert (moved[0], moved[2]) == (None, 0.0)
    assert moved[1] is not None
    assert moved[1] > 0.01


def test_an_engine_that_kept_the_old_weights_is_found_whatever_it_reports(tiny_policy) -> None:
    async def main() -> None:
        learner = TorchLearner(tiny_policy(("q_proj",)))
        engine = TorchEngine(learner._policy, learner.export_weights(), kv_cache_tokens=256)
        claims = Claims(engine)
        handshake = Handshake(claims, learner)  # type: ignore[arg-type]
        try:
            weights = learned(learner)
            await engine.load_weights(weights, version=1)
            claims.fingerprint = weights.fingerprint
            await handshake.check(weights, 1, LESSON)
            for _ in range(3):
                weights = learned(learner)
            claims.fingerprint = weights.fingerprint  # it reports them, and never received them
            with pytest.raises(ServiceError, match="still samples with the weights of the previous step"):
                await handshake.check(weights, 2, LESSON)
        finally:
            await engine.close()

    asyncio.run(main())


def test_weights_that_were_damaged_on_the_way_are_found(tiny_policy) -> None:
    async def main() -> None:
        learner = TorchLearner(tiny_policy(()))
        engine = TorchEngine(learner._policy, learner.export_weights(), kv_cache_tokens=256)
        handshake = Handshake(engine, learner)
        try:
            weights = learned(learner)
            damaged = {name: tensor + torch.randn_like(tensor) for name, tensor in weights.tensors.items()}
            await engine.load_weights(replace(weights, tensors=damaged), version=1)
            with pytest.raises(ServiceError, match="they compute with different weights"):
                await handshake.check(weights, 1, LESSON)
        finally:
            await engine.close()

    torch.manual_seed(0)
    asyncio.run(main())


def test_an_engine_that_names_other_weights_is_refused_before_anything_is_computed(tiny_policy) -> None:
    learner = TorchLearner(tiny_policy(("q_proj",)))
    claims = Claims(engine=None, fingerprint="others")  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match="reports that it samples with weights others"):
        asyncio.run(Handshake(claims, learner).check(learner.export_weights(), 1, LESSON))  # type: ignore[arg-type]
