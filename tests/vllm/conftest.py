"""Real vLLM servers for the tests of this folder. `make vllm` installs vLLM and runs them; without it they are skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.engines.servers.engine import ServersEngine
from sparring.engines.servers.processes import ServerSettings, StartedServers
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import LoraSettings, Policy, fingerprint
from sparring.types import Weights
from tests.contracts.cases import CONTEXT, LETTERS, STOP, VOCAB, EngineCase, EngineCases
from tests.contracts.scenarios import Scenario, run_scenario

ENVIRONMENT = os.environ.get("SPARRING_TEST_VLLM")
RANK, ALPHA = 8, 16


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(1200))
            if not ENVIRONMENT:
                item.add_marker(pytest.mark.skip(reason="needs vLLM, which `make vllm` installs"))


def build_model() -> LlamaForCausalLM:
    """Return a model with heads of 64, which vLLM needs, and so many layers that a turn of 100 tokens takes seconds."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
    return LlamaForCausalLM(config)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with the ids of `LETTERS`, except that it ends a text with another special id than `STOP`."""
    vocabulary = {text.decode(): one for one, text in enumerate(LETTERS.token_bytes)}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    tokenizer.add_special_tokens([f"<{one}>" for one in LETTERS.all_special_ids])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"<{STOP - 1}>")


def build_adapter(policy: Policy, seed: int) -> Weights:
    """Return an adapter that changes the model's log-probabilities clearly."""
    random = torch.Generator().manual_seed(seed)
    tensors = {name: 0.05 * torch.randn(one.shape, generator=random) for name, one in policy.snapshot().tensors.items()}
    return Weights(tensors=tensors, fingerprint=fingerprint(tensors))


@pytest.fixture(scope="session")
def policy() -> Policy:
    torch.set_num_threads(1)
    lora = LoraSettings(rank=RANK, alpha=ALPHA, targets=("q_proj", "v_proj", "down_proj"))
    return Policy(build_model(), LETTERS, max_positions=CONTEXT, lora=lora)


@pytest.fixture(scope="session")
def adapters(policy: Policy) -> tuple[Weights, Weights]:
    return build_adapter(policy, 1), build_adapter(policy, 2)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the base model."""
    folder = tmp_path_factory.mktemp("base")
    build_model().save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def servers(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedServers]:
    """Two servers with the model of `policy`."""
    assert ENVIRONMENT is not None
    settings = ServerSettings(
        model=str(base),
        environment=Path(ENVIRONMENT),
        num_servers=2,
        max_model_len=CONTEXT,
        lora_rank=RANK,
        num_adapters=4,
        max_running=16,
    )
    started = StartedServers(settings, tmp_path_factory.mktemp("servers"), announce=print)
    yield started
    started.close()


@pytest.fixture
def build_engine(
    servers: StartedServers, adapters: tuple[Weights, Weights], tmp_path: Path
) -> Callable[..., ServersEngine]:
    """Return a function that connects an engine to both servers, or to those that are passed."""

    def build(urls: list[str] | None = None, **settings: Any) -> ServersEngine:
        return ServersEngine(
            urls or servers.urls,
            shape=AdapterShape(rank=RANK, alpha=ALPHA),
            folder=tmp_path / "run",
            weights=adapters[0],
            api_key=servers.api_key,
            **settings,
        )

    return build


@pytest.fixture
def engine_cases(
    build_engine: Callable[..., ServersEngine], servers: StartedServers, adapters: tuple[Weights, Weights]
) -> EngineCases:
    def case(**settings: Any) -> EngineCase:
        # One server and one turn at a time, so that a turn that is not given up delays the next.
        return EngineCase(build_engine(servers.urls[:1], max_running=1, **settings), *adapters)

    return EngineCases(case, partial(case, session_weights="pinned"))


@pytest.fixture
def make(engine_cases: EngineCases) -> Callable[[], EngineCase]:
    return engine_cases.usual


@pytest.fixture
def run(engine_cases: EngineCases) -> Callable[[Scenario], Any]:
    return lambda scenario: run_scenario(engine_cases.usual, scenario)


@pytest.fixture
def run_strict(engine_cases: EngineCases) -> Callable[[Scenario], Any]:
    return lambda scenario: run_scenario(engine_cases.strict, scenario)
