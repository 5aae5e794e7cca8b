"""A description of a model is what the weights' process would say of it, and is made without the weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.chat import create_chat
from sparring.config import validate
from sparring.errors import ServiceError
from sparring.models.description import ModelDescription, describe_policy, read_description
from sparring.models.policy import LoraSettings, Policy
from sparring.models.small import small_model

NEEDED = {"environment": {"target": "environment:Shop"}, "reward": {"reward": "environment:reward"}}
MOST_GROWTH = 64 * 2**20


def section_of(*overrides: str) -> Any:
    return validate(NEEDED, [f"model.{one}" for one in overrides]).model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model, tokenizer = small_model(0, ["hello there, hello here"], layers=2, width=32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def copy_without_weights(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)


def facts(description: ModelDescription) -> dict[str, object]:
    return {
        "vocabulary": description.vocabulary(),
        "chat": type(description.chat).__name__,
        "architecture": description.architecture,
        "max_positions": description.max_positions,
        "num_parameters": description.num_parameters,
        "num_trained": description.num_trained,
        "weights_bytes": description.weights_bytes,
        "device": description.device,
        "base_fingerprint": description.base_fingerprint(),
    }


@pytest.mark.parametrize(
    "overrides",
    [
        ("lora_rank=4",),
        ("lora_rank=4", "lora_layers=1", 'lora_targets=["q_proj", "down_proj"]'),
        ("lora_rank=2", 'lora_targets=["up_proj"]', "max_sequence_length=64"),
        ("trained_weights=full",),
    ],
)
def test_a_folder_is_described_as_the_loaded_model_is(saved: Path, overrides: tuple[str, ...]) -> None:
    model, tokenizer = small_model(0, ["hello there, hello here"], layers=2, width=32)
    section = section_of(f"name={saved}", *overrides)
    lora = LoraSettings(rank=section.lora_rank, targets=section.lora_targets, layers=section.lora_layers)
    policy = Policy(
        model,
        tokenizer,
        max_positions=section.max_sequence_length,
        lora=lora if section.trained_weights == "lora" else None,
    )
    loaded = describe_policy(policy, create_chat(tokenizer), lambda: "hash")
    assert facts(read_description(saved, section, device="cpu", base_fingerprint=lambda: "hash")) == facts(loaded)


def test_a_matrix_is_counted_by_hand(saved: Path) -> None:
    # Two layers, width 32, inner width 96: up_proj maps 32 to 96, and a factor of rank 3 has 3 * (32 + 96) numbers.
    section = section_of("lora_rank=3", 'lora_targets=["up_proj"]')
    assert read_description(saved, section, device="cpu", base_fingerprint=str).num_trained == 2 * 3 * (32 + 96)


def test_a_folder_without_weights_is_refused(saved: Path, tmp_path: Path) -> None:
    copy_without_weights(saved, tmp_path)
    with pytest.raises(ServiceError, match=r"has no \.safetensors file.*Give a folder"):
        read_description(tmp_path, section_of(), device="cpu", base_fingerprint=str)


PROGRAM = """
import sys
from pathlib import Path
from sparring.config import validate
from sparring.models.description import read_description
needed = {"environment": {"target": "e:W"}, "reward": {"reward": "e:r"}}
section = validate(needed, ["model.trained_weights=full"]).model

def most_memory():
    # Not `ru_maxrss`, which begins with the memory of the process that forked this one.
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM")]
    return 1024 * int(line.split()[1])

for folder in sys.argv[1:]:
    description = read_description(Path(folder), section, device="cuda", base_fingerprint=str)
    description.vocabulary()
    print(description.num_parameters, most_memory())
"""


def test_the_memory_of_a_description_does_not_grow_with_the_model(saved: Path, tmp_path: Path) -> None:
    copy_without_weights(saved, tmp_path)
    # 8 billion numbers: a header, and a hole in place of the numbers.
    numbers = 8 * 10**9
    header = json.dumps({"layers": {"dtype": "BF16", "shape": [numbers], "data_offsets": [0, 2 * numbers]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * numbers)
    program = [sys.executable, "-c", PROGRAM, str(saved), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    (_, small), (num_parameters, large) = ([int(one) for one in line.split()] for line in done.stdout.splitlines())
    assert num_parameters == numbers
    assert large - small < MOST_GROWTH
    assert large < 2**30
