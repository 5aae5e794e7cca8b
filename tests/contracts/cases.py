"""The engines and learners that pass the contracts. Add an implementation here, and it is tested as all others are."""

from __future__ import annotations

import os
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines.remote import RemoteEngine
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.servers.client import ServerKind
from sparring.engines.servers.engine import ServersEngine
from sparring.engines.servers.sglang import SGLANG
from sparring.engines.servers.vllm import VLLM
from sparring.engines.torch_engine import TorchEngine
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import LoraSettings, Policy, fingerprint
from sparring.protocols import Engine, Learner
from sparring.tinker.engine import TinkerEngine
from sparring.tinker.formulas import Formula
from sparring.tinker.learner import TinkerLearner
from sparring.tinker.probe import probe
from sparring.training.group import GroupLearner
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.training.remote import RemoteLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import SampleRequest, Weights
from tests.tinker.fake_service import Deviations, FakeService

VOCAB = 60
CONTEXT = 128
SLOW = VOCAB - 1
"""A prompt that begins with this id is sampled slowly: a turn of it takes as long as the tests need."""
FIRST_LETTER, STOP = 8, 7
DEVICE = os.environ.get("SPARRING_TEST_DEVICE", "cpu")
"""Where the models of the cases compute; `make gpu` sets it to cuda."""


@dataclass(frozen=True)
class EngineCase:
    """An engine that samples with `first`, and other weights of the same model."""

    engine: Engine
    first: Weights
    second: Weights
    is_slotted: bool = True
    """Whether it samples one turn at a time, so that a turn that is not given up delays the next."""
    is_tempered: bool = True
    """Whether its log-probabilities are those after the temperature. Otherwise, they are those at temperature 1."""


@dataclass(frozen=True)
class EngineCases:
    """How to build an engine with the default settings, and one with settings that make its turns repeatable."""

    usual: Callable[[], EngineCase]
    strict: Callable[[], EngineCase]
    """Builds an engine that samples in deterministic rounds and pins the weights of sessions, as far as it states that
    it can."""


@dataclass(frozen=True)
class LearnerCase:
    """How to build a learner that starts with the weights of `make_policy(lora=has_adapter)`."""

    make: Callable[[], Learner]
    has_adapter: bool
    takes_weights: bool = True
    """Whether it takes weights that are sent to it. Otherwise, it takes weights that it has stored with their state."""


@dataclass(frozen=True)
class LearnerCases:
    """A learner that trains an adapter, and one that trains all weights, if there is one."""

    adapter: LearnerCase
    all_weights: LearnerCase | None


class Letters:
    """A tokenizer whose ids from `FIRST_LETTER` on are ASCII letters, and whose other ids are special."""

    eos_token_id = STOP
    all_special_ids = tuple(range(FIRST_LETTER))
    token_bytes = (*(f"<{id}>".encode() for id in all_special_ids), *(one.encode() for one in string.ascii_letters))

    def encode(self, text: str) -> list[int]:
        return [FIRST_LETTER + string.ascii_letters.index(one) for one in text if one in string.ascii_letters]

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes[id] for id in token_ids).decode()


LETTERS = Letters()


def make_policy(seed: int = 0, *, lora: bool = False) -> Policy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    settings = LoraSettings(rank=2, alpha=4, targets=("q_proj", "v_proj", "down_proj")) if lora else None
    return Policy(LlamaForCausalLM(config), LETTERS, device=DEVICE, max_positions=CONTEXT, lora=settings)


def torch_engine() -> TorchEngine:
    policy = make_policy()
    return slow_down(TorchEngine(policy, policy.snapshot(), max_running=1, kv_cache_tokens=1024))


def strict_torch_engine() -> TorchEngine:
    policy = make_policy()
    settings: dict[str, Any] = {"deterministic": True, "session_weights": "pinned"}
    return slow_down(TorchEngine(policy, policy.snapshot(), max_running=4, kv_cache_tokens=1024, **settings))


