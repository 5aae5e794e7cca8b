"""The engines and learners that pass the contracts. Add an implementation here, and it is tested as all others are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines.remote import RemoteEngine
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import LoraSettings, Policy
from sparring.protocols import Engine, Learner
from sparring.training.learner import AdamWSettings, TorchLearner
from sparring.training.remote import RemoteLearner
from sparring.types import SampleRequest, Weights

VOCAB = 60
CONTEXT = 128
SLOW = VOCAB - 1
"""A prompt that begins with this id is sampled slowly: a turn of it takes as long as the tests need."""
STOP = 7
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
    return Policy(LlamaForCausalLM(config), None, device=DEVICE, max_positions=CONTEXT, lora=settings)


def torch_engine() -> TorchEngine:
    policy = make_policy()
    engine = TorchEngine(policy, policy.snapshot(), max_running=1, kv_cache_tokens=1024)
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


def torch_learner() -> TorchLearner:
    return TorchLearner(make_policy(lora=True), adam=AdamWSettings(grad_clip_norm=0.0), max_tokens_per_microbatch=12)


def weights_of(seed: int) -> Weights:
    return make_policy(seed).snapshot()


@contextmanager
def process(kind: str) -> Iterator[str]:
    """Serve an engine or a learner of this file in a process of its own; yields its address."""
    command = [sys.executable, "-m", "tests.contracts.process", kind]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as served:
        try:
            assert served.stdout is not None
            address = served.stdout.readline().strip()
            assert address.startswith("http://"), f"the process of {kind} did not start"
            yield address
        finally:
            served.kill()


@contextmanager
def torch_case() -> Iterator[Callable[[], EngineCase]]:
    yield lambda: EngineCase(torch_engine(), weights_of(0), weights_of(1))


@contextmanager
def scripted_case() -> Iterator[Callable[[], EngineCase]]:
    yield lambda: EngineCase(scripted_engine(), weights_of(0), weights_of(1), is_slotted=False)


@contextmanager
def remote_case() -> Iterator[Callable[[], EngineCase]]:
    with process("engine") as address:
        yield lambda: EngineCase(RemoteEngine(address), weights_of(0), weights_of(1))


@contextmanager
def remote_learner_case() -> Iterator[Callable[[], Learner]]:
    with process("learner") as address:
        first = torch_learner().export_weights()

        def fresh() -> Learner:
            learner = RemoteLearner(address)
            learner.load_weights(first)
            return learner

        yield fresh


@contextmanager
def torch_learner_case() -> Iterator[Callable[[], Learner]]:
    yield torch_learner


ENGINES: Mapping[str, Callable[[], AbstractContextManager[Callable[[], EngineCase]]]] = {
    "torch": torch_case,
    "scripted": scripted_case,
    "remote": remote_case,
}
LEARNERS: Mapping[str, Callable[[], AbstractContextManager[Callable[[], Learner]]]] = {
    "torch": torch_learner_case,
    "remote": remote_learner_case,
}
