"""Convert adapters that a service sends to weights, as safetensors files that name their copy on the service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError, safe_open

from sparring.errors import DataError, ServiceError
from sparring.models.adapter_files import AdapterShape
from sparring.models.tensor_files import TensorFile
from sparring.runtime.json_values import parse_json
from sparring.types import Weights

_STATE, _SAMPLER = "tinker_state", "tinker_sampler"
BASE = "base"
"""The stored name of the base model without an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a service stores weights."""

    sampler: str | None
    """The path of the weights for sampling; None is the base model."""
    state: str | None = None
    """The path of the weights and moments, if they were stored."""


def convert(folder: Path, target: Path, stored: Stored, shape: AdapterShape) -> None:
    """Write the adapter in a folder as a file of weights. The names of its tensors get the adapter's own name, `default`, as in
    a policy of this process. Raises DataError if its rank or scale are not those of the recipe."""
    source, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if not (source.is_file() and config.is_file()):
        raise ServiceError(f"the service's archive of {stored.sampler} contains no adapter in PEFT's format.")
    try:
        found = parse_json(config.read_text("utf-8"))
        rank, alpha = int(found["r"]), float(found["lora_alpha"])
        with safe_open(source, "np"):  # checks the header and the size
            pass
    except (ValueError, LookupError, TypeError, SafetensorError) as error:
        raise ServiceError(f"the service's archive of {stored.sampler} is damaged: {error}. Try again.") from error
    if (rank, alpha) != (shape.rank, float(shape.alpha)):
        raise DataError(
            f"the service trains an adapter with lora_rank = {rank} and lora_alpha = {alpha:g}, but the recipe has "
            f"{shape.rank} and {shape.alpha}. Set model.lora_rank = {rank} and model.lora_alpha = {alpha:g}."
        )
    with source.open("rb") as read, target.open("wb") as write:
        header = parse_json(read.read(int.from_bytes(read.read(8), "little")))
        tensors = {_named(name): entry for name, entry in header.items() if name != "__metadata__"}
        _write_header(write, tensors, stored)
        shutil.copyfileobj(read, write)


def write_base(target: Path) -> None:
    """Write a file of no tensors, which stands for the base model."""
    with target.open("wb") as file:
        _write_header(file, {}, Stored(sampler=None))


def with_state(source: Path, target: Path, state: str) -> None:
    """Copy a file of weights, and add the path of their state."""
    with source.open("rb") as read, target.open("wb") as write:
        header = parse_json(read.read(int.from_bytes(read.read(8), "little")))
        stored = Stored(sampler=find_stored(header.pop("__metadata__")).sampler, state=state)
        _write_header(write, header, stored)
        shutil.copyfileobj(read, write)


def read_stored(weights: Weights) -> Stored:
    """Return where the service stores weights. Raises DataError if they did not come from a service."""
    if isinstance(weights.tensors, TensorFile):
        with weights.tensors.path.open("rb") as file:
            header = parse_json(file.read(int.from_bytes(file.read(8), "little")))
        metadata = header.get("__metadata__") or {}
        if _SAMPLER in metadata:
            return find_stored(metadata)
    raise DataError(
        "these weights were not trained by a Tinker service, and a service takes no weights from elsewhere. Continue from a "
        "run with learner.type = 'tinker', or train with another learner."
    )


def find_stored(metadata: Mapping[str, str]) -> Stored:
    sampler = metadata[_SAMPLER]
    return Stored(sampler=None if sampler == BASE else sampler, state=metadata.get(_STATE))


def _named(name: str) -> str:
    """Return the name of a tensor with the adapter's own name: `...lora_A.weight` is `...lora_A.default.weight`."""
    for part in (".lora_A.", ".lora_B."):
        if part in name and ".default." not in name:
            return name.replace(part, f"{part}default.")
    return name


def _write_header(file: BinaryIO, tensors: Mapping[str, object], stored: Stored) -> None:
    metadata = {_SAMPLER: stored.sampler or BASE, **({} if stored.state is None else {_STATE: stored.state})}
    text = json.dumps({"__metadata__": metadata, **tensors}).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