def slow_down(engine: TorchEngine) -> TorchEngine:
    """Make each token of a prompt that begins with `SLOW` take 0.2 seconds."""
    forward: Any = engine._forward
    decode = forward.decode

    def slowly(weights: Any, rows: Any, token_ids: Any) -> Any:
        if any(row.token_ids[0] == SLOW for row in rows):
            time.sleep(0.2)
        return decode(weights, rows, token_ids)

    forward.decode = slowly
    return engine


def scripted_engine() -> ScriptedEngine:
    def answer(request: SampleRequest) -> list[int]:
        return [(request.seed + place) % 50 + 8 for place in range(request.sampling.max_tokens)]

    return ScriptedEngine(
        answer, max_context_tokens=CONTEXT, seconds=lambda request: 3.0 if request.prompt_ids[0] == SLOW else 0.0
    )


def torch_learner(*, lora: bool = True) -> TorchLearner:
    return TorchLearner(make_policy(lora=lora), adam=AdamWSettings(grad_clip_norm=0.0), max_tokens_per_microbatch=12)


ADAPTER = AdapterShape(rank=2, alpha=4)


def adapter_of(seed: int) -> Weights:
    """Return an adapter of `make_policy(lora=True)` that changes its model, other than a new one."""
    initial = make_policy(lora=True).snapshot()
    random = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(tensor.shape, generator=random) for name, tensor in initial.tensors.items()}
    return Weights(tensors=tensors, fingerprint=fingerprint(tensors))


def weights_of(seed: int) -> Weights:
    return make_policy(seed).snapshot()


@contextmanager
def process(*kinds: str) -> Iterator[list[str]]:
    """Serve engines or learners of this file in a process of their own; yields the address of each."""
    command = [sys.executable, "-m", "tests.contracts.process", *kinds]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as served:
        try:
            assert served.stdout is not None
            addresses = [served.stdout.readline().strip() for _ in kinds]
            assert all(one.startswith("http://") for one in addresses), f"the process of {kinds} did not start"
            yield addresses
        finally:
            served.kill()


def engine_case(build: Callable[[], Engine], *, is_slotted: bool = True) -> Callable[[], EngineCase]:
    return lambda: EngineCase(build(), weights_of(0), weights_of(1), is_slotted=is_slotted)


@contextmanager
def torch_cases() -> Iterator[EngineCases]:
    yield EngineCases(engine_case(torch_engine), engine_case(strict_torch_engine))


@contextmanager
def scripted_cases() -> Iterator[EngineCases]:
    scripted = engine_case(scripted_engine, is_slotted=False)
    yield EngineCases(scripted, scripted)


@contextmanager
def remote_cases() -> Iterator[EngineCases]:
    with process("engine", "strict engine") as (usual, strict):
        yield EngineCases(engine_case(lambda: RemoteEngine(usual)), engine_case(lambda: RemoteEngine(strict)))


@contextmanager
def server_cases(kind: ServerKind) -> Iterator[EngineCases]:
    """The engine over the routes of vLLM or SGLang, with adapters as weights."""
    with process(kind.name) as (address,), tempfile.TemporaryDirectory() as folder:

        def build(**settings: Any) -> EngineCase:
            first, second = adapter_of(1), adapter_of(2)
            engine = ServersEngine(
                [address],
                shape=ADAPTER,
                folder=Path(folder) / "run",
                weights=first,
                max_running=1,
                kind=kind,
                **settings,
            )
            return EngineCase(engine, first, second)

        yield EngineCases(build, partial(build, session_weights="pinned"))


@contextmanager
def vllm_cases_of_all_weights() -> Iterator[EngineCases]:
    """The engine over the routes of vLLM, with all weights of the model."""
    with process("vLLM of all weights") as (address,), tempfile.TemporaryDirectory() as folder:

        def build() -> EngineCase:
            first, second = weights_of(0), weights_of(1)
            engine = ServersEngine([address], shape=None, folder=Path(folder) / "run", weights=first, max_running=1)
            return EngineCase(engine, first, second)

        yield EngineCases(build, build)


