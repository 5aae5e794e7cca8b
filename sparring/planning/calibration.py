"""Measure this machine's rates in a few seconds.

The real learner and the real decoding are timed with one and with three layers of the model. The difference gives the
time of a layer. The rest is the time of the embedding, the output matrix and the optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from sparring.engines.cached_forward import LeanForward
from sparring.models.policy import LoraSettings, Policy
from sparring.models.precision import resolve_device
from sparring.models.small import random_llama
from sparring.planning.devices import Device, this_machine
from sparring.planning.memory import Settings
from sparring.planning.plan import decoding_bytes, flops_per_token
from sparring.planning.shapes import ModelShape, shape_from_config
from sparring.training.learner import TorchLearner
from sparring.types import TokenSegment, TrainingBatch, TrainingSequence

FEW, MORE = 1, 3
"""The numbers of layers that are timed."""
LARGEST_HIDDEN = 2048
"""Wider models are timed at this width, because rates hardly change beyond it and the calibration would take minutes."""
REPETITIONS = 2


def calibrate(
    model: ModelShape, settings: Settings, *, num_threads: int | None = None, device: str = "auto", tokens: int = 512
) -> Device:
    """Return this machine as a device, with its rates of learning and decoding at this model's width."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    place = resolve_device(device)
    sizes = _sizes(model)
    running, context = min(settings.max_running, 16), 256
    seconds = {count: _measure(sizes, count, settings, place, tokens, running, context) for count in (FEW, MORE)}
    learning = _per_layer({count: one[0] for count, one in seconds.items()}, model.num_layers)
    decoding = _per_layer({count: one[1] for count, one in seconds.items()}, model.num_layers)
    timed = shape_from_config("calibration", {**sizes, "num_hidden_layers": model.num_layers})
    is_cuda = place.startswith("cuda")
    return this_machine(
        flops=flops_per_token(timed, settings, tokens / 4 / 2) * tokens / learning,
        bandwidth=decoding_bytes(timed, settings, running, context) / decoding,
        is_cuda=is_cuda,
        gpu_bytes=gpu_bytes(place),
    )


def gpu_bytes(device: str) -> float:
    """Return the total memory of a GPU, whether used or free, or 0 for the CPU."""
    return float(torch.cuda.mem_get_info()[1]) if device.startswith("cuda") else 0.0


def _per_layer(seconds: dict[int, float], num_layers: int) -> float:
    layer = max(0.0, (seconds[MORE] - seconds[FEW]) / (MORE - FEW))
    return max(seconds[FEW] - FEW * layer, 0.0) + num_layers * layer


def _sizes(model: ModelShape) -> dict[str, Any]:
    """Return the sizes of a Llama model whose layers are like the model's, but narrower if the model is very wide."""
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
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.is_tied,
    }


def _measure(
    sizes: dict[str, Any], count: int, settings: Settings, device: str, tokens: int, running: int, context: int
) -> tuple[float, float]:
    """Return the seconds of a learner's step on `tokens` tokens, and of a decoding step with `running` rows."""
    policy = _policy(sizes, count, settings, device)
    learner = TorchLearner(policy, max_tokens_per_microbatch=tokens, activation_checkpointing=settings.checkpointing)
    batch = _batch(tokens, segments=4)

    def step() -> None:
        learner.forward_backward(batch, "ppo", {"off_policy_correction": "none"})

    learning = _fastest(step, device)
    weights = policy.snapshot()
    shape = policy.materialize(weights).shape
    forward = LeanForward(policy, shape, kv_cache_tokens=running * 2 * context)
    loaded = forward.materialize(weights)
    rows = []
    for index in range(running):
        row = forward.cache.claim(str(index), [index % 256] * 2, "", room=context + 16)
        assert row is not None, "the cache has a row for each"
        rows.append(row)
    forward.prefill(loaded, [(row, [1] * (context - len(row.token_ids))) for row in rows])
    rows.sort(key=lambda row: (row.capacity, row.offset))
    decoding = _fastest(lambda: forward.decode(loaded, rows, [[1]] * running), device)
    return learning, decoding


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


def _fastest(action: Callable[[], object], device: str) -> float:
    """Return the seconds of the fastest repetition. The first repetition does not count."""
    action()
    seconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        action()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
