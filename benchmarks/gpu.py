"""How much of a GPU is used? Prefill, decode and training rates of Llama shapes on random weights, in bf16.

Rates are those of the real parts: `TorchEngine.sample` for prefill and decode, `TorchLearner` with an adapter on every
linear layer for training. Model FLOP utilisation divides the operations a token needs by what the device does in one
second of large matrix products, measured in the same run: 2 operations a weight and token forwards, as many again for
the gradient of the activations (the frozen weights need none of their own), and 4 a layer, position and hidden unit for
attention (Chowdhery et al., PaLM, appendix B, counted for what is trained).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.report import needs, options, report
from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import Policy
from sparring.training.learner import TorchLearner
from sparring.training.sequences import demonstration_batch
from sparring.types import SampleRequest, Sampling

SHAPES: Mapping[str, Mapping[str, Any]] = {
    # Llama 3.2 1B and Llama 3.1 8B.
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    # To try this file itself on a machine without a GPU: --device cpu --shapes tiny.
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
VOCABULARY_SIZE = {"tiny": 1000}
PROMPT_TOKENS, NEW_TOKENS, TRAINED_SEQUENCES = 512, 128, 16


def policy_of(shape: str, device: str) -> Policy:
    """Random weights: rates do not depend on their values."""
    config = LlamaConfig(
        **SHAPES[shape], vocab_size=VOCABULARY_SIZE.get(shape, 128256), max_position_embeddings=2048,
        tie_word_embeddings=shape != "8B", bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(config)
    return Policy(
        model, None, precision="bf16", device=device, max_positions=2048, lora_rank=16, lora_alpha=32,
        lora_targets=LORA_TARGETS,
    )  # fmt: skip


def matmul_flops(device: str, size: int) -> float:
    """Operations a second of bf16 products of square matrices: the median of ten."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    seconds = [timed(lambda: a @ b, device) for _ in range(13)][3:]
    return 2 * size**3 / median(seconds)


def timed(work: Callable[[], Any], device: str) -> float:
    """Seconds of `work`, the device's queue emptied before and after."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def forward_flops(policy: Policy, context: float) -> float:
    """Operations of one token's forward pass with `context` positions to attend to; embedding lookups are free."""
    config = policy.base.config
    embedding = config.vocab_size * config.hidden_size
    counted = sum(parameter.numel() for parameter in policy.base.parameters() if not parameter.requires_grad)
    weights = counted if config.tie_word_embeddings else counted - embedding
    return 2 * weights + 4 * config.num_hidden_layers * config.hidden_size * context


async def sampling_rates(policy: Policy, batch: int) -> tuple[float, float]:
    """Prefill and decode, tokens/s, of `batch` sessions at once. A first round warms up."""
    vocabulary = policy.base.config.vocab_size
    engine = TorchEngine(
        policy, policy.snapshot(), max_running=batch, kv_cache_tokens=batch * (PROMPT_TOKENS + NEW_TOKENS + 64)
    )

    async def play(name: str, max_tokens: int) -> float:
        async def one(index: int) -> None:
            # No two plays share a prompt, or the second would find it in the cache.
            generator = torch.Generator().manual_seed(max_tokens * batch + index)
            ids = torch.randint(3, vocabulary, (PROMPT_TOKENS,), generator=generator).tolist()
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
        both = await play("decode", 1 + NEW_TOKENS)
    finally:
        await engine.close()
    return batch * PROMPT_TOKENS / prefill, batch * NEW_TOKENS / max(both - prefill, 1e-9)


def training_rate(policy: Policy, device: str) -> float:
    """Tokens/s of forward, backward and optimizer step: the median of three after a warm-up."""
    learner = TorchLearner(policy, max_tokens_per_microbatch=8192)
    vocabulary = policy.base.config.vocab_size
    length = PROMPT_TOKENS + NEW_TOKENS
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, vocabulary, (TRAINED_SEQUENCES, length), generator=generator).tolist()
    batch = demonstration_batch([(ids, [False] + [True] * (length - 1)) for ids in rows])

    def step() -> None:
        learner.forward_backward(batch, "cross_entropy", {})
        learner.optim_step(1e-5)

    return batch.num_tokens / median([timed(step, device) for _ in range(4)][1:])


def measure(shape: str, batches: list[int], device: str, peak: float) -> list[dict[str, Any]]:
    """Rows of one shape: each rate with the share of the device's matrix products that it is worth."""
    policy = policy_of(shape, device)
    half = PROMPT_TOKENS / 2

    def row(what: str, tokens_per_second: float, flops: float) -> dict[str, Any]:
        memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
        print(f"{shape} {what}: {tokens_per_second:.0f} tokens/s", file=sys.stderr, flush=True)
        return {
            "shape": shape, "what": what, "tokens/s": tokens_per_second,
            "MFU": tokens_per_second * flops / peak, "peak memory, GiB": memory,
        }  # fmt: skip

    rows = []
    for batch in batches:
        prefill, decode = asyncio.run(sampling_rates(policy, batch))
        rows.append(row(f"prefill, {batch} at once", prefill, forward_flops(policy, half)))
        rows.append(row(f"decode, {batch} at once", decode, forward_flops(policy, PROMPT_TOKENS + NEW_TOKENS / 2)))
    rate = training_rate(policy, device)
    return [*rows, row("training, adapter", rate, 2 * forward_flops(policy, (PROMPT_TOKENS + NEW_TOKENS) / 2))]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["1B", "8B"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    device: str = arguments.device
    shapes, batches = arguments.shapes, arguments.batches
    if arguments.smoke:
        print("benchmarks.gpu: in small on the CPU, which says nothing of a GPU; its figures need one", file=sys.stderr)
        device, shapes, batches = "cpu", ["tiny"], [2]
    if device == "cuda" and not torch.cuda.is_available():
        needs("a GPU: torch sees no CUDA device; --device cpu --shapes tiny or --smoke try the program itself")
    peak = matmul_flops(device, 8192 if device == "cuda" else 512)
    rows = [row for shape in shapes for row in measure(shape, batches, device, peak)]
    device_name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(f"matrix products of {device_name}: {peak / 1e12:.1f} TFLOP/s in bf16", file=sys.stderr)
    figures = {f"{row['shape']} {row['what']}, tokens/s": row["tokens/s"] for row in rows}
    sides = {row["what"]: row["tokens/s"] for row in rows}
    return report("gpu", rows, figures=figures, targets={}, path=arguments.json, smoke=arguments.smoke, sides=sides)


if __name__ == "__main__":
    sys.exit(main())
