"""Measure this machine's rates in half a minute.

The real learner and the real engine are timed with few and with more layers of the model, in turns, so that both see the
same load of the machine. The difference gives the time of a layer. The rest is the time of the embedding, the output
matrix, and sampling.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import LoraSettings, Policy
from sparring.models.precision import resolve_device
from sparring.models.small import random_llama
from sparring.planning.devices import Device, this_machine
from sparring.planning.memory import Settings
from sparring.planning.plan import decoding_bytes, flops_per_token
from sparring.planning.shapes import ModelShape, shape_from_config
from sparring.training.learner import TorchLearner
from sparring.types import SampleRequest, Sampling, TokenSegment, TrainingBatch, TrainingSequence

FEW, MORE = 1, 5
"""The numbers of layers that are timed."""
LARGEST_HIDDEN = 2048
"""Wider models are timed at this width, because rates hardly change beyond it and the calibration would take minutes."""
LARGEST_VOCABULARY = 49_152
"""Larger output matrices are timed at this size, for the same reason."""
REPETITIONS = 3
"""How many times the learner is timed with each number of layers. The median counts."""
CONTEXT, SAMPLED = 128, 24
"""The lengths in tokens of a timed turn's prompt, and of its completion."""


def calibrate(
    model: ModelShape, settings: Settings, *, num_threads: int | None = None, device: str = "auto", tokens: int = 0
) -> Device:
    """Return this machine as a device, with its rates of learning and decoding at this model's width.

    The learner is timed with `tokens` tokens, or with as many as take a few seconds if it is 0.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    place = resolve_device(device)
    sizes = _sizes(model)
    tokens = tokens or (1024 if sizes["hidden_size"] <= 1024 else 128)
    running = min(settings.max_running, 16)
    few, more = (_Timed(_policy(sizes, count, settings, place), settings, tokens, running) for count in (FEW, MORE))
    learning = _extrapolate([(few.learn(), more.learn()) for _ in range(REPETITIONS + 1)][1:], model.num_layers)
    decoding = _extrapolate([(few.decode(), more.decode())], model.num_layers)
    timed = shape_from_config("calibration", {**sizes, "num_hidden_layers": model.num_layers})
    is_cuda = place.startswith("cuda")
    return this_machine(
        flops=flops_per_token(timed, settings, tokens / 4 / 2) * tokens / learning,
        bandwidth=decoding_bytes(timed, settings, running, CONTEXT) / decoding,
        is_cuda=is_cuda,
        gpu_bytes=gpu_bytes(place),
        num_devices=count_gpus(place),
    )


def gpu_bytes(device: str) -> float:
    """Return the total memory of a GPU, whether used or free, or 0 for the CPU."""
    return float(torch.cuda.mem_get_info()[1]) if device.startswith("cuda") else 0.0


def count_gpus(device: str) -> int:
    """Return the number of GPUs that this process may use, or 1 for the CPU."""
    return torch.cuda.device_count() if device.startswith("cuda") else 1


def _extrapolate(pairs: list[tuple[float, float]], num_layers: int) -> float:
    """Return the seconds with `num_layers` layers, from pairs of the seconds with few and with more layers."""
    layer = max(0.0, median(more - few for few, more in pairs) / (MORE - FEW))
    return max(median(few for few, _ in pairs) - FEW * layer, 0.0) + num_layers * layer


def _sizes(model: ModelShape) -> dict[str, Any]:
    """Return the sizes of a Llama model whose layers are like the model's, but smaller if the model is very large."""
    layer = max(model.layers, key=lambda one: one.count * bool(one.kv_width))
    scale = min(1.0, LARGEST_HIDDEN / model.hidden_size)
    head_dim = 64 if scale < 1 or layer.attention["o_proj"][1] % 64 == 0 else layer.kv_width // 2
    heads = max(1, int(scale * layer.attention["o_proj"][1]) // head_dim)
    kv_heads = max(1, int(scale * layer.kv_width // 2) // head_dim)
    return {
        "hidden_size": int(scale * model.hidden_size) // 64 * 64 or model.hidden_size,
        "intermediate_size": max(64, int(scale * layer.mlp["gate_proj"][0] * layer.active_experts)),
        "num_attention_heads": heads,
        "num_key_value_heads": next(count for count in range(kv_heads, 0, -1) if heads % count == 0),
        "head_dim": head_dim,
        "vocab_size": min(model.vocab_size, LARGEST_VOCABULARY),
        "tie_word_embeddings": model.is_tied,
    }


@dataclass(frozen=True, slots=True)
class _Timed:
    """A model whose learner and engine are timed."""

    policy: Policy
    settings: Settings
    tokens: int
    running: int

    def learn(self) -> float:
        """Return the seconds of a learner's step."""
        learner = TorchLearner(
            self.policy, max_tokens_per_microbatch=self.tokens, activation_checkpointing=self.settings.checkpointing
        )
        start = time.perf_counter()
        learner.forward_backward(_batch(self.tokens, segments=4), "ppo", {"off_policy_correction": "none"})
        if self.policy.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def decode(self) -> float:
        """Return the seconds of a decoding step with all turns."""
        return asyncio.run(self._sample())

    async def _sample(self) -> float:
        engine = TorchEngine(
            self.policy,
            self.policy.snapshot(),
            max_running=self.running,
            kv_cache_tokens=self.running * 2 * CONTEXT,
        )
        arrivals: list[list[float]] = [[] for _ in range(self.running)]
        turns = (
            engine.sample(_request(index), lambda _, times=arrivals[index]: times.append(time.perf_counter()))
            for index in range(self.running)
        )
        await asyncio.gather(*turns)
        await engine.close()
        # While the last turn decodes its first half, all turns are running.
        last = max(arrivals, key=lambda times: times[0])[: SAMPLED // 2]
        return median(later - earlier for earlier, later in pairwise(last))


def _request(index: int) -> SampleRequest:
    return SampleRequest(
        session_id=str(index),
        prompt_ids=tuple((7 * index + 13 * place) % 256 for place in range(CONTEXT)),
        sampling=Sampling(max_tokens=SAMPLED),
        stop_ids=frozenset(),
        seed=index,
    )


def _policy(sizes: dict[str, Any], count: int, settings: Settings, device: str) -> Policy:
    model = random_llama(0, {**sizes, "num_hidden_layers": count, "max_position_embeddings": 1024})
    lora = None
    if settings.lora_rank is not None:
        known = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        targets = tuple(name for name in settings.lora_targets if name in known)
        lora = LoraSettings(rank=settings.lora_rank, targets=targets or known, is_merged=settings.is_merged)
    precision = "bf16" if settings.compute_bytes == 2 else "fp32"
    return Policy(
        model,
        None,
        precision=precision,
        device=device,
        max_positions=1024,
        lora=lora,
        base_precision="bf16" if settings.base_bytes == 2 else "fp32",
    )


def _batch(tokens: int, *, segments: int) -> TrainingBatch:
    each = tokens // segments
    mask = (False, *(True,) * (each - 1))
    zeros, ones = (0.0,) * each, tuple(float(one) for one in mask)
    made = tuple(
        TokenSegment(
            parent=None,
            token_ids=tuple((7 * index + 13 * place) % 256 for place in range(each)),
            mask=mask,
            sampled_logprobs=zeros,
            advantages=ones,
            weights=ones,
            temperature=1.0,
        )
        for index in range(segments)
    )
    sequences = tuple(TrainingSequence(segments=(index,), trajectory_id=str(index)) for index in range(segments))
    return TrainingBatch(segments=made, sequences=sequences)