@contextmanager
def torch_learner_cases() -> Iterator[LearnerCases]:
    yield LearnerCases(LearnerCase(torch_learner, True), LearnerCase(partial(torch_learner, lora=False), False))


@contextmanager
def remote_learner_cases() -> Iterator[LearnerCases]:
    with process("learner", "learner of all weights") as (adapter, all_weights):
        yield LearnerCases(remote_learner_case(adapter, lora=True), remote_learner_case(all_weights, lora=False))


def remote_learner_case(address: str, *, lora: bool) -> LearnerCase:
    first = torch_learner(lora=lora).export_weights()

    def fresh() -> Learner:
        learner = RemoteLearner(address)
        learner.load_weights(first)
        return learner

    return LearnerCase(fresh, lora)


@contextmanager
def group_cases(num_ranks: int) -> Iterator[LearnerCases]:
    """Ranks in processes of their own."""
    with ExitStack() as stack:

        def case(kind: str, *, lora: bool) -> LearnerCase:
            urls = [stack.enter_context(process(kind))[0] for _ in range(num_ranks)]
            first = torch_learner(lora=lora).export_weights()

            def fresh() -> Learner:
                learner = GroupLearner(urls)
                learner.load_weights(first)
                return learner

            return LearnerCase(fresh, lora)

        yield LearnerCases(case("rank", lora=True), case("rank of all weights", lora=False))


def tinker_service(deviations: Deviations = Deviations()) -> FakeService:  # noqa: B008
    return FakeService(
        partial(make_policy, lora=True),
        ADAPTER,
        deviations,
        token_seconds=lambda prompt: 0.2 if prompt[0] == SLOW else 0.0,
    )


@contextmanager
def tinker_cases() -> Iterator[EngineCases]:
    """The engine on a service that speaks the Tinker API, and weights that the service has trained."""
    service = tinker_service()
    learner = TinkerLearner(service, shape=ADAPTER)
    trained = []
    for batch in (build_demonstration_batch([((1, 2, one), (False, True, True))]) for one in (9, 10)):
        learner.forward_backward(batch, "cross_entropy", {})
        learner.optim_step(0.1)
        trained.append(learner.export_weights())
    first, second = trained

    def build() -> EngineCase:
        engine = TinkerEngine(service, weights=first, max_context_tokens=CONTEXT, max_running=1, decode=LETTERS.decode)
        return EngineCase(engine, first, second, is_tempered=False)

    yield EngineCases(build, build)
    learner.close()


@contextmanager
def tinker_learner_cases(deviations: Deviations) -> Iterator[LearnerCases]:
    """The learner on a service, with the plan that the probe makes for what the service computes."""
    service = tinker_service(deviations)
    plan = probe(service, rank=ADAPTER.rank, vocabulary_size=VOCAB, samples=False).plan

    def build() -> Learner:
        return TinkerLearner(
            service, shape=ADAPTER, plan=plan, adam=AdamWSettings(grad_clip_norm=0.0), max_tokens_per_request=8
        )

    yield LearnerCases(LearnerCase(build, has_adapter=True, takes_weights=False), all_weights=None)


ENGINES: Mapping[str, Callable[[], AbstractContextManager[EngineCases]]] = {
    "torch": torch_cases,
    "scripted": scripted_cases,
    "remote": remote_cases,
    "vllm": partial(server_cases, VLLM),
    "sglang": partial(server_cases, SGLANG),
    "vllm of all weights": vllm_cases_of_all_weights,
    "tinker": tinker_cases,
}
LEARNERS: Mapping[str, Callable[[], AbstractContextManager[LearnerCases]]] = {
    "torch": torch_learner_cases,
    "remote": remote_learner_cases,
    "two ranks": partial(group_cases, 2),
    "tinker": partial(tinker_learner_cases, Deviations()),
    "tinker as SkyRL computes it": partial(
        tinker_learner_cases, Deviations(formula=Formula(row="weights", whole="rows"), clips_gradients=False)
    ),
}
