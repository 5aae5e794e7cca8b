"""Prefill, decode and training rates of Llama shapes with random weights in bf16, and the share of the device's compute
rate that they reach.

The rates use the real components: `TorchEngine.sample` for prefill and decode, and `TorchLearner` with an adapter on
every linear layer for training. Model FLOP utilization is the number of operations per second divided by the device's
rate for large matrix products, measured in the same run. A token needs 2 operations per weight in the forward pass, and
the same number for the gradient of the activations (frozen weights need no gradient). Attention needs 4 more per layer,
position and hidden unit (Chowdhery et al., PaLM, appendix B, counted for the trained part).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.models import build_policy
from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import Policy
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import SampleRequest, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work of one measurement."""

    prompt_tokens: int = 512
    new_tokens: int = 128
    trained_sequences: int = 16


SMALL = Load(prompt_tokens=32, new_tokens=8, trained_sequences=2)
"""A load that is large enough to test on a CPU whether everything runs."""


def matmul_flops(device: str, size: int) -> float:
    """Return the operations per second of bf16 products of square matrices, as the median of ten runs."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    seconds = [timed(lambda: a @ b, device) for _ in range(13)][3:]
    return 2 * size**3 / median(seconds)


def timed(work: Callable[[], Any], device: str) -> float:
    """Return how many seconds `work` takes. The device's queue is empty before and after."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def forward_flops(policy: Policy, context: float) -> float:
    """Return the number of operations in one token's forward pass with `context` attended positions. Embedding lookups
    are free."""
    config = policy.base.config
    embedding = config.vocab_size * config.hidden_size
    counted = sum(parameter.numel() for parameter in policy.base.parameters() if not parameter.requires_grad)
    weights = counted if config.tie_word_embeddings else counted - embedding
    return 2 * weights + 4 * config.num_hidden_layers * config.hidden_size * context


async def sampling_rates(policy: Policy, batch: int, load: Load) -> tuple[float, float]:
    """Return the prefill and decode tokens/s of `batch` simultaneous sessions, after a warm-up round."""
    vocabulary = policy.base.config.vocab_size
    engine = TorchEngine(
        policy,
        policy.snapshot(),
        max_running=batch,
        # The sizes of rows are powers of two. With a smaller cache, some of the sessions would wait for others.
        kv_cache_tokens=batch * (1 << (load.prompt_tokens + load.new_tokens).bit_length()),
    )

    async def play(name: str, max_tokens: int) -> float:
        async def one(index: int) -> None:
            # Prompts never repeat, because the second use would find the prompt in the cache.
            generator = torch.Generator().manual_seed(max_tokens * batch + index)
            ids = torch.randint(3, vocabulary, (load.prompt_tokens,), generator=generator).tolist()
            sampling = Sampling(temperature=1.0, max_tokens=max_tokens)
            request = SampleRequest(
                session_id=f"{name}-{index}", prompt_ids=tuple(ids), sampling=sampling, stop_ids=frozenset(), seed=index
            )
            await engine.sample(request)
            engine.close_session(request.session_id)

        began = time.perf_counter()
        await asyncio.gather(*(one(index) for index in range(batch)))
        return time.perf_counter() - began

    try:
        await play("warm-up", 2)
        prefill = await play("prefill", 1)
        both = await play("decode", 1 + load.new_tokens)
    finally:
        await engine.close()
    return batch * load.prompt_tokens / prefill, batch * load.new_tokens / max(both - prefill, 1e-9)


def training_rate(policy: Policy, device: str, load: Load) -> float:
    """Return the tokens/s of forward pass, backward pass and optimizer step together, as the median of three runs after
    a warm-up."""
    learner = TorchLearner(policy, max_tokens_per_microbatch=8192)
    vocabulary = policy.base.config.vocab_size
    length = load.prompt_tokens + load.new_tokens
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, vocabulary, (load.trained_sequences, length), generator=generator).tolist()
    batch = build_demonstration_batch([(ids, [False] + [True] * (length - 1)) for ids in rows])

    def step() -> None:
        learner.forward_backward(batch, "cross_entropy", {})
        learner.optim_step(1e-5)

    return sum(map(len, rows)) / median([timed(step, device) for _ in range(4)][1:])


def measure_rates(shape: str, batches: list[int], device: str, load: Load) -> list[dict[str, Any]]:
    """Return the rows of one shape: each rate, and its share of the device's rate for matrix products."""
    peak = matmul_flops(device, 8192 if device == "cuda" else 512)
    policy = build_policy(shape, device)
    half = load.prompt_tokens / 2

    def row(what: str, tokens_per_second: float, flops: float) -> dict[str, Any]:
        memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
        print(f"{shape} {what}: {tokens_per_second:.0f} tokens/s", file=sys.stderr, flush=True)
        return {
            "shape": shape,
            "what": what,
            "tokens/s": tokens_per_second,
            "MFU": tokens_per_second * flops / peak,
            "matrix products, TFLOP/s": peak / 1e12,
            "peak memory, GiB": memory,
        }

    rows = []
    for batch in batches:
        prefill, decode = asyncio.run(sampling_rates(policy, batch, load))
        rows.append(row(f"prefill, {batch} at once", prefill, forward_flops(policy, half)))
        rows.append(
            row(f"decode, {batch} at once", decode, forward_flops(policy, load.prompt_tokens + load.new_tokens / 2))
        )
    rate = training_rate(policy, device, load)
    return [
        *rows,
        row("training, adapter", rate, 2 * forward_flops(policy, (load.prompt_tokens + load.new_tokens) / 2)),
    ]
