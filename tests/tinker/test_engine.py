"""What the engine on a service does apart from the contract of all engines (tests/contracts)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sparring.errors import DataError, InfrastructureError
from sparring.models.tensor_files import TensorFile
from sparring.tinker.engine import TinkerEngine
from sparring.tinker.learner import TinkerLearner, base_weights
from sparring.types import Completion, StopReason, Weights
from tests.contracts.cases import ADAPTER, CONTEXT, LETTERS, make_policy
from tests.contracts.scenarios import asked
from tests.tinker.fake_service import Deviations, FakeService
from tests.tinker.test_learner import LESSON


def make_service(deviations: Deviations = Deviations()) -> FakeService:  # noqa: B008
    return FakeService(partial(make_policy, lora=True), ADAPTER, deviations)


def open_engine(service: FakeService, weights: Weights) -> TinkerEngine:
    return TinkerEngine(service, weights=weights, max_context_tokens=CONTEXT, decode=LETTERS.decode)


def test_an_answer_ends_with_the_token_that_completes_a_stop_text(tmp_path: Path) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        engine = open_engine(make_service(), base_weights(tmp_path, "base"))
        whole = await engine.sample(asked(max_tokens=8))
        text = LETTERS.decode(whole.token_ids[2:4])
        stopped = await engine.sample(asked(max_tokens=8, stop_texts=(text,)))
        await engine.close()
        return whole, stopped

    whole, stopped = asyncio.run(scenario())
    assert stopped.token_ids == whole.token_ids[:4]
    assert stopped.sampled_logprobs == whole.sampled_logprobs[:4]
    assert stopped.stop_reason is StopReason.STOP


def test_the_base_model_is_sampled_before_training_and_later_versions_after(tmp_path: Path) -> None:
    service = make_service()
    learner = TinkerLearner(service, shape=ADAPTER)
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.3)

    async def scenario() -> tuple[list[float], list[float]]:
        engine = open_engine(service, base_weights(tmp_path, "base"))
        before = await engine.logprobs([1, 2, 9, 8, 7])
        await engine.load_weights(learner.export_weights(), 1)
        after = await engine.logprobs([1, 2, 9, 8, 7])
        await engine.close()
        return before, after

    before, after = asyncio.run(scenario())
    assert sum(after) > sum(before) + 0.1
    learner.close()


def test_weights_that_no_service_trained_are_refused() -> None:
    with pytest.raises(DataError, match="not trained by a Tinker service"):
        open_engine(make_service(), make_policy(lora=True).snapshot())


@pytest.mark.parametrize("forgets", [False, True])
def test_weights_of_a_checkpoint_are_sampled_after_their_adapter_was_unloaded(tmp_path: Path, forgets: bool) -> None:
    service = make_service(Deviations(forgets_adapters=forgets))
    learner = TinkerLearner(service, shape=ADAPTER)
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.3)
    learner.export_state().write(tmp_path)
    expected = learner.logprobs(LESSON)
    learner.close()
    weights = Weights(tensors=TensorFile(tmp_path / "weights.safetensors"), fingerprint="f")

    async def scenario() -> list[float]:
        engine = open_engine(service, base_weights(tmp_path, "base"))
        await engine.load_weights(weights, 1)
        assert (await engine.sample(asked())).fingerprint == "f"
        scored = await engine.logprobs([1, 2, 9, 8, 7])
        await engine.close()
        return scored

    assert asyncio.run(scenario())[1:] == pytest.approx(expected[3:], abs=1e-5)
    # The restored adapter is released with the engine.
    assert service.log.count("restore") == int(forgets)
    assert service.log.count("unload") == 1 + int(forgets)


def test_an_answer_that_lacks_its_stop_id_is_not_used(tmp_path: Path) -> None:
    service = make_service()
    engine = open_engine(service, base_weights(tmp_path, "base"))
    inner = service.create_sampler(None)

    class Cut:
        async def sample(self, prompt_ids: object, **options: object) -> object:
            return replace(await inner.sample((1, 2), **{**options, "max_tokens": 3}), has_stopped=True)  # type: ignore[arg-type]

    async def scenario() -> None:
        service.create_sampler = lambda path: Cut()  # type: ignore[method-assign, assignment, return-value]
        await engine.load_weights(base_weights(tmp_path, "base"), 1)
        with pytest.raises(InfrastructureError, match="the sampled stop id is missing"):
            await engine.sample(asked(stop_ids=frozenset({59})))

    asyncio.run(scenario())
