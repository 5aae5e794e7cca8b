"""Compares the peak memory of one LoRA training step with the prediction of `sparring plan`, each shape in a separate
process.

The model has random weights, and an engine with a small cache holds the first version. The learner takes one step on two
sequences, each a microbatch of its own: gradient, optimizer and export. The peak is the value that the kernel reports
(VmHWM). With two ranks, the learner is a group of two processes, each of which gets two sequences, and the peak is that of the
rank that needs more. `--shapes` selects some of the shapes. The largest one takes the most time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import options, report
from sparring.config import Config, validate
from sparring.config.recipe import resolved_toml
from sparring.types import TrainingBatch

LEAN = ("model.base_precision=bf16", "model.lora_merged=false", "optimizer.activation_checkpointing=true")
WITHOUT = ("optimizer.activation_checkpointing=false",)
RANKS = ("learner.type=group", "learner.num_ranks=2")
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "0.1B": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "0.4B": {
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "vocab_size": 49152,
    },
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    },
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
    },
}
"""SmolLM2-135M; SmolLM2-360M, Qwen2.5-0.5B and Qwen3-0.6B, which were not used to write the formulas; Llama 3.2 1B; and one
to try the program."""
WAYS: Mapping[str, tuple[str, ...]] = {
    "0.1B": WITHOUT,
    "0.1B, lean": LEAN,
    "0.1B, checkpointing": ("optimizer.activation_checkpointing=true",),
    "0.4B": WITHOUT,
    "0.5B": LEAN,
    "0.6B": ("optimizer.activation_checkpointing=true",),
    "1B": LEAN,
    "0.1B, two ranks": (*WITHOUT, *RANKS),
    "0.1B, two ranks divide the weights": (*RANKS, "learner.shard_weights=true"),
    "tiny": LEAN,
    "tiny, two ranks divide the weights": (*RANKS, "learner.shard_weights=true"),
}
"""The settings of each row, keyed by the row's name (its shape and its variant): the settings of a recipe, or those
that take the least memory."""
LIMIT_GIB = {"1B": 12}
TOKENS = 2048
FACTORS = (7, 5, 11, 13)
"""A different text for each microbatch of all ranks. The second one of a rank shows how much freed memory the allocator
cannot use again."""
TOLERANCE = 0.1


def build_config(way: str, tokens: int, *changes: str) -> Config:
    """Return the settings of one row of the table."""
    return validate(
        {},
        [
            "environment.target=a:B",
            "reward.reward=a:b",
            "model.device=cpu",
            "model.precision=fp32",
            f"model.max_sequence_length={tokens}",
            "sampling.sampling_max_tokens=32",
            "model.lora_rank=16",
            f"optimizer.max_tokens_per_microbatch={tokens}",
            f"engine.kv_cache_tokens={tokens}",
            *WAYS[way],
            *changes,
        ],
    )


def build_sizes(way: str, tokens: int) -> dict[str, Any]:
    """Return the sizes of the row's model, as in a transformers config."""
    return {**SHAPES[way.partition(",")[0]], "tie_word_embeddings": True, "max_position_embeddings": tokens}


def build_batch(vocab_size: int, tokens: int, *, num_sequences: int) -> TrainingBatch:
    """Return sequences with as many tokens as a microbatch."""
    from sparring.training.sequences import build_demonstration_batch

    mask = [False] + [True] * (tokens - 1)
    episodes = [[(factor * place + 11) % vocab_size for place in range(tokens)] for factor in FACTORS[:num_sequences]]
    return build_demonstration_batch([(ids, mask) for ids in episodes])


