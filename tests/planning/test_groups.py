"""A plan counts the ranks of a group and the servers where a run starts them, on one machine and on several GPUs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.errors import GateError
from sparring.planning import devices
from sparring.planning.devices import GPUS, Device, parse_gpu
from sparring.planning.division import RUN, Contents, divide
from sparring.planning.gate import needs_checkpointing, refuse_too_large
from sparring.planning.memory import Settings, activation_bytes, memory_lines
from sparring.planning.plan import make_plan, settings_of
from sparring.planning.published import PUBLISHED
from sparring.planning.shapes import shape_from_config
from tests.planning.test_plan import TINY, recipe, settings

ROOT = Path(__file__).parents[2]
SHAPE = shape_from_config("tiny", TINY)
"""1,272 parameters: 592 in each of two layers, 80 in the embedding, which is the output matrix, and 8 in the last norm.
`settings()` is an adapter with 768 numbers, a base in bf16, and products in bf16."""
PROCESS = 0.45e9 + 0.6 * 80 * 2
GROUP = ("learner.type=group", "learner.num_ranks=3")
SERVERS = ("engine.type=vllm", "engine.num_servers=4")
RAY = "run.launcher=ray"


def lines_of(contents: Contents, shape: object = SHAPE, **changes: object) -> dict[str, float]:
    return {line.name: line.bytes for line in memory_lines(shape, settings(**changes), contents)}  # type: ignore[arg-type]


def test_two_ranks_and_the_run_on_one_cpu_by_hand() -> None:
    contents = Contents(has_run=True, num_ranks=2)
    lines = lines_of(contents, num_ranks=2, is_cuda=False)
    step = {name: lines.pop(name) for name in ("activations", "fragmentation", "logits")}
    assert lines == {
        "weights of the run": 2 * 1272,
        # As in one process: the engine joins the factors.
        "adapter and its versions of the run": (12 + 1.5 * 2) * 768,
        "KV cache": 100 * 2 * (4 + 4) * 2,
        "logits of recent histories": 64 * 2**20,
        "process of the run": PROCESS,
        "weights": 2 * 2 * 1272,
        # The numbers, and a copy for the run.
        "adapter and its versions": 2 * 8 * 768,
        "gradients and optimizer": 2 * 12 * 768,
        "process": 2 * PROCESS,
    }
    one = activation_bytes(SHAPE, settings())
    assert step == {"activations": 2 * one, "fragmentation": pytest.approx(2 * 0.44 * one), "logits": 2 * 400}


def test_ranks_that_divide_a_frozen_base_by_hand() -> None:
    divided = {"num_ranks": 4, "shards_weights": True, "checkpointing": True, "sampler": "elsewhere"}
    lines = lines_of(Contents(num_ranks=1), **divided)
    assert lines == {
        "weights": 2 * 1272 / 4,
        "adapter and its versions": 8 * 768,
        "gradients and optimizer": 12 * 768,
        # The embedding, a layer, its copy with fused matrices, and the next layer.
        "gathered layers": 2 * (80 + 3 * 592),
        "activations": activation_bytes(SHAPE, settings(checkpointing=True)),
        "logits": 400,
    }
    # Freed layers are returned to the kernel, so no gaps are left between the activations.
    assert "fragmentation" not in lines_of(Contents(num_ranks=1), is_cuda=False, **divided)
    # With 100 layers, a rank needs most before it has given away its parts of the model: 59,288 parameters.
    deep = shape_from_config("deep", {**TINY, "num_hidden_layers": 100})
    short = {**divided, "lora_rank": 1, "max_sequence_length": 1, "microbatch_tokens": 1}
    loading = lines_of(Contents(num_ranks=4), deep, is_cuda=False, **short)
    assert loading["weights"] + loading["rest of the weights while they are loaded"] == 4 * 2 * 59288
    assert "gathered layers" not in loading


def test_ranks_that_train_all_weights_by_hand() -> None:
    full = {"lora_rank": None, "base_bytes": 4, "num_ranks": 4, "sampler": "elsewhere"}
    short = {**full, "max_sequence_length": 1, "microbatch_tokens": 1}
    divided = {**short, "shards_weights": True, "checkpointing": True}
    lines = lines_of(Contents(num_ranks=1), **divided)
    assert "master weights and versions" not in lines
    assert lines["weights"] == 4 * 1272 / 4
    assert lines["gradients and optimizer"] == 12 * 1272 / 4
    assert lines["gathered layers"] == 4 * (2 * 80 + 6 * 592)
    on_cpu = lines_of(Contents(num_ranks=4), is_cuda=False, **divided)
    assert on_cpu["copy of rank 0 for the run"] == 4 * 1272  # of one rank, not of four
    # Whole copies: with one token in a microbatch, the ranks need more while they add up their gradients, and on the CPU
    # rank 0 needs more than this for a checkpoint.
    whole = lines_of(Contents(num_ranks=1), **short)
    assert whole["master weights and versions"] == 8 * 1272
    assert whole["sum of the gradients"] == 4 * 1272
    assert "activations" not in whole
    assert lines_of(Contents(num_ranks=1), is_cuda=False, **short)["checkpoint of rank 0"] == 8 * 1272
    assert "activations" in lines_of(Contents(num_ranks=1), **full)


@pytest.mark.parametrize(
    ("changes", "number", "contents"),
    [
        ((), 1, [RUN]),
        (SERVERS, 1, [Contents(has_run=True, num_servers=4)]),
        (SERVERS, 3, [RUN, Contents(num_servers=2)]),
        (SERVERS, 5, [RUN, Contents(num_servers=1)]),
        (GROUP, 3, [Contents(has_run=True, num_ranks=1)]),
        (GROUP, 2, [Contents(has_run=True, num_ranks=2)]),
        ((*GROUP, *SERVERS), 7, [Contents(has_run=True, num_ranks=1), Contents(num_servers=1)]),
        ((*GROUP, *SERVERS), 5, [Contents(has_run=True, num_ranks=1), Contents(num_servers=2)]),
        # Nothing is left for the servers, so they use all GPUs in turn.
        ((*GROUP, *SERVERS), 3, [Contents(has_run=True, num_ranks=1, num_servers=2)]),
        ((*GROUP, RAY), 4, [Contents(num_ranks=1), RUN]),
        ((*GROUP, *SERVERS, RAY), 8, [Contents(num_ranks=1), RUN, Contents(num_servers=1)]),
        (("learner.type=group", 'learner.base_urls=["http://a:1", "http://b:1"]'), 1, [Contents(num_ranks=1), RUN]),
    ],
)
def test_gpus_are_divided_as_a_run_divides_them(
    changes: tuple[str, ...], number: int, contents: list[Contents]
) -> None:
    assert list(divide(recipe(*changes), parse_gpu(f"H100:{number}")).devices) == contents


def test_one_cpu_holds_everything_that_is_started_here() -> None:
    cpu = Device(name="cpu", memory_bytes=24e9, flops=1e11, bandwidth=1e10, is_cuda=False)
    everything = divide(recipe(*GROUP, *SERVERS), cpu)
    assert everything.devices == (Contents(has_run=True, num_ranks=3, num_servers=4),)
    assert (everything.num_learning, everything.num_sampling) == (1, 1)
    there = divide(recipe("learner.type=group", 'learner.base_urls=["http://a:1", "http://b:1"]'), cpu)
    assert there.devices == (Contents(num_ranks=1), RUN)
    assert there.num_learning == 2
    assert [one.name for one in (*everything.devices, *there.devices)] == [
        "the run, 3 ranks and 4 servers",
        "1 rank",
        "the run",
    ]


def test_each_gpu_must_have_room_for_what_it_holds() -> None:
    config = recipe(*GROUP, *SERVERS, "model.max_sequence_length=4096", "engine.max_running=8")
    plan = make_plan(config, PUBLISHED["qwen3-8b"], parse_gpu("H100:7"))
    learner, server = plan.tables
    assert plan.fits
    assert learner.bytes == pytest.approx(sum(line.bytes for line in learner.lines))
    # Bytes of a model in bf16: of the run and of its rank, and of the server.
    weights = 2 * PUBLISHED["qwen3-8b"].parameters
    assert [line.bytes for line in (*learner.lines, *server.lines) if line.name.startswith("weights")] == [weights] * 3
    layer = PUBLISHED["qwen3-8b"].layers[0]
    cache = next(line.bytes for line in server.lines if line.name == "KV cache of the servers")
    assert cache == 8 * 4096 * layer.count * layer.kv_width * 2
    assert plan.server_share is None  # no server is on the learner's GPU
    shared = make_plan(config, PUBLISHED["qwen3-0.6b"], parse_gpu("H100:3"))
    alone = make_plan(
        recipe(*GROUP, "engine.type=vllm", 'engine.base_urls=["http://a:1"]'), PUBLISHED["qwen3-0.6b"], GPUS["H100"]
    )
    assert shared.server_share is not None
    assert [one.contents.name for one in shared.tables] == ["the run, 1 rank and 2 servers"]
    assert [one.contents.name for one in alone.tables] == ["the run and 3 ranks"]
    # A server needs the whole model on one GPU even where three ranks divide it, and so does the process of the run.
    refusal = make_plan(
        recipe(*GROUP, *SERVERS, RAY, "learner.shard_weights=true"), PUBLISHED["qwen2.5-72b"], parse_gpu("H100:8")
    ).refusal()
    assert refusal is not None
    assert "for 1 server with this recipe, but H100 has only 72.0 GB" in refusal


def test_ranks_divide_the_learning_and_servers_the_sampling() -> None:
    def cost(device: Device, *changes: str) -> tuple[float, float, float | None]:
        found = make_plan(
            recipe("engine.type=vllm", "batch.group_size=64", *changes), PUBLISHED["qwen3-0.6b"], device
        ).cost
        return found.train_rate, found.sample_rate, found.money

    one, three = cost(parse_gpu("H100:2")), cost(parse_gpu("H100:4"), *GROUP)
    assert three[0] == pytest.approx(3 * one[0])
    assert three[1] == pytest.approx(one[1])
    four = cost(parse_gpu("H100:5"), "engine.num_servers=4")
    assert four[0] == pytest.approx(one[0])
    assert four[1] == pytest.approx(4 * one[1])
    cpu = Device(name="cpu", memory_bytes=24e9, flops=1e11, bandwidth=1e10, is_cuda=False)
    assert cost(cpu, *GROUP)[0] == pytest.approx(cost(cpu)[0])  # the same cores
    confidence = make_plan(
        recipe(*GROUP, "learner.shard_weights=true"), PUBLISHED["qwen3-0.6b"], parse_gpu("H100:3")
    ).confidence
    assert "add up their gradients and gather their weights is not counted" in confidence


def test_ranks_that_divide_the_weights_always_compute_layers_again() -> None:
    def made(*changes: str) -> Settings:
        return settings_of(recipe(*GROUP, "optimizer.activation_checkpointing=false", *changes), GPUS["H100"])

    assert not made().checkpointing
    assert made("learner.shard_weights=true").checkpointing


PLACE = """
[engine]
type = "vllm"
num_servers = 4
[learner]
type = "group"
num_ranks = 3
device = "cuda"
"""


def plan_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", str(ROOT / "recipes" / "quickstart"), *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_the_command_shows_a_table_for_each_kind_of_gpu(tmp_path: Path) -> None:
    place = tmp_path / "place.toml"
    place.write_text(PLACE, "utf-8")
    model = "model.name=Qwen/Qwen3-8B"
    code, shown = plan_command(model, "--on", str(place), "--gpu", "H100:7")
    assert code == 0
    assert "qwen3-8b on H100: the run and 1 rank" in shown
    assert "qwen3-8b on H100: 1 server" in shown
    assert "at 33.32 an hour for 7 GPUs" in shown
    code, shown = plan_command(model, "--on", str(place), "--gpu", "H100:7", "--json")
    assert [table["of"] for table in json.loads(shown)["tables"]] == ["the run and 1 rank", "1 server"]
    for arguments, expected in {
        ("--on", str(place), "--gpu", "H100:9"): "use 7: 3 ranks and 4 servers; use --gpu H100:7.",
        (
            "--on",
            str(ROOT / "deploy" / "gpu-node.toml"),
            "--gpu",
            "H100:7",
        ): "use 8: the run, 3 ranks and 4 servers; use --gpu H100:8.",
        (
            "--gpu",
            "H100:4",
        ): 'use 1: the run; use --gpu H100:1. A place file (--on) with ranks (learner.type = "group")',
    }.items():
        code, shown = plan_command(model, *arguments)
        assert code == 2
        assert expected in shown


def test_the_example_of_the_docs_is_what_the_command_shows() -> None:
    page = (ROOT / "docs" / "planning.md").read_text("utf-8")
    example = page.partition("```text\n")[2].partition("```")[0]
    _, shown = plan_command("model.name=Qwen/Qwen3-8B", "--on", str(ROOT / "deploy/gpu-node.toml"), "--gpu", "H100:8")
    plain = " ".join(re.sub("[^\\x00-\\x7f]", " ", shown).split())
    lines = [" ".join(line.split()) for line in example.splitlines()]
    assert len(lines) == 19
    assert [line for line in lines if line not in plain] == []


def documented_commands() -> list[str]:
    """Return the commands that plan for a GPU, in blocks and within sentences."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").glob("*.toml"))]
    found = (re.findall(r"sparring plan [^`\n]*--gpu [^`#\n]*", page.read_text("utf-8")) for page in pages)
    return [command.strip() for commands in found for command in commands]


