"""What every learner does, whatever it is made of and wherever it runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparring.errors import DataError
from sparring.models.policy import fingerprint
from sparring.models.tensor_files import TensorFile, write_weights
from sparring.protocols import Learner
from sparring.runtime.cancellable import run_cancellable
from sparring.training.sequences import build_demonstration_batch, with_values
from sparring.types import TrainingBatch, Weights
from tests.contracts.cases import LEARNERS, LearnerCase, LearnerCases, make_policy

LESSON = build_demonstration_batch(
    [
        ([1, 2, 3, 4, 5, 6], [False, False, True, True, False, True]),
        ([1, 2, 9, 8, 7], [False, False, True, True, True]),
        ([11, 12, 13, 14], [False, True, True, True]),
    ]
)
"""Nine trained tokens in three trajectories, in more than one microbatch."""


@pytest.fixture(scope="module", params=LEARNERS)
def cases(request: pytest.FixtureRequest) -> Iterator[LearnerCases]:
    torch.set_num_threads(1)
    with LEARNERS[request.param]() as opened:
        yield opened


@pytest.fixture(params=("adapter", "all_weights"))
def case(request: pytest.FixtureRequest, cases: LearnerCases) -> LearnerCase:
    found: LearnerCase | None = getattr(cases, request.param)
    if found is None:
        pytest.skip("it trains adapters only")
    return found


@pytest.fixture
def make(case: LearnerCase) -> Callable[[], Learner]:
    return case.make


@pytest.fixture
def learner(make: Callable[[], Learner]) -> Iterator[Learner]:
    learner = make()
    yield learner
    learner.close()


def step(learner: Learner, rate: float = 0.05, batch: TrainingBatch = LESSON) -> dict[str, float]:
    return learner.forward_backward(batch, "cross_entropy", {}) | learner.optim_step(rate)


def test_values_are_plain_numbers(learner: Learner) -> None:
    metrics = step(learner)
    assert all(type(name) is str and type(value) is float for name, value in metrics.items())
    assert {"training/loss", "training/tokens", "training/trained_tokens", "training/grad_norm"} <= metrics.keys()
    found = learner.logprobs(LESSON)
    assert len(found) == LESSON.num_trained_tokens == 9
    assert all(type(one) is float and one <= 0 for one in found)
    json.dumps(metrics)


def test_log_probabilities_are_in_segment_order_whatever_the_order_of_sequences(
    learner: Learner, case: LearnerCase
) -> None:
    found = learner.logprobs(LESSON)
    assert len({round(one, 4) for one in found}) > 5
    assert learner.logprobs(replace(LESSON, sequences=tuple(reversed(LESSON.sequences)))) == pytest.approx(
        found, abs=1e-5
    )
    policy = make_policy(lora=case.has_adapter)
    with torch.no_grad():
        logprobs = (
            policy.module(input_ids=torch.tensor([[11, 12, 13, 14]], device=policy.device)).logits[0].log_softmax(-1)
        )
    expected = [logprobs[place, token].item() for place, token in enumerate((12, 13, 14))]
    places = [place for place, one in enumerate(_trained_ids(LESSON)) if one in (12, 13, 14)]
    assert [found[place] for place in places] == pytest.approx(expected, abs=1e-5)


def test_a_step_moves_the_weights_and_no_copy_of_them(learner: Learner) -> None:
    before = learner.export_weights()
    assert learner.export_weights().fingerprint == before.fingerprint
    first = step(learner)["training/loss"]
    after = learner.export_weights()
    assert after.fingerprint != before.fingerprint
    assert fingerprint(dict(before.tensors)) == before.fingerprint
    assert fingerprint(dict(after.tensors)) == after.fingerprint
    assert learner.forward_backward(LESSON, "cross_entropy", {})["training/loss"] < first


def test_steps_below_the_rounding_of_bf16_change_the_weights(learner: Learner) -> None:
    before = learner.export_weights()
    # The first step of AdamW is about the learning rate, and a number near 0.3 in bf16 is a multiple of 0.001.
    step(learner, rate=1e-6)
    after = learner.export_weights()
    assert after.fingerprint != before.fingerprint
    changes = [(after.tensors[name].cpu() - one.cpu()).abs().max().item() for name, one in before.tensors.items()]
    assert max(changes) == pytest.approx(1e-6, rel=0.1)


def test_gradients_add_up_until_a_step(make: Callable[[], Learner]) -> None:
    first = with_weights(LESSON, lambda trajectory: trajectory == 0)
    rest = with_weights(LESSON, lambda trajectory: trajectory != 0)
    found = []
    for batches in ((first, rest), (LESSON,)):
        learner = make()
        for batch in batches:
            learner.forward_backward(batch, "cross_entropy", {})
        metrics = learner.optim_step(0.05)
        found.append((metrics["training/grad_norm"], learner.logprobs(LESSON)))
        learner.close()
    (norm, logprobs), (whole_norm, whole_logprobs) = found
    assert norm == pytest.approx(whole_norm, rel=1e-4)
    assert logprobs == pytest.approx(whole_logprobs, abs=1e-4)


def test_a_reset_deletes_gradients_and_moments(learner: Learner) -> None:
    step(learner)
    before = learner.export_weights().fingerprint
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.reset_optimizer()
    assert learner.optim_step(0.05)["training/grad_norm"] == 0.0
    assert learner.export_weights().fingerprint == before


def test_loaded_weights_are_the_current_ones(learner: Learner, case: LearnerCase) -> None:
    require_weights(case)
    before, logprobs = learner.export_weights(), learner.logprobs(LESSON)
    step(learner)
    assert learner.logprobs(LESSON) != pytest.approx(logprobs, abs=1e-3)
    learner.load_weights(before)
    assert learner.export_weights().fingerprint == before.fingerprint
    assert learner.logprobs(LESSON) == pytest.approx(logprobs, abs=1e-6)


def test_weights_cross_as_one_safetensors_file(learner: Learner, tmp_path: Path) -> None:
    step(learner)
    weights = learner.export_weights()
    write_weights(weights, tmp_path / "weights.safetensors")
    read = TensorFile(tmp_path / "weights.safetensors")
    assert fingerprint(read) == weights.fingerprint
    learner.load_weights(Weights(tensors=read, fingerprint=weights.fingerprint))
    assert learner.export_weights().fingerprint == weights.fingerprint


def test_weights_that_do_not_fit_are_refused_and_change_nothing(learner: Learner, case: LearnerCase) -> None:
    require_weights(case)
    before = learner.export_weights()
    tensors = dict(before.tensors)
    name = next(iter(tensors))
    tensors[name] = torch.zeros(1, 1)
    with pytest.raises(DataError, match=name.split(".")[-2]):
        learner.load_weights(Weights(tensors=tensors, fingerprint="other"))
    assert learner.export_weights().fingerprint == before.fingerprint


def test_a_restored_state_continues_bit_for_bit(make: Callable[[], Learner], tmp_path: Path) -> None:
    learner = make()
    step(learner)
    state = learner.export_state()
    step(learner)
    expected = learner.export_weights().fingerprint
    state.write(tmp_path)
    assert (tmp_path / "weights.safetensors").is_file()
    learner.close()
    other = make()
    step(other, rate=0.2)
    other.load_state(tmp_path)
    step(other)
    assert other.export_weights().fingerprint == expected
    other.close()


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    learner: Learner, case: LearnerCase, tmp_path: Path
) -> None:
    require_weights(case)
    step(learner)
    for folder in (tmp_path / "state", tmp_path / "unfit"):
        folder.mkdir()
        learner.export_state().write(folder)
    step(learner)
    expected = learner.export_weights().fingerprint
    tensors = dict(learner.export_weights().tensors)
    name = next(iter(tensors))
    tensors[name] = torch.zeros(1, 1)
    write_weights(Weights(tensors=tensors, fingerprint="other"), tmp_path / "unfit" / "weights.safetensors")
    learner.load_state(tmp_path / "state")
    with pytest.raises(DataError, match=name.split(".")[-2]):
        learner.load_state(tmp_path / "unfit")
    step(learner)
    assert learner.export_weights().fingerprint == expected


def test_the_reference_is_the_model_without_training(learner: Learner, case: LearnerCase) -> None:
    if not case.has_adapter:
        pytest.skip("with all weights in training, there is no model without training")
    before, start = learner.reference_logprobs(LESSON), learner.logprobs(LESSON)
    assert all(type(one) is float and one <= 0 for one in before)
    assert before == pytest.approx(start, abs=1e-5)  # a fresh adapter changes nothing
    step(learner, rate=0.3)
    assert learner.reference_logprobs(LESSON) == pytest.approx(before, abs=1e-6)
    assert learner.logprobs(LESSON) != pytest.approx(before, abs=1e-2)


def test_ratios_are_taken_against_the_log_probabilities_that_are_passed(learner: Learner) -> None:
    batch = with_advantages(with_values(LESSON, learner.logprobs(LESSON)))
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "policy_ratio": "three_policy",
              "off_policy_correction": "token_tis"}  # fmt: skip
    old = learner.logprobs(batch)
    assert learner.forward_backward(batch, "ppo", config, old)["training/clip_fraction"] == 0.0
    far = [one - 1.0 for one in old]
    learner.reset_optimizer()
    assert learner.forward_backward(batch, "ppo", config, far)["training/clip_fraction"] == 1.0


def test_a_loss_that_is_not_finite_is_refused_and_leaves_no_gradient(learner: Learner) -> None:
    before = learner.export_weights().fingerprint
    learner.forward_backward(LESSON, "cross_entropy", {})
    with pytest.raises(DataError, match="loss"):
        learner.forward_backward(with_values(LESSON, [-1e9] * 9), "importance_sampling", {})
    assert learner.optim_step(0.1)["training/grad_norm"] == 0.0
    assert learner.export_weights().fingerprint == before


def test_a_gradient_that_is_not_finite_is_refused_and_leaves_no_gradient(learner: Learner) -> None:
    before = learner.export_weights().fingerprint
    # The loss is about 1e31. The squares of the gradient are beyond the largest fp32 number, 3.4e38.
    segments = tuple(replace(one, weights=tuple(1e30 * float(w) for w in one.weights)) for one in LESSON.segments)
    learner.forward_backward(replace(LESSON, segments=segments), "cross_entropy", {})
    with pytest.raises(DataError, match="gradient"):
        learner.optim_step(0.1)
    assert learner.export_weights().fingerprint == before
    assert learner.optim_step(0.1)["training/grad_norm"] == 0.0
    assert learner.export_weights().fingerprint == before


def test_its_progress_is_counted(learner: Learner) -> None:
    before = learner.num_microbatches
    learner.forward_backward(LESSON, "cross_entropy", {})
    assert learner.num_microbatches - before >= 2


def test_a_computation_that_is_abandoned_changes_no_weights(learner: Learner) -> None:
    before = learner.export_weights().fingerprint
    # So many trajectories take several seconds, in as many microbatches.
    long = build_demonstration_batch([([1, 2, *range(3, 40)], [False] * 2 + [True] * 37) for _ in range(400)])

    def train() -> None:
        learner.forward_backward(long, "cross_entropy", {})
        learner.optim_step(0.1)

    async def scenario() -> float:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, stop.set)
        begun = time.monotonic()
        assert await run_cancellable(train, stop=stop, patience_seconds=0.0) is None
        return time.monotonic() - begun

    asyncio.run(scenario())
    learner.reset_optimizer()
    assert learner.export_weights().fingerprint == before


def require_weights(case: LearnerCase) -> None:
    if not case.takes_weights:
        pytest.skip("it takes no weights from elsewhere (tests/tinker/test_learner.py)")


def _trained_ids(batch: TrainingBatch) -> list[int]:
    return [
        token
        for segment in batch.segments
        for token, trained in zip(segment.token_ids, segment.mask, strict=True)
        if trained
    ]


def with_weights(batch: TrainingBatch, keeps: Callable[[int], bool]) -> TrainingBatch:
    """The batch with a weight of 0 on the tokens of the trajectories that are not kept."""
    owner = {index: place for place, one in enumerate(batch.sequences) for index in one.segments[-1:]}
    segments = tuple(
        segment
        if index not in owner or keeps(owner[index])
        else replace(segment, weights=(0.0,) * len(segment.weights))
        for index, segment in enumerate(batch.segments)
    )
    return replace(batch, segments=segments)


def with_advantages(batch: TrainingBatch) -> TrainingBatch:
    """The batch with an advantage of 1 for each trained token."""
    segments = tuple(replace(one, advantages=tuple(float(trained) for trained in one.mask)) for one in batch.segments)
    return replace(batch, segments=segments)
