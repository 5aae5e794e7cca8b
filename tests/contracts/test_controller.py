"""A run whose engine and learner are in other processes holds no weights, however large the model is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.contracts.cases import process
from tests.faults.recipe import tiny

RECIPE = Path(__file__).parents[1] / "faults" / "recipe"
LAYER = {"self_attn.q_proj": (4096, 4096), "self_attn.o_proj": (4096, 4096), "mlp.up_proj": (14336, 4096)}
NUM_LAYERS = 80
CONTROLLER = """
import asyncio, re, sys
from pathlib import Path
from sparring.assembly import close, load_training_parts
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config
from sparring.ledger import Ledger

recipe = Path(sys.argv[1])
config = load_config(recipe, sys.argv[2:])
parts = load_training_parts(config, recipe.parent, Ledger())
before = parts.learner.export_weights().fingerprint
assert (parts.policy, before) == (None, parts.initial_weights.fingerprint)
assert parts.model.num_parameters > 7e9, parts.model.num_parameters
assert "needs the model's weights" in str(Subject(config, recipe, parts=parts).lacks("weights"))
asyncio.run(close(parts))
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1))
"""


def write_large_model(folder: Path) -> None:
    """Write a folder like that of a model of 7.4 billion parameters. Its file is a hole of 15 GB that takes no room."""
    _, tokenizer = tiny.build(0)
    tokenizer.save_pretrained(folder)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": NUM_LAYERS}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    header, end = {}, 0
    for layer in range(NUM_LAYERS):
        for name, shape in LAYER.items():
            begin, end = end, end + 2 * shape[0] * shape[1]
            header[f"model.layers.{layer}.{name}.weight"] = {
                "dtype": "BF16",
                "shape": list(shape),
                "data_offsets": [begin, end],
            }
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def test_a_controller_of_a_large_model_stays_below_a_gigabyte(tmp_path: Path) -> None:
    shutil.copytree(RECIPE, tmp_path / "recipe", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    recipe = tmp_path / "recipe" / "recipe.toml"
    recipe.write_text(recipe.read_text("utf-8").partition("[engine]")[0].replace('"full"', '"lora"'), "utf-8")
    (tmp_path / "model").mkdir()
    write_large_model(tmp_path / "model")
    with process("strict engine", "learner") as (engine, learner):
        places = [
            f"model.name={tmp_path / 'model'}",
            *("engine.type=remote", f"engine.base_url={engine}"),
            *("learner.type=remote", f"learner.base_url={learner}"),
        ]
        done = subprocess.run(
            (sys.executable, "-c", CONTROLLER, str(recipe), *places), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) * 1024 < 2**30
