"""Compares `sparring plan` with one measured step of SmolLM2's shape on this machine: memory, sampling and learning.

The model has random weights. A separate process samples a batch with the engine, learns from the same number of tokens,
and loads the new weights into the engine. The kernel reports its peak memory (VmHWM). Then the same machine is
calibrated, and `sparring plan` predicts the cost of the same batch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import needs, options, report

MODEL = "smollm2-135m-instruct"
SIZES = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
SMALL = SIZES | {"hidden_size": 128, "num_hidden_layers": 3, "intermediate_size": 256, "vocab_size": 1024}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}
MEMORY_TARGET, TIME_TARGET = 0.10, 0.25
"""The largest relative errors of a plan that meet the target."""


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--episodes", type=int, default=16, help="episodes of the step")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of an episode, three quarters of them sampled")
    parser.add_argument("--microbatch", type=int, default=2048, help="most tokens in one backward pass")
    arguments = parser.parse_args()
    if not Path("/proc/self/status").exists():
        needs("the peak memory of a process in /proc/self/status, as Linux has it")
    if arguments.smoke:
        sizes, batch = SMALL, (4, 64, 128)
    else:
        sizes, batch = SIZES, (arguments.episodes, arguments.tokens, arguments.microbatch)
    # A new process, so that the peak is that of the step alone.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured, planned = pool.apply(compare, (sizes, *batch))
    rows = [{"": name, "measured": measured[name], "planned": planned[name]} for name in measured]
    figures = {f"error of the {name}": abs(planned[name] / measured[name] - 1) for name in measured}
    targets = {name: {"at_most": MEMORY_TARGET if "memory" in name else TIME_TARGET} for name in figures}
    return report(
        "plan",
        rows,
        figures=figures,
        targets=targets,
        path=arguments.json,
        sides={"measured": sum(measured.values()), "planned": sum(planned.values())},
        smoke=arguments.smoke,
    )


def compare(
    sizes: dict[str, Any], episodes: int, tokens: int, microbatch: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the measured and the planned cost of a step, keyed by name."""
    import torch

    from sparring.config import validate
    from sparring.planning.calibration import calibrate
    from sparring.planning.devices import this_machine
    from sparring.planning.plan import Episodes, make_plan, settings_of
    from sparring.planning.shapes import shape_from_config
    from sparring.runtime.machine import default_threads

    torch.set_num_threads(default_threads())
    needed = {"environment": {"target": "environment:Shop"}, "reward": {"reward": "environment:reward"}}
    overrides = (
        *("model.device=cpu", "model.precision=fp32", f"model.max_sequence_length={tokens}"),
        *(f"batch.group_size={episodes}", "batch.global_batch_size=1", f"engine.max_running={episodes}"),
        f"engine.kv_cache_tokens={episodes * tokens}",
        f"optimizer.max_tokens_per_microbatch={microbatch}",
    )
    config = validate(needed, overrides)
    sampled = tokens * 3 // 4
    measured = measure(config, sizes, episodes, tokens, sampled)
    shape = shape_from_config(MODEL, sizes)
    unmeasured = this_machine(flops=1.0, bandwidth=1.0)
    device = calibrate(shape, settings_of(config, unmeasured), device="cpu")
    counted = Episodes(per_step=episodes, steps=1, tokens=tokens, sampled=sampled, source="as measured")
    plan = make_plan(config, shape, device, counted)
    return measured, {
        "peak memory, GB": plan.fullest.asked_bytes / 1e9,
        "seconds of sampling": plan.cost.sample_seconds,
        "seconds of learning": plan.cost.train_seconds,
    }


def measure(config: Any, sizes: dict[str, Any], episodes: int, tokens: int, sampled: int) -> dict[str, float]:
    """Sample a batch, learn from the same number of tokens, and load the weights into the engine."""
    from sparring.engines.torch_engine import TorchEngine
    from sparring.models.policy import LoraSettings, Policy
    from sparring.models.small import random_llama
    from sparring.runtime.allocator import keep_freed_memory
    from sparring.training.learner import TorchLearner

    model = random_llama(0, {**sizes, "max_position_embeddings": tokens})
    lora = LoraSettings(rank=config.model.lora_rank, alpha=config.model.lora_alpha)
    policy = Policy(model, None, precision="fp32", device="cpu", max_positions=tokens, lora=lora)
    engine = TorchEngine(policy, policy.snapshot(), max_running=episodes, kv_cache_tokens=config.engine.kv_cache_tokens)
    learner = TorchLearner(policy, max_tokens_per_microbatch=config.optimizer.max_tokens_per_microbatch)
    keep_freed_memory()
    turns, sample_seconds = asyncio.run(sample(engine, episodes, tokens - sampled, sampled))
    begin = time.perf_counter()
    learner.forward_backward(batch_of(turns, tokens - sampled), "ppo", {"off_policy_correction": "none"})
    learner.optim_step(1e-5)
    learn_seconds = time.perf_counter() - begin
    asyncio.run(load_and_close(engine, learner.export_weights()))
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    assert found is not None
    return {
        "peak memory, GB": int(found.group(1)) * 1024 / 1e9,
        "seconds of sampling": sample_seconds,
        "seconds of learning": learn_seconds,
    }


async def sample(engine: Any, episodes: int, prompt: int, sampled: int) -> tuple[list[Any], float]:
    """Return the turns with their prompts, and the total seconds that they took."""
    from sparring.types import SampleRequest, Sampling

    async def turn(index: int) -> tuple[tuple[int, ...], Any]:
        ids = tuple((7 * index + 13 * place) % 1000 for place in range(prompt))
        request = SampleRequest(
            session_id=str(index),
            prompt_ids=ids,
            sampling=Sampling(temperature=1.0, max_tokens=sampled),
            stop_ids=frozenset(),
            seed=index,
        )
        engine.open_session(request.session_id)
        try:
            return ids, await engine.sample(request)
        finally:
            engine.close_session(request.session_id)

    begin = time.perf_counter()
    turns = await asyncio.gather(*(turn(index) for index in range(episodes)))
    return list(turns), time.perf_counter() - begin


async def load_and_close(engine: Any, weights: Any) -> None:
    await engine.load_weights(weights, version=1)
    await engine.close()


def batch_of(turns: Sequence[tuple[tuple[int, ...], Any]], prompt: int) -> Any:
    """Return a batch of the turns with advantages of alternating sign."""
    from sparring.types import TokenSegment, TrainingBatch, TrainingSequence

    segments = tuple(
        TokenSegment(
            parent=None,
            token_ids=(*ids, *turn.token_ids),
            mask=(*(False,) * prompt, *(True,) * len(turn.token_ids)),
            sampled_logprobs=(*(0.0,) * prompt, *turn.sampled_logprobs),
            advantages=(*(0.0,) * prompt, *((-1.0) ** index,) * len(turn.token_ids)),
            weights=(*(0.0,) * prompt, *(1.0,) * len(turn.token_ids)),
            temperature=1.0,
        )
        for index, (ids, turn) in enumerate(turns)
    )
    sequences = tuple(TrainingSequence(segments=(index,), trajectory_id=str(index)) for index in range(len(segments)))
    return TrainingBatch(segments=segments, sequences=sequences)


if __name__ == "__main__":
    sys.exit(main())
