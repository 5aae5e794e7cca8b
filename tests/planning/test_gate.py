"""A training that cannot fit is refused before its model is loaded, and never for what is unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparring.config import Config, load_config
from sparring.errors import GateError
from sparring.planning import devices
from sparring.planning.gate import needs_checkpointing, refuse_too_large
from sparring.planning.plan import make_plan
from sparring.planning.shapes import shape_from_config

LLAMA_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 800,  # ten times as deep, so that no machine has the memory
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
RECIPE = """
[model]
name = "{model}"
device = "cpu"
precision = "fp32"
[environment]
target = "environment:Shop"
[reward]
reward = "environment:reward"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps(LLAMA_70B), "utf-8")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(model=tmp_path / "large"), "utf-8")
    (tmp_path / "environment.py").write_text(
        "from sparring.environments import Environment\nclass Shop(Environment): pass\ndef reward(episode): return 0.0\n",
        "utf-8",
    )
    return path


def test_train_refuses_it_with_the_line_that_is_too_large(recipe: Path) -> None:
    command = (sys.executable, "-m", "sparring", "train", str(recipe), "--no-supervise")
    done = subprocess.run(command, capture_output=True, text=True, cwd=recipe.parent, check=False)
    assert done.returncode == GateError.exit_code
    # 800 layers of 8192 x 28672 x 3 and of 8192 x 8192 x 2.25, 4 bytes each: 2.7 TB, and two copies for the engine.
    assert "The largest item is weights of the engine, " in done.stderr
    assert "use a smaller model, or a larger device" in done.stderr
    assert not (recipe.parent / "runs").exists()


def test_what_to_change_is_named_where_something_fits(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_bytes", lambda: 9_000_000_000)
    changes = [
        "model.name=smollm2-135m-instruct",
        "model.max_sequence_length=1024",
        "optimizer.activation_checkpointing=false",
    ]
    large = load_config(recipe, [*changes, "optimizer.max_tokens_per_microbatch=16384"])
    with pytest.raises(
        GateError, match=r"The largest item is activations.*It fits with optimizer.max_tokens_per_microbatch="
    ):
        refuse_too_large(large)
    # With 2,048 tokens and half of the cache it takes 6.8 GB.
    refuse_too_large(
        load_config(recipe, [*changes, "optimizer.max_tokens_per_microbatch=2048", "engine.kv_cache_tokens=32768"])
    )


@pytest.mark.parametrize(
    "changes",
    [
        ["model.name=model:build"],
        ["model.name=organization/unknown"],
        ["engine.type=remote", "engine.base_url=http://127.0.0.1:1"],
        ["learner.type=remote", "learner.base_url=http://127.0.0.1:1"],
    ],
)
def test_nothing_is_refused_where_the_plan_is_unknown(recipe: Path, changes: list[str]) -> None:
    config: Config = load_config(recipe, changes)
    refuse_too_large(config)


LLAMA_TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
}


def test_activations_are_recomputed_where_the_recipe_does_not_fit_otherwise(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load_config(recipe, ["engine.kv_cache_tokens=2048", "optimizer.max_tokens_per_microbatch=65536"])
    assert asked.optimizer.activation_checkpointing == "auto"
    assert not needs_checkpointing(asked, LLAMA_TINY)
    without = make_plan(asked, shape_from_config("tiny", LLAMA_TINY), devices.this_machine(flops=1.0, bandwidth=1.0))
    monkeypatch.setattr(devices, "available_bytes", lambda: int(without.fullest.bytes) - 1)
    assert needs_checkpointing(asked, LLAMA_TINY)
    refuse_too_large(asked.model_copy(update={"model": asked.model.model_copy(update={"name": "a:b"})}))
    for setting in ("true", "false"):
        fixed = load_config(recipe, [f"optimizer.activation_checkpointing={setting}"])
        assert needs_checkpointing(fixed, LLAMA_TINY) is (setting == "true")
    assert not needs_checkpointing(asked, {"model_type": "not a decoder"})
