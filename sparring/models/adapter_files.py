"""Write an adapter in PEFT's format from published weights, without a model. This module does not import torch."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from sparring.errors import DiskError
from sparring.models.tensor_files import write_weights
from sparring.runtime.json_values import parse_json
from sparring.types import Json, Weights

VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values of `--max-lora-rank` that vLLM accepts."""
SHARED_ADVICE = "Check that its file system is mounted, can be written and has space, and resume the run."


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """The values in PEFT's adapter_config.json that the tensors of an adapter do not determine."""

    rank: int
    alpha: int


def write_adapter(weights: Weights, shape: AdapterShape, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors into a new folder. Its parent must exist.

    The folder gets its final name when both files are complete. The adapter's own name, `default`, is removed from the
    names of the tensors, as PEFT's `save_pretrained` does. Raises DiskError.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        unfinished.mkdir()
        write_weights(weights, unfinished / "weights")
        renamed = _rename_tensors(unfinished / "weights", unfinished / "adapter_model.safetensors")
        (unfinished / "weights").unlink()
        config = _peft_config(shape, targets=sorted({name.rsplit(".", 3)[-3] for name in renamed}))
        (unfinished / "adapter_config.json").write_text(json.dumps(config, indent=2), "utf-8")
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise DiskError(f"the adapter {folder} cannot be written: {error}. {SHARED_ADVICE}") from error


def _peft_config(shape: AdapterShape, *, targets: list[str]) -> dict[str, Json]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": shape.rank,
        "lora_alpha": shape.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def _rename_tensors(source: Path, target: Path) -> list[str]:
    """Copy a safetensors file with the tensor names that PEFT uses, and return these names. Only the header changes."""
    with source.open("rb") as read, target.open("wb") as write:
        header = parse_json(read.read(int.from_bytes(read.read(8), "little")))
        renamed = {name.replace(".default.", "."): entry for name, entry in header.items() if name != "__metadata__"}
        text = json.dumps(renamed).encode()
        text += b" " * (-len(text) % 8)
        write.write(len(text).to_bytes(8, "little") + text)
        shutil.copyfileobj(read, write)
    return list(renamed)