def measure(way: str, tokens: int) -> dict[str, float]:
    """Take one step in this process. Return its peak memory and the predicted peak, both in bytes, and its seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sparring.assembly.engines import build_engine
    from sparring.models.policy import LoraSettings, Policy
    from sparring.planning.devices import this_machine
    from sparring.planning.plan import make_plan
    from sparring.planning.shapes import shape_from_config
    from sparring.runtime.allocator import keep_freed_memory
    from sparring.training.learner import TorchLearner

    config, sizes = build_config(way, tokens), build_sizes(way, tokens)
    torch.set_num_threads(2)
    stored = "bf16" if config.model.base_precision == "bf16" else "fp32"
    torch.set_default_dtype(torch.bfloat16 if stored == "bf16" else torch.float32)
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    torch.set_default_dtype(torch.float32)
    section = config.model
    policy = Policy(
        model,
        None,
        max_positions=tokens,
        lora=LoraSettings(
            rank=section.lora_rank,
            alpha=section.lora_alpha,
            is_merged=None if section.lora_merged == "auto" else section.lora_merged,
        ),
        base_precision=stored,
    )
    engine = build_engine(config, policy, policy.snapshot())
    keep_freed_memory()
    learner = TorchLearner(
        policy,
        max_tokens_per_microbatch=tokens,
        activation_checkpointing=config.optimizer.activation_checkpointing is True,
    )
    batch = build_batch(sizes["vocab_size"], tokens, num_sequences=2)
    start = time.perf_counter()
    metrics = learner.forward_backward(batch, "cross_entropy", {})
    learner.optim_step(1e-5)
    learner.export_weights()
    seconds = time.perf_counter() - start
    asyncio.run(engine.close())
    plan = make_plan(config, shape_from_config(way, sizes), this_machine(flops=1.0, bandwidth=1.0))
    return {
        "peak": peak_bytes(),
        "predicted": plan.fullest.asked_bytes,
        "seconds": seconds,
        "trained tokens": metrics["training/trained_tokens"],
    }


def measure_group(way: str, tokens: int) -> dict[str, float]:
    """Take one step with ranks, which are started as a run does. Return the larger peak of a rank and the predicted one, both
    in bytes, and the seconds of the step."""
    from sparring.assembly.engines import ServerOptions, connect_group
    from sparring.assembly.policies import load_policy
    from sparring.planning.devices import this_machine
    from sparring.planning.division import Contents
    from sparring.planning.memory import memory_lines
    from sparring.planning.plan import settings_of
    from sparring.planning.shapes import shape_from_config
    from sparring.run_folders.recipe_files import RUN_RECIPE
    from sparring.runtime.keeper import list_descendants

    sizes = build_sizes(way, tokens)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = build_config(way, tokens, f"model.name={folder / 'model'}")
        # In a process of its own, whose memory does not count.
        run_child(way, tokens, "--save", str(folder / "model"))
        (folder / RUN_RECIPE).write_text(resolved_toml(config), "utf-8")
        policy = load_policy(config, folder)
        servers = ServerOptions(folder=folder / "engine", announce=lambda _: None)
        learner = connect_group(config, policy, policy.snapshot(), servers)
        try:
            start = time.perf_counter()
            batch = build_batch(sizes["vocab_size"], tokens, num_sequences=2 * config.learner.num_ranks)
            metrics = learner.forward_backward(batch, "cross_entropy", {})
            learner.optim_step(1e-5)
            learner.export_weights()
            seconds = time.perf_counter() - start
            largest = max(map(peak_bytes, list_descendants()))
        finally:
            learner.close()
    device = this_machine(flops=1.0, bandwidth=1.0)
    rank = memory_lines(shape_from_config(way, sizes), settings_of(config, device), Contents(num_ranks=1))
    return {
        "peak": largest,
        "predicted": sum(line.bytes for line in rank),
        "seconds": seconds,
        "trained tokens": metrics["training/trained_tokens"],
    }


def save_model(way: str, tokens: int, folder: Path) -> None:
    """Write the row's model with random weights, and a tokenizer, which is not used."""
    from sparring.models.small import random_llama, small_model

    random_llama(0, build_sizes(way, tokens)).save_pretrained(folder)
    small_model(0, ["text"])[1].save_pretrained(folder)


def peak_bytes(process: int | str = "self") -> float:
    """Return the peak resident memory of a process so far."""
    status = Path(f"/proc/{process}/status").read_text("ascii")
    lines = (line.split() for line in status.splitlines())
    return 1024.0 * next((int(words[1]) for words in lines if words[0] == "VmHWM:"), 0)


def run(way: str, tokens: int) -> dict[str, float]:
    return json.loads(run_child(way, tokens).splitlines()[-1])


def run_child(way: str, tokens: int, *options: str) -> str:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", way, "--tokens", str(tokens), *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__)
    parser.add_argument(
        "--shapes", nargs="+", default=[way for way in WAYS if "tiny" not in way], choices=list(WAYS), metavar="SHAPE"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each microbatch, in one sequence")
    parser.add_argument("--child", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.save:
        save_model(asked.child, asked.tokens, asked.save)
        return 0
    if asked.child:
        measured = (measure_group if "ranks" in asked.child else measure)(asked.child, asked.tokens)
        print(json.dumps(measured))
        return 0
    ways, tokens = ([way for way in WAYS if "tiny" in way], 64) if asked.smoke else (asked.shapes, asked.tokens)
    results = {way: run(way, tokens) for way in ways}
    figures, targets = dict[str, float](), dict[str, Mapping[str, float]]()
    for way, one in results.items():
        figures[f"{way}: peak by prediction"] = one["peak"] / one["predicted"]
        targets[f"{way}: peak by prediction"] = {"at_least": 1 - TOLERANCE, "at_most": 1 + TOLERANCE}
        if way in LIMIT_GIB:
            figures[f"{way}: peak, GiB"] = one["peak"] / 2**30
            targets[f"{way}: peak, GiB"] = {"at_most": LIMIT_GIB[way]}
    rows = [
        {
            "model": way,
            "tokens": tokens,
            "peak, GB": one["peak"] / 1e9,
            "predicted, GB": one["predicted"] / 1e9,
            "seconds": one["seconds"],
        }
        for way, one in results.items()
    ]
    sides = {f"{way}: trained tokens": one["trained tokens"] for way, one in results.items()}
    return report("memory", rows, figures=figures, targets=targets, path=asked.json, sides=sides, smoke=asked.smoke)


if __name__ == "__main__":
    sys.exit(main())
