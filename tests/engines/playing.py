"""A small policy's engine for tests: requests, parity with training, decoding step by step."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines.torch_engine import TorchEngine
from sparring.models.forest import forest_logprobs, layout
from sparring.models.policy import Policy
from sparring.types import Completion, SampleRequest, Sampling, TokenSegment

VOCAB = 60


CONTEXT = 256


def make_policy(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Policy(LlamaForCausalLM(config), None, max_positions=CONTEXT)


POLICY = make_policy()


FIRST = POLICY.snapshot()


SECOND = make_policy(1).snapshot()


WEIGHTS = {FIRST.fingerprint: FIRST, SECOND.fingerprint: SECOND}


def request(session_id: str, prompt: Sequence[int], **changes: Any) -> SampleRequest:
    sampling = Sampling(
        temperature=changes.pop("temperature", 1.0),
        top_p=changes.pop("top_p", 1.0),
        max_tokens=changes.pop("max_tokens", 8),
    )
    return SampleRequest(
        session_id=session_id,
        prompt_ids=tuple(prompt),
        sampling=sampling,
        stop_ids=changes.pop("stop_ids", frozenset()),
        seed=changes.pop("seed", 0),
        **changes,
    )


def some_ids(seed: int, count: int) -> list[int]:
    return [random.Random(seed).randrange(VOCAB) for _ in range(count)] if count else []


def play(scenario: Callable[[TorchEngine], Awaitable[Any]], **options: Any) -> Any:
    """Run a scenario against a fresh engine and close it, whatever happens."""

    async def run() -> Any:
        engine = TorchEngine(POLICY, FIRST, **options)
        try:
            return await asyncio.wait_for(scenario(engine), 60)
        finally:
            await engine.close()

    return asyncio.run(run())


def recomputed(prompt: Sequence[int], completion: Completion, temperature: float = 1.0) -> list[float]:
    """Log-probabilities of the sampled ids as training computes them: prompt and answer as two segments."""
    count = len(completion.token_ids)
    zeros = lambda number: (0.0,) * number  # noqa: E731
    segments = [
        TokenSegment(
            parent=parent,
            token_ids=tuple(ids),
            mask=(is_sampled,) * len(ids),
            sampled_logprobs=zeros(len(ids)),
            advantages=zeros(len(ids)),
            weights=zeros(len(ids)),
            temperature=temperature or 1.0,
        )
        for parent, ids, is_sampled in ((None, prompt, False), (0, completion.token_ids, True))
    ]
    weights = POLICY.materialize(WEIGHTS[completion.fingerprint])
    with torch.no_grad():
        logprobs = forest_logprobs(weights, layout(segments))[0].tolist()
    assert len(logprobs) == count
    return logprobs


def assert_parity(prompt: Sequence[int], completion: Completion, temperature: float = 1.0) -> None:
    """The contract: sampled and recomputed log-probabilities differ by at most 1e-4 in fp32."""
    assert completion.sampled_logprobs == pytest.approx(recomputed(prompt, completion, temperature), abs=1e-4)


@dataclass
class Gate:
    """Lets the engine take decoding steps one by one, so that a test can act between them."""

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[int] = field(default_factory=list)
    """How many turns each step that began decodes; the last may still wait at the gate."""

    def open(self, num_steps: int = 1_000_000) -> None:
        self.permits.release(num_steps)


async def until(condition: Callable[[], bool]) -> None:
    """Give the engine's thread the processor until it has got somewhere; fails after ten seconds."""
    patience = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < patience, "the engine did not get there"
        await asyncio.sleep(0)
