"""Compares the learner and the engine with the time that their matrix products alone take on this machine.

A model with SmolLM2's shape and random weights has an adapter on every layer. The learner computes the gradient of 2,048
different tokens. The engine decodes 32 turns with different prompts. The bound of each is the time of its products with
the weights, with as many rows and in the same layout: for the learner forward and backward with MKL, and twice with the
output matrix, for the engine with packed matrices. A share of 1 would mean that attention, norms, the adapter, the optimizer
and sampling take no time. The parts alternate, and the shares are medians of the rounds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from statistics import median

import torch

from benchmarks.report import options, report
from sparring.engines.torch_engine import TorchEngine
from sparring.models.llama import LlamaWeights
from sparring.models.output_layer import LOGIT_BYTES
from sparring.models.packed import PackedMatrices
from sparring.models.policy import LoraSettings, Policy
from sparring.models.small import random_llama
from sparring.runtime.allocator import keep_freed_memory
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import SampleRequest, Sampling

SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}
SMOKE_SHAPE = {**SHAPE, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 512} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LEARNED, SEQUENCE = 2048, 256
"""The tokens of the learner's batch, and of each of its sequences."""
ROWS, PROMPT, SAMPLED = 32, 128, 48
"""The running turns, the tokens of each prompt, and the tokens that each turn samples."""
TARGETS = {"learner, share of the bound": {"at_least": 0.65}, "decoding, share of the bound": {"at_least": 0.75}}


def build_policy(sizes: Mapping[str, int]) -> Policy:
    model = random_llama(0, {**sizes, "tie_word_embeddings": True, "max_position_embeddings": 512})
    return Policy(model, None, max_positions=512, lora=LoraSettings(rank=16, alpha=32))


@torch.inference_mode()
def multiply_for_learning(weights: LlamaWeights, num_tokens: int) -> float:
    """Return the seconds of the products of a forward and a backward pass."""
    inputs = {size: torch.randn(num_tokens, size) for size in _sizes(weights)}
    rows = min(num_tokens, LOGIT_BYTES // (4 * weights.shape.vocab_size))
    hidden, logits = torch.randn(rows, weights.shape.hidden_size), torch.randn(rows, weights.shape.vocab_size)
    began = time.perf_counter()
    for layer in weights.layers:
        for matrix in layer.linears.values():
            assert isinstance(matrix, torch.Tensor)
            _ = inputs[matrix.shape[1]] @ matrix.T
            _ = inputs[matrix.shape[0]] @ matrix
    for _ in range(num_tokens // rows):
        _ = hidden @ weights.lm_head.T
        _ = logits @ weights.lm_head
    return time.perf_counter() - began


@torch.inference_mode()
def multiply_for_decoding(weights: LlamaWeights, packed: PackedMatrices, num_rows: int) -> float:
    """Return the seconds of the products of a decoding step with one token in each row."""
    inputs = {size: torch.randn(num_rows, size) for size in _sizes(weights)}
    began = time.perf_counter()
    for layer in weights.layers:
        for matrix in layer.linears.values():
            assert isinstance(matrix, torch.Tensor)
            packed.product(inputs[matrix.shape[1]], matrix)
    packed.product(inputs[weights.shape.hidden_size], weights.lm_head)
    return time.perf_counter() - began


def _sizes(weights: LlamaWeights) -> set[int]:
    """Return the numbers of rows and columns of a layer's matrices."""
    matrices = [one for one in weights.layers[0].linears.values() if isinstance(one, torch.Tensor)]
    return {size for matrix in matrices for size in matrix.shape}


def learn(policy: Policy, tokens: int) -> float:
    """Return the seconds of a gradient over different tokens."""
    vocabulary = policy.base.config.vocab_size
    starts = range(tokens // SEQUENCE)
    texts = [[(7 * place + 31 * start) % vocabulary for place in range(SEQUENCE)] for start in starts]
    batch = build_demonstration_batch([(ids, [False] + [True] * (SEQUENCE - 1)) for ids in texts])
    learner = TorchLearner(policy, max_tokens_per_microbatch=tokens)
    began = time.perf_counter()
    metrics = learner.forward_backward(batch, "cross_entropy", {})
    seconds = time.perf_counter() - began
    assert metrics["training/tokens"] == tokens - len(texts)  # the model does not read the last token of a text
    return seconds


async def decode(policy: Policy, num_turns: int, num_sampled: int) -> float:
    """Return the seconds of a decoding step of different turns."""
    vocabulary = policy.base.config.vocab_size
    engine = TorchEngine(policy, policy.snapshot(), max_running=num_turns, kv_cache_tokens=num_turns * 256)
    arrivals: list[list[float]] = [[] for _ in range(num_turns)]

    async def turn(index: int) -> None:
        request = SampleRequest(
            session_id=str(index),
            prompt_ids=tuple((7 * index + 13 * place) % vocabulary for place in range(PROMPT)),
            sampling=Sampling(max_tokens=num_sampled),
            stop_ids=frozenset(),
            seed=index,
        )
        await engine.sample(request, lambda _: arrivals[index].append(time.perf_counter()))

    await asyncio.gather(*(turn(index) for index in range(num_turns)))
    await engine.close()
    # All turns run from the first token of the last one until the first one ends.
    last = max(arrivals, key=lambda times: times[0])
    end = min(times[-1] for times in arrivals)
    return median(later - earlier for earlier, later in pairwise([moment for moment in last if moment <= end]))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds; shares are medians")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    arguments = parser.parse_args()
    sizes, rounds = (SMOKE_SHAPE, 1) if arguments.smoke else (SHAPE, arguments.rounds)
    turns, sampled = (4, 12) if arguments.smoke else (ROWS, SAMPLED)
    torch.set_num_threads(arguments.threads)
    policy = build_policy(sizes)
    weights, packed = policy.materialize(policy.snapshot()), PackedMatrices()
    packed.add(weights)
    keep_freed_memory()
    rows = []
    for index in range(rounds + 1):
        found = {
            "learner": (multiply_for_learning(weights, LEARNED), learn(policy, LEARNED)),
            "decoding": (
                median(multiply_for_decoding(weights, packed, turns) for _ in range(sampled // 2)),
                asyncio.run(decode(policy, turns, sampled)),
            ),
        }
        # The first round is not measured: it provides the memory.
        rows += [
            {"part": part, "round": index, "products, s": bound, "measured, s": seconds, "share": bound / seconds}
            for part, (bound, seconds) in found.items()
            if index
        ]
    shares = {part: [row["share"] for row in rows if row["part"] == part] for part in ("learner", "decoding")}
    figures = {f"{part}, share of the bound": median(found) for part, found in shares.items()}
    figures["learner, tokens/s"] = LEARNED / median(row["measured, s"] for row in rows if row["part"] == "learner")
    figures["decoding, tokens/s"] = turns / median(row["measured, s"] for row in rows if row["part"] == "decoding")
    sides = {part: float(len(found)) for part, found in shares.items()}
    return report(
        "bounds", rows, figures=figures, targets=TARGETS, path=arguments.json, sides=sides, smoke=arguments.smoke
    )


if __name__ == "__main__":
    sys.exit(main())
