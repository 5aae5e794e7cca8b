"""Answers of a service that lack numbers, or have others than were asked for, are errors of the service."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from sparring.errors import InfrastructureError, ServiceError
from sparring.tinker.adapter import Stored, convert
from sparring.tinker.engine import TinkerEngine
from sparring.tinker.learner import TinkerLearner, base_weights
from sparring.tinker.probe import probe
from sparring.tinker.sagemaker import SageMakerSampler
from sparring.tinker.sdk import SdkSampler
from sparring.tinker.service import Sample
from tests.contracts.cases import ADAPTER, CONTEXT, VOCAB, make_policy
from tests.contracts.scenarios import asked
from tests.tinker.fake_service import FakeService, FakeTrainer
from tests.tinker.test_learner import LESSON

Value = TypeVar("Value")
SERVICE = "the service"


class Answered:
    """An answer of an SDK that is there."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._found)
        return future

    def __await__(self) -> Any:
        return asyncio.wrap_future(self.future()).__await__()


def make_sampler(kind: str, found: Any) -> Any:
    """Return a sampler of this package, whose SDK returns `found`."""
    client = SimpleNamespace(sample=lambda *_: Answered(found), compute_logprobs=lambda *_: Answered(found))
    types = SimpleNamespace(ModelInput=SimpleNamespace(from_ints=list), SamplingParams=SimpleNamespace)
    service: Any = SimpleNamespace(
        name=SERVICE,
        sdk=types,
        _sdk=SimpleNamespace(types=types),
        _ask=lambda verb, send: send(),
        find_sampling_client=lambda path: client,
        failure=lambda verb, error: ServiceError(f"{SERVICE} failed at {verb}: {error!r}."),
    )
    return SdkSampler(service, client) if kind == "sdk" else SageMakerSampler(service, None)


def run(work: Coroutine[Any, Any, Value]) -> Value:
    return asyncio.run(work)


def sample(sampler: Any) -> Sample:
    return run(sampler.sample((1, 2), max_tokens=4, temperature=1.0, top_p=1.0, stop_ids=(), seed=0))


def sequence(logprobs: Any) -> Any:
    return SimpleNamespace(sequences=[SimpleNamespace(tokens=[3, 4], logprobs=logprobs, stop_reason="length")])


@pytest.mark.parametrize("kind", ["sdk", "sagemaker"])
def test_a_sampled_token_without_a_number_is_never_one_of_probability_1(kind: str) -> None:
    found = sample(make_sampler(kind, sequence([-1.0, math.nan])))
    assert found.logprobs[0] == -1.0
    assert math.isnan(found.logprobs[1])
    # Rounding may make a log-probability a little larger than 0.
    assert sample(make_sampler(kind, sequence([1e-7, -2.0]))).logprobs == (0.0, -2.0)
    for wrong in (sequence([None, -1.0]), SimpleNamespace(sequences=[])):
        with pytest.raises(ServiceError, match="failed at sample"):
            sample(make_sampler(kind, wrong))


@pytest.mark.parametrize("kind", ["sdk", "sagemaker"])
def test_scores_of_given_ids_are_aligned_or_refused(kind: str) -> None:
    for whole in ([None, -1.0, -2.0], [-1.0, -2.0]):
        assert run(make_sampler(kind, whole).logprobs((5, 6, 7))) == [-1.0, -2.0]
    for short in ([None, -1.0], [None, None, -1.0], []):
        with pytest.raises(ServiceError, match=r"returned \d log-probabilities of 3 given ids"):
            run(make_sampler(kind, short).logprobs((5, 6, 7)))


@pytest.mark.parametrize("logprobs", [(-1.0, math.nan), (-1.0, -math.inf), (-1.0,)])
def test_a_turn_without_a_finite_log_probability_of_each_id_is_lost(
    tmp_path: Path, logprobs: tuple[float, ...]
) -> None:
    class Wrong:
        async def sample(self, *_: Any, **__: Any) -> Sample:
            return Sample(token_ids=(3, 4), logprobs=logprobs, has_stopped=False)

    async def scenario() -> None:
        service: Any = FakeService(partial(make_policy, lora=True), ADAPTER)
        service.create_sampler = lambda path: Wrong()
        engine = TinkerEngine(service, weights=base_weights(tmp_path, "base"), max_context_tokens=CONTEXT)
        with pytest.raises(InfrastructureError, match="no finite log-probability for each of 2 sampled ids"):
            await engine.sample(asked())

    run(scenario())


def change_scores(monkeypatch: pytest.MonkeyPatch, change: Any) -> FakeService:
    score = FakeTrainer._score
    monkeypatch.setattr(FakeTrainer, "_score", lambda trainer, rows: change(score(trainer, rows)))
    return FakeService(partial(make_policy, lora=True), ADAPTER)


SHORT = {
    "fewer targets": lambda scores: [one[:-1] for one in scores],
    "more targets": lambda scores: [[*one, -1.0] for one in scores],
    "fewer rows": lambda scores: scores[:-1],
}


@pytest.mark.parametrize("change", SHORT.values(), ids=SHORT)
def test_a_pass_with_other_targets_than_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    service = change_scores(monkeypatch, change)
    with pytest.raises(ServiceError, match=r"the fake service returned .* log-probabilities"):
        probe(service, rank=ADAPTER.rank, vocabulary_size=VOCAB, samples=False)
    assert service.log[-1] == "unload"
    learner = TinkerLearner(service, shape=ADAPTER)
    with pytest.raises(ServiceError, match=r"the fake service returned .* log-probabilities"):
        learner.forward_backward(LESSON, "cross_entropy", {})
    learner.close()


def test_a_service_that_returns_no_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    service = change_scores(monkeypatch, lambda scores: [[math.nan] * len(one) for one in scores])
    with pytest.raises(ServiceError, match="returned log-probabilities that are not finite"):
        probe(service, rank=ADAPTER.rank, vocabulary_size=VOCAB, samples=False)


@pytest.mark.parametrize("damage", ["no rank", "no json", "cut header", "cut tensors"])
def test_a_damaged_adapter_is_an_error_of_the_service(tmp_path: Path, damage: str) -> None:
    service = FakeService(partial(make_policy, lora=True), ADAPTER)
    service.download(service.create(rank=ADAPTER.rank, seed=0).save_sampler("a"), tmp_path)
    source, config = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    if damage == "no rank":
        config.write_text(json.dumps({"peft_type": "LORA"}))
    elif damage == "no json":
        config.write_text("{")
    else:
        source.write_bytes(source.read_bytes()[: 20 if damage == "cut header" else -8])
    with pytest.raises(ServiceError, match="archive of path is damaged"):
        convert(tmp_path, tmp_path / "target", Stored(sampler="path"), ADAPTER)


def test_a_state_that_is_gone_is_named(tmp_path: Path) -> None:
    service = FakeService(partial(make_policy, lora=True), ADAPTER)
    learner = TinkerLearner(service, shape=ADAPTER)
    learner.export_state().write(tmp_path)
    service.stored.clear()
    with pytest.raises(ServiceError, match=r"no longer has fake://.*/state, continue from another checkpoint"):
        learner.load_state(tmp_path)
    learner.close()
