"""Print the table in docs/planning.md: models of each family on GPUs of four sizes.

Run it with `python -m sparring.planning.table`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparring.config import Config, validate
from sparring.planning.devices import GPUS
from sparring.planning.plan import changes, make_plan, show_bytes
from sparring.planning.published import PUBLISHED
from sparring.planning.shapes import ModelShape

DEVICES = ("RTX4090", "L40S", "H100", "H200")
MODELS = (
    *(f"qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b")),
    *("gpt-oss-20b", "qwen3.6-27b", "gemma-4-31b"),
    *("llama-3.1-8b", "qwen2.5-7b", "mistral-7b-v0.3", "gemma-3-4b", "smollm3-3b"),
)
"""The sizes of Qwen3 and the example of each other family."""
_SETTINGS = (
    "model.max_sequence_length=8192",
    "sampling.sampling_max_tokens=1024",
    "optimizer.max_tokens_per_microbatch=8192",
    "optimizer.activation_checkpointing=false",
    "engine.kv_cache_tokens=65536",
    "environment.target=your:Environment",
    "reward.reward=your:reward",
)
_ATTENTION = 'model.lora_targets=["q_proj", "k_proj", "v_proj", "o_proj"]'


def table_config(model: ModelShape) -> Config:
    """Return the settings of the table: LoRA of rank 32 on the default targets, or on attention only for a mixture of
    experts."""
    has_experts = any(layer.num_experts > 1 for layer in model.layers)
    return validate({}, [*_SETTINGS, *([_ATTENTION] if has_experts else [])])


def lines() -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    heads = [f"{name}, {show_bytes(GPUS[name].memory_bytes)}" for name in DEVICES]
    yield f"| model | weights | {' | '.join(heads)} |"
    yield "| --- " * (len(DEVICES) + 2) + "|"
    for name in MODELS:
        model = PUBLISHED[name]
        cells = [_cell(model, device) for device in DEVICES]
        yield f"| {name} | {show_bytes(2 * model.parameters)} | {' | '.join(cells)} |"


def _cell(model: ModelShape, device: str) -> str:
    plan = make_plan(table_config(model), model, GPUS[device])
    if plan.chosen is None:
        return f"no: {show_bytes(plan.smallest_bytes)}"
    words = {
        "engine.kv_cache_tokens": "KV ",
        "optimizer.max_tokens_per_microbatch": "microbatch ",
        "optimizer.activation_checkpointing": "checkpointing",
    }
    found = [change.partition("=") for change in changes(plan.asked, plan.chosen)]
    return ", ".join(
        [show_bytes(plan.fullest.bytes), *(words[key] + value.removeprefix("true") for key, _, value in found)]
    )


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201 - the command's result