def test_there_are_documented_commands() -> None:
    assert len(documented_commands()) >= 6


@pytest.mark.parametrize("command", documented_commands())
def test_a_documented_command_plans(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = [one.replace("my-recipe", "recipes/sop") for one in shlex.split(command)[1:]]
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_a_group_that_does_not_fit_together_is_refused_or_computes_layers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = (
        "model.name=smollm2-135m-instruct",
        "model.device=cpu",
        "model.precision=fp32",
        "model.max_sequence_length=1024",
    )
    small = ("optimizer.max_tokens_per_microbatch=8192", "engine.kv_cache_tokens=1024")
    fixed = recipe(*model, *small, *GROUP, "optimizer.activation_checkpointing=false")
    plan = make_plan(fixed, PUBLISHED["smollm2-135m"], devices.this_machine(flops=1.0, bandwidth=1.0))
    needed = int(plan.fullest.asked_bytes)
    monkeypatch.setattr(devices, "available_bytes", lambda: needed + 1)
    refuse_too_large(fixed)
    monkeypatch.setattr(devices, "available_bytes", lambda: needed - 1)
    with pytest.raises(GateError, match=r"for the run and 3 ranks with this recipe"):
        refuse_too_large(fixed)
    refuse_too_large(recipe(*model, *small, *GROUP, RAY))
    refuse_too_large(recipe(*model, *small, "learner.type=group", 'learner.base_urls=["http://a:1"]'))
    # Left open, the ranks compute activations again, where a learner alone would not.
    config = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    refuse_too_large(recipe(*model, *small, *GROUP))
    assert needs_checkpointing(recipe(*model, *small, *GROUP), config)
    assert not needs_checkpointing(recipe(*model, *small), config)
