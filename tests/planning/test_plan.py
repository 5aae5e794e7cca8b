"""A plan states memory, settings that fit, time and money, from shapes alone; figures by hand and published ones."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import Config, validate
from sparring.errors import UsageError
from sparring.models.architectures.families import FAMILIES
from sparring.planning import table
from sparring.planning.devices import GPUS, Device, parse_gpu
from sparring.planning.division import Contents
from sparring.planning.memory import (
    HISTORY_DIVISOR,
    LEAST_HISTORY_BYTES,
    SERVER_BYTES,
    SERVER_CACHE_BYTES,
    TRUNK_FACTOR,
    Settings,
    activation_bytes,
    memory_lines,
)
from sparring.planning.plan import Episodes, decoding_bytes, make_plan, run_cost, settings_of
from sparring.planning.published import PUBLISHED, short_name
from sparring.planning.resolve import find_shape
from sparring.planning.shapes import shape_from_config

ROOT = Path(__file__).parents[2]
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 10,
    "tie_word_embeddings": True,
}


def recipe(*overrides: str) -> Config:
    return validate({"environment": {"target": "a:B"}, "reward": {"reward": "a:b"}}, overrides)


def settings(**changes: object) -> Settings:
    values = {
        "max_sequence_length": 4,
        "microbatch_tokens": 10,
        "kv_cache_tokens": 100,
        "max_running": 2,
        "checkpointing": False,
        "base_bytes": 2,
        "compute_bytes": 2,
        "is_merged": False,
        "is_cuda": True,
        "lora_rank": 3,
        "lora_targets": LINEARS,
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_as_many_parameters_as_its_card_states(name: str) -> None:
    shape = PUBLISHED[name]
    assert shape.published_parameters is not None
    assert shape.parameters == pytest.approx(shape.published_parameters, rel=0.015)


def test_the_lines_of_a_tiny_model_by_hand() -> None:
    shape = shape_from_config("tiny", TINY)
    # A layer: q and o 8x8, k and v 4x8, MLP 3 times 16x8, two norms of 8. Adapter: 3 (16 + 12 + 12 + 16 + 24 + 24 + 24).
    assert shape.parameters == 2 * (64 + 64 + 32 + 32 + 384 + 16) + 80 + 8
    lines = {line.name: line.bytes for line in memory_lines(shape, settings())}
    assert lines["weights"] == 2 * 1272
    # The engine joins the factors of an adapter that it does not merge: 1.5 times as many numbers, in bf16.
    assert lines["adapter and its versions"] == (12 + 1.5 * 2) * 2 * 384
    merged = {line.name: line.bytes for line in memory_lines(shape, settings(is_merged=True))}
    assert merged["adapter and its versions"] == 12 * 2 * 384
    assert lines["gradients and optimizer"] == 12 * 2 * 384
    assert lines["KV cache"] == 100 * 2 * (4 + 4) * 2
    # The inputs of both norms, gate and up, and around attention 4 times its queries and 3 times its keys.
    saved = 2 * 8 + 4 * 8 + 3 * 4 + 2 * 16
    assert lines["activations"] == 10 * 2 * (2 * saved + 3 * 16 + 5 * 8)
    # The library's forward pass keeps the outputs of both norms, the activation and the product as well.
    everything = saved + 2 * 8 + 2 * 16
    other = shape_from_config("other", {**TINY, "model_type": "gemma3_text"})
    assert activation_bytes(other, settings()) == 10 * 2 * (2 * everything + 3 * 16 + 5 * 8)
    for one in (shape, other):
        assert activation_bytes(one, settings(checkpointing=True)) == 10 * 2 * (2 * 8 + everything + 3 * 16 + 5 * 8)
    assert lines["logits"] == 4 * 10 * 10
    assert "fragmentation" not in lines
    on_the_cpu = {line.name: line.bytes for line in memory_lines(shape, settings(is_cuda=False))}
    assert on_the_cpu["fragmentation"] == pytest.approx(0.44 * lines["activations"])
    # A base in fp32 for products in bf16: the converted half of a chunk and one chunk.
    converted = {line.name: line.bytes for line in memory_lines(shape, settings(base_bytes=4))}
    assert converted["logits"] == 1.5 * 4 * 10 * 10


def test_an_engine_that_returns_its_cache_needs_it_only_for_sampling() -> None:
    shape = shape_from_config("tiny", TINY)

    def names(**changes: object) -> set[str]:
        return {line.name for line in memory_lines(shape, settings(is_cuda=False, returns_cache=True, **changes))}

    sampling, step = {"KV cache", "logits of recent histories"}, {"activations", "logits", "fragmentation"}
    assert names() & (sampling | step) == sampling  # the logits take at least 64 MiB
    assert names(microbatch_tokens=10**6) & (sampling | step) == step
    assert names() - sampling == names(microbatch_tokens=10**6) - step
    cpu = Device(name="cpu", memory_bytes=24e9, flops=1e11, bandwidth=1e10, is_cuda=False, is_calibrated=True)
    returning = {
        overrides: make_plan(recipe(*overrides), shape, device).asked.returns_cache
        for device, overrides in (
            (cpu, ("rollout.max_steps_off_policy=0",)),
            (cpu, ("rollout.max_steps_off_policy=0", "engine.deterministic=false")),
            (cpu, ("rollout.max_steps_off_policy=1",)),
            (GPUS["H100"], ("rollout.max_steps_off_policy=0", "model.device=cuda")),
        )
    }
    assert list(returning.values()) == [True, False, False, False]


def test_the_engine_s_logits_and_the_outputs_of_frozen_layers_by_hand() -> None:
    from sparring.engines import cached_forward, torch_engine

    assert cached_forward.TRUNK_FACTOR == TRUNK_FACTOR
    assert (torch_engine.LEAST_LOGIT_BYTES, torch_engine.LOGIT_DIVISOR) == (LEAST_HISTORY_BYTES, HISTORY_DIVISOR)
    shape = shape_from_config("tiny", TINY)
    lines = {line.name: line.bytes for line in memory_lines(shape, settings(kv_cache_tokens=10**8, lora_layers=1))}
    assert lines["logits of recent histories"] == lines["KV cache"] / 8
    assert lines["outputs of frozen layers"] == 3 * 10**8 * 8 * 2
    assert "outputs of frozen layers" not in {line.name for line in memory_lines(shape, settings(lora_layers=2))}


def test_servers_that_share_the_learner_s_device_keep_a_model_of_their_own() -> None:
    shape = shape_from_config("tiny", TINY)
    shared = settings(sampler="servers", num_adapters=3, kv_cache_tokens=4)
    both = Contents(has_run=True, num_servers=2)
    lines = {line.name: line.bytes for line in memory_lines(shape, shared, both)}
    assert lines["weights"] == 2 * 1272
    assert lines["weights of the servers"] == 2 * 2 * 1272
    assert lines["adapters of the servers"] == 2 * 3 * 2 * 384 * 2
    assert lines["KV cache of the servers"] == 2 * 4 * 2 * (4 + 4) * 2
    assert lines["other memory of the servers"] == 2 * SERVER_BYTES[True]
    assert lines["adapter and its versions"] == 12 * 2 * 384  # no engine joins the factors
    assert not {"KV cache", "logits of recent histories", "weights of the engine"} & lines.keys()
    on_the_cpu = {line.name: line.bytes for line in memory_lines(shape, replace(shared, is_cuda=False), both)}
    assert on_the_cpu["weights of the servers"] == 2 * 4 * 1272  # in fp32
    assert on_the_cpu["KV cache of the servers"] == 2 * SERVER_CACHE_BYTES
    elsewhere = {line.name for line in memory_lines(shape, settings(sampler="elsewhere"))}
    assert elsewhere == {"weights", "adapter and its versions", "gradients and optimizer", "activations", "logits"}


def test_servers_on_the_learner_s_gpu_get_the_memory_that_it_leaves() -> None:
    config = recipe("engine.type=vllm", "model.max_sequence_length=4096", "engine.max_running=8")
    plan = make_plan(config, PUBLISHED["qwen3-0.6b"], GPUS["H100"])
    assert plan.fits
    (table,) = plan.tables
    learner = sum(line.bytes for line in table.lines if "servers" not in line.name)
    assert plan.server_share == int(100 * (72e9 - learner) / 80e9) / 100
    # The cache holds whole episodes for all running turns.
    layer = PUBLISHED["qwen3-0.6b"].layers[0]
    cache = next(line.bytes for line in table.lines if line.name == "KV cache of the servers")
    assert cache == 8 * 4096 * layer.count * layer.kv_width * 2
    # A larger model leaves room for fewer tokens, and all of the memory is used.
    many = recipe("engine.type=vllm", "model.max_sequence_length=4096", "engine.max_running=64")
    full = make_plan(many, PUBLISHED["qwen3-14b"], GPUS["H100"])
    assert full.asked.checkpointing
    assert full.fullest.bytes == pytest.approx(72e9, rel=1e-4)
    refused = make_plan(config, PUBLISHED["qwen3-32b"], GPUS["H100"])
    assert not refused.fits
    assert "weights of the servers" in {line.name for line in refused.fullest.asked_lines}


def test_servers_on_the_cpu_have_a_cache_of_fixed_size() -> None:
    device = Device(name="cpu", memory_bytes=24e9, flops=1e11, bandwidth=1e10, is_cuda=False, is_calibrated=True)
    plan = make_plan(recipe("engine.type=vllm", "engine.num_servers=2"), PUBLISHED["smollm2-135m"], device)
    assert plan.server_share is None
    assert "with Sparring's engine instead of vLLM" in plan.confidence
    layer = PUBLISHED["smollm2-135m"].layers[0]
    running = 2 * int(2**30 / (4 * layer.count * layer.kv_width)) // plan.asked.max_sequence_length
    assert running < 64
    context = plan.asked.max_sequence_length / 2
    read = decoding_bytes(PUBLISHED["smollm2-135m"], plan.asked, running, context)
    assert plan.cost.sample_rate == pytest.approx(running / (read / 1e10))


def test_three_lines_are_near_published_figures() -> None:
    assert 2 * PUBLISHED["qwen3.6-27b"].parameters == pytest.approx(55.56e9, rel=0.15)
    llama = shape_from_config("llama", LLAMA_8B)
    cache = memory_lines(llama, settings(kv_cache_tokens=128_000))
    assert next(line.bytes for line in cache if line.name == "KV cache") / 2**30 == pytest.approx(15.62, rel=0.15)
    trained = settings(
        max_sequence_length=2048, microbatch_tokens=4096, kv_cache_tokens=0, checkpointing=True, lora_rank=8
    )
    total = sum(line.bytes for line in memory_lines(llama, trained))
    assert total / 2**30 == pytest.approx(16.2, rel=0.15)


def test_layers_of_three_kinds_cache_what_they_attend_to() -> None:
    hybrid, experts, windowed = (PUBLISHED[name] for name in ("qwen3.6-27b", "gpt-oss-20b", "gemma-4-31b"))
    assert [(one.count, one.kv_width > 0, one.state_width > 0) for one in hybrid.layers] == [
        (48, False, True),
        (16, True, False),
    ]
    assert experts.active_parameters == pytest.approx(3.61e9, rel=0.01)
    assert [(one.count, one.window) for one in windowed.layers] == [(50, 1024), (10, None)]


def test_what_does_not_fit_is_refused_with_the_largest_line_and_what_fits() -> None:
    config = recipe(
        "model.max_sequence_length=8192",
        "optimizer.max_tokens_per_microbatch=16384",
        "optimizer.activation_checkpointing=false",
    )
    plan = make_plan(config, PUBLISHED["qwen3-14b"], GPUS["H100"])
    assert not plan.fits
    refusal = plan.refusal()
    assert refusal is not None
    assert "The largest item is activations" in refusal
    assert "checkpointing" in refusal
    assert plan.chosen is not None
    assert plan.fullest.bytes <= GPUS["H100"].memory_bytes
    too_large = make_plan(config, PUBLISHED["qwen3-32b"], GPUS["RTX4090"])
    assert too_large.chosen is None
    assert "The largest item is activations" in (too_large.refusal() or "")
    assert "use a smaller model" in (too_large.refusal() or "")
    assert make_plan(config, PUBLISHED["qwen3-0.6b"], GPUS["H200"]).refusal() is None


def test_a_microbatch_is_never_smaller_than_an_episode() -> None:
    device = Device(name="small", memory_bytes=2.5e9, flops=1e12, bandwidth=1e11)
    plan = make_plan(recipe("model.max_sequence_length=4096"), PUBLISHED["qwen3-0.6b"], device)
    for one in (plan.asked, plan.chosen):
        assert one is None or one.tokens >= 4096


def test_time_and_money_of_a_step_by_hand() -> None:
    shape = shape_from_config("tiny", TINY)
    device = Device(name="d", memory_bytes=1e9, flops=1e6, bandwidth=1e9, hourly_price=3.6)
    episodes = Episodes(per_step=2, steps=10, tokens=4, sampled=4, source="")
    cost = run_cost(shape, device, settings(), episodes)
    # Active parameters: two layers and the output matrix. Attention: 2 layers x 4 x 8 rows x 2 tokens before it.
    active = 2 * 592 + 80
    per_token = 2 * (2 * active + 2 * 4 * 8 * 2)
    assert cost.train_seconds == pytest.approx(2 * 4 * per_token / 1e6)
    # Two turns decode together, and their products take longer than reading the weights.
    assert cost.sample_rate == pytest.approx(2 / (2 * active * 2 / 1e6))
    # Two layers whose operations take 0.1 s to launch take longer still.
    slow = run_cost(shape, replace(device, layer_seconds=0.05), settings(), episodes)
    assert slow.sample_rate == pytest.approx(2 / 0.1)
    hours = 10 * (cost.sample_seconds + cost.train_seconds) / 3600
    assert cost.hours == pytest.approx(hours)
    assert cost.money == pytest.approx(3.6 * hours)


def test_a_gpu_is_named_with_the_number_of_gpus() -> None:
    assert parse_gpu("h100:1") == parse_gpu("H100") == GPUS["H100"]
    eight = parse_gpu("H100:8")
    assert (eight.num_devices, eight.hourly_price, eight.memory_bytes) == (8, 8 * 4.76, 72e9)
    with pytest.raises(UsageError, match="is not known"):
        parse_gpu("X9")


def test_a_shape_is_found_by_folder_and_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert find_shape(str(tmp_path)).parameters == 1272  # type: ignore[union-attr]
    assert find_shape("Qwen/Qwen3-8B") is PUBLISHED["qwen3-8b"]
    assert find_shape("Qwen/Qwen3-4B-Instruct-2507") is PUBLISHED["qwen3-4b"]
    assert find_shape("Qwen/Qwen2.5-Coder-7B-Instruct") is PUBLISHED["qwen2.5-7b"]
    assert find_shape("meta-llama/Meta-Llama-3.1-8B-Instruct") is PUBLISHED["llama-3.1-8b"]
    assert find_shape("mistralai/Mistral-7B-v0.3") is PUBLISHED["mistral-7b-v0.3"]
    assert find_shape("google/gemma-3-4b-pt") is PUBLISHED["gemma-3-4b"]
    assert find_shape("smollm2-135m-instruct") is PUBLISHED["smollm2-135m"]
    assert find_shape("model:make") is None
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="hidden_size"):
        find_shape(str(tmp_path))


def test_cuda_stores_the_base_once_and_a_processor_merges_it() -> None:
    config = recipe("model.precision=fp32")
    cpu = Device(name="cpu", memory_bytes=1e9, flops=1, bandwidth=1, is_cuda=False)
    assert settings_of(config, cpu).is_merged
    on_cuda = settings_of(config, GPUS["H100"])
    assert (on_cuda.is_merged, on_cuda.base_bytes) == (False, 2)


def test_the_table_of_the_docs_is_the_one_that_is_computed() -> None:
    page = (ROOT / "docs" / "planning.md").read_text("utf-8")
    shown = page.partition("<!-- table: sparring.planning.table -->\n")[2].partition("<!-- end -->")[0]
    assert shown.strip() == "\n".join(table.lines())
    assert {short_name(family.example) for family in FAMILIES} <= set(table.MODELS)


def test_the_command_prints_lines_time_and_money_without_torch() -> None:
    result = CliRunner().invoke(app, ["plan", str(ROOT / "recipes" / "sop"), "--gpu", "H100", "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["fits"]
    (table,) = plan["tables"]
    assert table["lines"]["weights"] == pytest.approx(2 * 134.5e6, rel=0.01)
    assert plan["cost"]["money"] > 0
    refused = CliRunner().invoke(
        app, ["plan", str(ROOT / "recipes" / "sop"), "model.name=Qwen/Qwen3-32B", "--gpu", "RTX4090"]
    )
    assert refused.exit_code == 5
    assert "qwen3-32b needs" in refused.output
    code = "import sys, sparring.cli.plan, sparring.planning.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.parametrize("text", ["H100:0", "H100:-1", "H100:", "H100:two"])
def test_a_number_of_gpus_that_is_not_positive_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give at least one, for example H100:8"):
        parse_gpu(text)
