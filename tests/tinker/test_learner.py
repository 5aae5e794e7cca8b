"""The learner on a service computes what the learner of this process computes, whatever the service's formula is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.errors import DataError, ServiceError
from sparring.models.adapter_files import AdapterShape
from sparring.models.tensor_files import write_weights
from sparring.tinker.formulas import FORMULAS, PLAIN, Formula, Plan
from sparring.tinker.learner import TinkerLearner, base_weights
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.training.sequences import build_demonstration_batch, with_values
from sparring.types import TrainingBatch, Weights
from tests.contracts.cases import ADAPTER, make_policy
from tests.tinker.fake_service import Deviations, FakeService
from tests.tinker.test_rows import FORK

ADAM = AdamWSettings(grad_clip_norm=0.0)
LESSON = build_demonstration_batch(
    [([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True]), ([1, 2, 9, 8, 7], [False, False, True, True, True])]
)
SKYRL = Formula(row="weights", whole="rows")


def make_service(**deviations: Any) -> FakeService:
    return FakeService(partial(make_policy, lora=True), ADAPTER, Deviations(**deviations))


OPENED: list[TinkerLearner] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def make_learner(service: FakeService, plan: Plan | None = None, **settings: Any) -> TinkerLearner:
    OPENED.append(TinkerLearner(service, **({"shape": ADAPTER, "plan": plan, "adam": ADAM} | settings)))
    return OPENED[-1]


def with_fields(batch: TrainingBatch) -> TrainingBatch:
    """The batch with advantages and weights of both signs, and log-probabilities of a slightly different policy."""
    random = torch.Generator().manual_seed(5)

    def draw(mask: tuple[bool, ...], mean: float, scale: float) -> tuple[float, ...]:
        values = (mean + scale * torch.randn(len(mask), generator=random)).tolist()
        return tuple(value if one else 0.0 for value, one in zip(values, mask, strict=True))

    return replace(
        batch,
        segments=tuple(
            replace(
                one,
                advantages=draw(one.mask, 0.0, 1.0),
                weights=draw(one.mask, 0.3, 0.05),
                sampled_logprobs=draw(one.mask, -4.0, 0.3),
            )
            for one in batch.segments
        ),
    )


def near_policy(batch: TrainingBatch) -> TrainingBatch:
    """The batch with sampled log-probabilities near those of the policy, on both sides of every clip."""
    exact = TorchLearner(make_policy(lora=True)).logprobs(batch)
    shifts = [0.5, -0.5, 0.05, -0.05, 0.3]
    return with_values(batch, [value + shifts[place % 5] for place, value in enumerate(exact)])


@pytest.mark.parametrize("formula", FORMULAS, ids=str)
def test_three_steps_equal_those_of_the_learner_in_this_process(formula: Formula) -> None:
    local = TorchLearner(make_policy(lora=True), adam=ADAM)
    served = make_learner(make_service(formula=formula), Plan(formula=formula))
    batch = near_policy(with_fields(FORK))
    for loss_fn, config in (
        ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        ("importance_sampling", {"off_policy_correction": "token_tis"}),
        ("gspo", {}),
    ):
        expected = local.forward_backward(batch, loss_fn, config) | local.optim_step(0.02)
        found = served.forward_backward(batch, loss_fn, config) | served.optim_step(0.02)
        for name in expected.keys() - {"training/entropy", "training/tokens", "training/update_size"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), (loss_fn, name)
        assert served.logprobs(batch) == pytest.approx(local.logprobs(batch), abs=2e-4), loss_fn


@pytest.mark.parametrize("loss_fn", ["ppo", "cispo", "gpg", "dppo_tv", "cross_entropy"])
def test_every_loss_has_the_gradient_of_the_learner_in_this_process(loss_fn: str) -> None:
    local, served = TorchLearner(make_policy(lora=True), adam=ADAM), make_learner(make_service())
    batch = near_policy(with_fields(FORK))
    config = (
        {"kl_coef": 0.1, "kl_form": "loss_k3", "policy_ratio": "three_policy"} if loss_fn != "cross_entropy" else {}
    )
    old = [value + 0.1 for value in local.logprobs(batch)]
    for learner in (local, served):
        learner.forward_backward(batch, loss_fn, config, old)
    norms = [learner.optim_step(0.0)["training/grad_norm"] for learner in (local, served)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert norms[0] > 0


def test_without_the_plan_the_gradient_of_a_normalizing_service_is_wrong() -> None:
    batch = near_policy(with_fields(FORK))
    norms = {}
    for name, plan in (("with", Plan(formula=SKYRL)), ("without", None)):
        learner = make_learner(make_service(formula=SKYRL), plan)
        learner.forward_backward(batch, "ppo", {})
        norms[name] = learner.optim_step(0.0)["training/grad_norm"]
    local = TorchLearner(make_policy(lora=True), adam=ADAM)
    local.forward_backward(batch, "ppo", {})
    exact = local.optim_step(0.0)["training/grad_norm"]
    assert norms["with"] == pytest.approx(exact, rel=1e-4)
    assert not 0.5 * exact < norms["without"] < 2 * exact


def test_a_step_takes_two_passes_and_the_last_one_is_sent_together_with_the_step() -> None:
    service = make_service()
    learner = make_learner(service)
    service.log.clear()
    learner.forward_backward(LESSON, "cross_entropy", {})
    assert service.log == ["forward 2"]
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.01)
    assert service.log == ["forward 2", "forward 2", "forward_backward 4 cross_entropy", "optim_step"]


def test_a_step_without_a_gradient_sends_nothing() -> None:
    service = make_service()
    learner = make_learner(service)
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.reset_optimizer()
    service.log.clear()
    assert learner.optim_step(0.01)["training/grad_norm"] == 0.0
    assert service.log == []


def test_a_checkpoint_names_the_state_on_the_service_and_contains_the_adapter(tmp_path: Path) -> None:
    service = make_service()
    learner = make_learner(service)
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.05)
    learner.export_state().write(tmp_path)
    facts = json.loads((tmp_path / "tinker.json").read_text())
    assert facts["state"] in service.stored
    assert facts["fingerprint"] == learner.export_weights().fingerprint
    assert facts["service"] == service.name

    other = make_learner(service)
    other.load_state(tmp_path)
    for one in (learner, other):
        one.forward_backward(LESSON, "cross_entropy", {})
        one.optim_step(0.05)
    assert other.export_weights().fingerprint == learner.export_weights().fingerprint
    # The replaced adapter is released, because a service has room for few.
    assert service.log.count("unload") == 1


def test_weights_of_a_checkpoint_are_loaded_from_their_state_without_moments(tmp_path: Path) -> None:
    from sparring.models.tensor_files import TensorFile

    learner = make_learner(make_service())
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.05)
    before = learner.export_weights()
    learner.export_state().write(tmp_path)
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.05)
    learner.load_weights(Weights(tensors=TensorFile(tmp_path / "weights.safetensors"), fingerprint=before.fingerprint))
    assert learner.export_weights().fingerprint == before.fingerprint


def test_weights_before_training_are_those_of_a_new_adapter(tmp_path: Path) -> None:
    learner = make_learner(make_service())
    first, logprobs = learner.export_weights().fingerprint, learner.logprobs(LESSON)
    for initial in (base_weights(tmp_path, "model"), make_policy(lora=True).snapshot()):
        learner.forward_backward(LESSON, "cross_entropy", {})
        learner.optim_step(0.05)
        assert learner.logprobs(LESSON) != pytest.approx(logprobs, abs=1e-3)
        learner.load_weights(initial)
        assert learner.export_weights().fingerprint == first
        assert learner.logprobs(LESSON) == pytest.approx(logprobs, abs=1e-6)


def test_weights_from_elsewhere_are_refused_and_change_nothing(tmp_path: Path) -> None:
    learner = make_learner(make_service())
    for _ in range(2):
        before = learner.export_weights()
        learner.forward_backward(LESSON, "cross_entropy", {})
        learner.optim_step(0.05)
    now = learner.export_weights().fingerprint
    foreign = {name: torch.ones_like(one) for name, one in before.tensors.items()}
    with pytest.raises(DataError, match="not trained by a Tinker service"):
        learner.load_weights(Weights(tensors=foreign, fingerprint="other"))
    with pytest.raises(DataError, match="stored these weights only for sampling"):
        learner.load_weights(before)
    with pytest.raises(DataError, match=r"no readable tinker\.json"):
        learner.load_state(tmp_path)
    assert learner.export_weights().fingerprint == now


def test_an_adapter_of_another_scale_is_refused() -> None:
    learner = make_learner(make_service(), shape=AdapterShape(rank=ADAPTER.rank, alpha=64))
    with pytest.raises(DataError, match=r"Set model\.lora_rank = 2 and model.lora_alpha = 4"):
        learner.export_weights()


def test_an_exported_adapter_is_that_of_a_policy_in_this_process(tmp_path: Path) -> None:
    learner = make_learner(make_service())
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.05)
    weights, policy = learner.export_weights(), make_policy(lora=True)
    write_weights(weights, tmp_path / "weights.safetensors")
    assert policy.misfit(weights.tensors) is None
    policy.restore(weights.tensors)
    assert TorchLearner(policy).logprobs(LESSON) == pytest.approx(learner.logprobs(LESSON), abs=1e-5)


def test_settings_that_a_service_cannot_follow_are_refused() -> None:
    with pytest.raises(DataError, match="lora_plus_lr_ratio = 1"):
        make_learner(make_service(), adam=replace(ADAM, lora_plus_lr_ratio=4.0))
    with pytest.raises(DataError, match="entropy_coef = 0"):
        make_learner(make_service()).forward_backward(with_fields(FORK), "ppo", {"entropy_coef": 0.1})


def test_a_service_that_is_gone_is_an_error_of_the_service() -> None:
    service = make_service()
    learner = make_learner(service)
    service.is_down = True
    with pytest.raises(ServiceError, match="cannot be reached"):
        learner.forward_backward(LESSON, "cross_entropy", {})


def test_a_service_that_reports_no_norms_leaves_out_the_metric() -> None:
    learner = make_learner(make_service(reports_norms=False, formula=PLAIN))
    learner.forward_backward(LESSON, "cross_entropy", {})
    assert "training/grad_norm" not in learner.optim_step(0.01)
