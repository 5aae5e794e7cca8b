"""Training sessions of SageMaker, against the recorded shapes of its requests, its answers and its SDK.

The service cannot be reached from a test. With SPARRING_TEST_SAGEMAKER, a folder with the package `sagemaker-train`, the real SDK
sends the requests over HTTP to a server that answers in the recorded shapes; otherwise a stand-in with its arguments does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.config import load_config
from sparring.errors import ConfigError, InfrastructureError, ServiceError
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import LoraSettings, Policy
from sparring.tinker.engine import TinkerEngine
from sparring.tinker.formulas import Formula, Plan
from sparring.tinker.learner import TinkerLearner, base_weights
from sparring.tinker.metered import MeteredService
from sparring.tinker.probe import probe
from sparring.tinker.sagemaker import BOUNDS, LARGEST_EPS, LEAST_SAMPLED, SageMakerService
from sparring.tinker.service import AdamStep
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.types import Completion
from tests.contracts.cases import ADAPTER, CONTEXT, LETTERS, VOCAB, make_policy
from tests.contracts.scenarios import asked
from tests.tinker.fake_service import Deviations, FakeService
from tests.tinker.sagemaker.backend import MODEL, MOST_SAMPLED, ROLE, Backend
from tests.tinker.sagemaker.shapes import RUNTIME
from tests.tinker.sagemaker.standin import build
from tests.tinker.test_learner import near_policy, with_fields
from tests.tinker.test_rows import FORK

ROOT = Path(__file__).parents[3]
REAL_SDK = os.environ.get("SPARRING_TEST_SAGEMAKER")
ADAM = AdamWSettings(grad_clip_norm=0.0)
STOP_ID = 7
WIDE = AdapterShape(rank=128, alpha=8)


def make_backend(monkeypatch: pytest.MonkeyPatch, **deviations: Any) -> Backend:
    """Put the stand-ins for the SDK and for boto3 in place, and return what answers them."""
    service = FakeService(partial(make_policy, lora=True), ADAPTER, Deviations(**deviations))
    backend = Backend(service, STOP_ID)
    sdk = build(backend)
    train = SimpleNamespace(training_session=sdk)
    monkeypatch.setitem(sys.modules, "sagemaker", SimpleNamespace(train=train))
    monkeypatch.setitem(sys.modules, "sagemaker.train", train)
    monkeypatch.setitem(sys.modules, "boto3", SimpleNamespace(client=partial(open_client, backend)))
    return backend


def open_client(backend: Backend, name: str) -> Any:
    """Return a client of the control plane, or of S3 with the adapters of all model packages."""
    if name == "sagemaker":
        return SimpleNamespace(describe_model_package=lambda **named: backend.call("DescribeModelPackage", named))

    def paginate(*, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        assert Bucket == "bucket"
        yield {}
        yield {"Contents": [{"Key": f"{Prefix}a/{name}"} for name in ("notes", "adapter_model.safetensors")]}
        yield {"Contents": [{"Key": f"{Prefix}a/adapter_config.json"}]}

    def download_file(bucket: str, key: str, target: str) -> None:
        (arn,) = [one for one in backend.packages if one.rpartition("/")[2] == key.split("/")[0]]
        folder = Path(target).parent / "all"
        folder.mkdir(exist_ok=True)
        backend.service.download(backend.packages[arn], folder)
        (folder / Path(key).name).rename(target)

    return SimpleNamespace(get_paginator=lambda verb: SimpleNamespace(paginate=paginate), download_file=download_file)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    return make_backend(monkeypatch)


def connect(shape: AdapterShape = ADAPTER) -> SageMakerService:
    return SageMakerService(model=MODEL, role_arn=ROLE, shape=shape)


@pytest.mark.parametrize("formula", [Formula(), Formula(row="weights", whole="rows")], ids=["sum", "normalized"])
def test_three_steps_equal_those_of_the_learner_in_this_process(
    monkeypatch: pytest.MonkeyPatch, formula: Formula
) -> None:
    backend = make_backend(monkeypatch, formula=formula)
    local = TorchLearner(make_policy(lora=True), adam=ADAM)
    served = TinkerLearner(connect(), shape=ADAPTER, plan=Plan(formula=formula), adam=ADAM)
    batch = near_policy(with_fields(FORK))
    for loss_fn in ("ppo", "importance_sampling", "gspo"):
        expected = local.forward_backward(batch, loss_fn, {}) | local.optim_step(0.01)
        found = served.forward_backward(batch, loss_fn, {}) | served.optim_step(0.01)
        for name in ("training/loss", "training/grad_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), (loss_fn, name)
        assert served.logprobs(batch) == pytest.approx(local.logprobs(batch), abs=2e-4), loss_fn
    served.close()
    assert backend.log[-1] == "stop"
    # The log-probabilities before the first step are those of the base model. After each step, the weights are stored once.
    assert backend.log.count("saveWeights") == 3
    assert "forward" not in backend.log


def test_weights_and_states_are_model_packages(backend: Backend, tmp_path: Path) -> None:
    service, batch = connect(), near_policy(with_fields(FORK))
    learner = TinkerLearner(service, shape=ADAPTER, adam=ADAM)
    learner.forward_backward(batch, "ppo", {})
    learner.optim_step(0.01)
    weights = learner.export_weights()
    assert any(one.any() for name, one in weights.tensors.items() if ".lora_B." in name)
    learner.export_state().write(tmp_path)
    assert json.loads((tmp_path / "tinker.json").read_text("utf-8"))["state"] in backend.packages

    other = TinkerLearner(service.share(), shape=ADAPTER, adam=ADAM)
    other.load_state(tmp_path)
    for one in (learner, other):
        one.forward_backward(batch, "ppo", {})
        one.optim_step(0.01)
    assert other.logprobs(batch) == pytest.approx(learner.logprobs(batch), abs=1e-5)
    learner.close()
    assert service.is_open
    other.close()
    assert not any(session.is_running for session in backend.sessions.values())


def make_wide_policy() -> Policy:
    """Return a policy whose gradient has so many components that each is small."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, tie_word_embeddings=True, initializer_range=0.05,
    )  # fmt: skip
    lora = LoraSettings(
        rank=WIDE.rank, alpha=WIDE.alpha, targets=("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    )
    return Policy(LlamaForCausalLM(config), LETTERS, max_positions=CONTEXT, lora=lora)


@pytest.mark.parametrize("formula", [Formula(), Formula(row="weights", whole="rows")], ids=["sum", "normalized"])
def test_the_formula_is_measured_with_the_largest_eps_of_the_service(
    monkeypatch: pytest.MonkeyPatch, formula: Formula
) -> None:
    backend = make_backend(monkeypatch, formula=formula)
    backend.service.build, backend.service.shape = make_wide_policy, WIDE
    found = probe(connect(WIDE), rank=WIDE.rank, vocabulary_size=VOCAB, samples=True, eps=LARGEST_EPS)
    assert (found.formula, found.clips_gradients, found.sampling_restores) == (formula, True, False)
    assert backend.log.count("create") == backend.log.count("stop") == 1


def test_a_model_whose_gradient_is_too_large_for_the_eps_is_refused(backend: Backend) -> None:
    with pytest.raises(ServiceError, match="Training would be wrong"):
        probe(connect(), rank=ADAPTER.rank, vocabulary_size=VOCAB, samples=False, eps=LARGEST_EPS)
    assert not any(session.is_running for session in backend.sessions.values())


def test_a_session_in_training_also_samples(backend: Backend, tmp_path: Path) -> None:
    service = connect()
    engine = TinkerEngine(
        service, weights=base_weights(tmp_path, "base"), max_context_tokens=CONTEXT, decode=LETTERS.decode
    )
    learner = TinkerLearner(service.share(), shape=ADAPTER, adam=ADAM)

    async def scenario() -> tuple[Completion, Completion, list[float]]:
        short = await engine.sample(asked(max_tokens=4, stop_ids=frozenset({STOP_ID})))
        whole = await engine.sample(asked(max_tokens=40, stop_ids=frozenset({STOP_ID})))
        scored = await engine.logprobs([*asked().prompt_ids, *short.token_ids])
        await engine.close()
        return short, whole, scored

    short, whole, scored = asyncio.run(scenario())
    learner.close()
    assert backend.log.count("create") == 1
    # A request allows at least 512 tokens, so the answer is longer than the 4 that were wanted, and is cut.
    assert short.token_ids == whole.token_ids[:4]
    assert len(whole.token_ids) > 4
    assert whole.token_ids[-1] == STOP_ID or len(whole.token_ids) == MOST_SAMPLED
    assert scored[-4:] == pytest.approx(short.sampled_logprobs, abs=1e-5)


def test_without_a_session_in_training_sampling_creates_its_own(backend: Backend, tmp_path: Path) -> None:
    engine = TinkerEngine(connect(), weights=base_weights(tmp_path, "base"), max_context_tokens=CONTEXT)

    async def scenario() -> None:
        await asyncio.gather(*(engine.sample(asked(max_tokens=4)) for _ in range(3)))
        await engine.close()

    asyncio.run(scenario())
    assert (backend.log.count("create"), backend.log.count("stop")) == (1, 1)


def test_a_sample_of_which_a_part_is_cut_is_charged_as_a_whole(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[dict[str, Any]] = []
    monkeypatch.setattr("sparring.tinker.metered.count_request", lambda name, **named: counted.append(named))
    service = MeteredService(connect(), "m@sagemaker", scores_by_sampler=True)
    sampler = service.create_sampler(None)
    sample = asyncio.run(sampler.sample((1, 2, 3), max_tokens=2, temperature=1.0, top_p=1.0, stop_ids=(), seed=0))
    usage = counted[-1]["usage"]
    assert (usage.num_prompt_tokens, usage.num_sampled_tokens) == (3, 2 + sample.num_dropped)
    assert sample.num_dropped > 0


@pytest.mark.parametrize("name", BOUNDS)
def test_a_parameter_that_the_service_rejects_is_refused_before_it_is_sent(backend: Backend, name: str) -> None:
    trainer = connect().create(rank=ADAPTER.rank, seed=0)
    usual = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8}
    with pytest.raises(ServiceError, match=f"{name} of AdamW is 1.* but the service accepts"):
        trainer.optim_step(AdamStep(**(usual | {name: BOUNDS[name][1] + 1e3})))
    assert backend.log == ["create"]


def test_the_limits_are_the_recorded_ones() -> None:
    shapes = RUNTIME["shapes"]
    recorded = {
        name: (shapes[shape]["min"], shapes[shape]["max"])
        for name, shape in shapes["AdamParamsConfig"]["fields"].items()
    }
    names = {name: name.split("_")[0] + "".join(one.title() for one in name.split("_")[1:]) for name in BOUNDS}
    assert {name: recorded[names[name]] for name in BOUNDS} == BOUNDS
    assert shapes[shapes["SamplingParams"]["fields"]["maxTokens"]]["min"] == LEAST_SAMPLED


def test_the_sdk_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sagemaker", "sagemaker.train"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ServiceError, match=r'pip install "sagemaker-train>=1\.25"'):
        connect()


def test_a_failure_of_the_sdk_is_an_error_of_the_service(backend: Backend, tmp_path: Path) -> None:
    service = connect()
    engine = TinkerEngine(service, weights=base_weights(tmp_path, "base"), max_context_tokens=CONTEXT)
    service.create_sampler("arn:unknown")

    async def scenario() -> None:
        await engine.load_weights(base_weights(tmp_path, "base"), 1)
        backend.service.is_down = True
        with pytest.raises(InfrastructureError, match="cannot be reached"):
            await engine.sample(asked())

    asyncio.run(scenario())


def test_weights_without_an_address_cannot_be_downloaded(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backend, "call", lambda operation, request: {"ManagedStorageType": "Restricted"})
    with pytest.raises(ServiceError, match="has no address in S3"):
        connect().download("arn:package", tmp_path)


SETTINGS = (
    "engine.type=tinker", "learner.type=tinker", "learner.service=sagemaker", f"learner.role_arn={ROLE}",
    f"learner.model={MODEL}", "model.trained_weights=lora",
)  # fmt: skip


@pytest.mark.parametrize(
    ("left_out", "more", "expected"),
    [
        ("learner.role_arn", [], r"learner\.role_arn.*missing"),
        ("learner.model", [], r"learner\.model.*missing"),
        ("", ["learner.base_url=http://a"], r"learner\.base_url.*not read"),
        ("", ["learner.api_key_env=KEY"], r"learner\.api_key_env.*not read"),
        ("", ["model.lora_targets=['q_proj']"], r"model\.lora_targets.*chooses the layers"),
        ("learner.service", ["learner.base_url=http://a"], r"learner\.role_arn.*not read"),
    ],
)
def test_the_settings_of_the_sessions_are_checked(left_out: str, more: list[str], expected: str) -> None:
    given = [one for one in SETTINGS if not left_out or not one.startswith(left_out)]
    with pytest.raises(ConfigError, match=expected):
        load_config(ROOT / "recipes/pointer_chase/recipe.toml", [*given, *more])


@pytest.mark.skipif(not REAL_SDK, reason="needs the package sagemaker-train in the folder SPARRING_TEST_SAGEMAKER")
def test_the_real_sdk_sends_the_recorded_shapes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tinker.sagemaker.real_session", str(REAL_SDK)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["difference"] < 2e-4
    assert found["restored_difference"] < 1e-4
    assert found["short"] == found["whole"][:4]
    assert found["running"] == 0
