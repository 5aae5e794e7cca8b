"""What the servers of the contract tests share, whatever routes they have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from starlette.requests import Request

from sparring.engines.torch_engine import TorchEngine
from sparring.types import Weights


async def keep_adapter(engine: TorchEngine, name: str, folder: Path, faults: Mapping[str, Any]) -> Any:
    """Return an adapter in PEFT's format as weights that the engine samples with. The faults `wrong_adapter` and
    `empty_adapter` change it."""
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    assert config["peft_type"] == "LORA"
    tensors = load_file(folder / "adapter_model.safetensors")
    if faults.get("wrong_adapter"):
        tensors = {key: -tensor if "lora_B" in key else tensor for key, tensor in tensors.items()}
    if faults.get("empty_adapter"):
        tensors = {key: 0 * tensor for key, tensor in tensors.items()}
    named = {key.replace(".weight", ".default.weight"): tensor for key, tensor in tensors.items()}
    return await asyncio.to_thread(engine.keep, Weights(tensors=named, fingerprint=name), 0)


async def wait_until_gone(request: Request) -> None:
    """Return when the client has closed the connection."""
    while not await request.is_disconnected():  # noqa: ASYNC110 - there is no event for this
        await asyncio.sleep(0.05)
