"""Describe a model without its weights, for the process that plans runs, renders prompts and records results.

The weights may be in another process, which samples completions and computes gradients. This module reads the tokenizer,
the configuration and the headers of safetensors files, but no tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from sparring.errors import ServiceError
from sparring.models.architectures.families import choose_lora_targets
from sparring.models.load_errors import describe_load_error, refuse_pickles

if TYPE_CHECKING:
    from sparring.config import ModelSection
    from sparring.models.policy import Policy
    from sparring.protocols import Chat

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
"""The bytes of one number, by its type in a safetensors header."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """The tokenizer, limits and sizes of a model."""

    tokenizer: Any
    chat: Chat
    architecture: str
    """The class of the model in transformers."""
    max_positions: int
    """The maximum number of tokens in a sequence, limited by the model and the recipe."""
    num_parameters: int
    """The number of parameters of the base model. A matrix that two layers share counts once."""
    num_trained: int
    """The number of parameters that training changes: the parameters of the adapter, or all parameters."""
    weights_bytes: int
    """The size in bytes of the base model and the adapter, in memory or on the disk."""
    device: str
    """The device that computes the model, as torch names it."""
    base_fingerprint: Callable[[], str]
    """Returns the content hash of the model before training. The process with the weights computes it, which takes one or two
    seconds per gigabyte."""

    def vocabulary(self) -> list[str]:
        """Return the text of each token id, in order. The replacement character stands for an incomplete character."""
        return [self.tokenizer.decode([index], skip_special_tokens=False) for index in range(len(self.tokenizer))]


def describe_policy(policy: Policy, chat: Chat, base_fingerprint: Callable[[], str]) -> ModelDescription:
    """Return the description of a model that is loaded in this process."""
    parameters = list(policy.module.parameters())
    num_adapter = policy.num_trained if policy.lora_config is not None else 0
    return ModelDescription(
        tokenizer=policy.tokenizer,
        chat=chat,
        architecture=type(policy.base).__name__,
        max_positions=policy.max_positions,
        num_parameters=sum(one.numel() for one in parameters) - num_adapter,
        num_trained=policy.num_trained,
        weights_bytes=sum(one.numel() * one.element_size() for one in parameters),
        device=str(policy.device),
        base_fingerprint=base_fingerprint,
    )


def find_folder(name: str) -> Path | None:
    """Return the folder of `model.name` with the files of a complete model.

    Return None if a function builds the model, if the model is on a hub, or if it is stored as an adapter.
    """
    from sparring.models import smollm2

    folder = smollm2.ensure_converted() if name == smollm2.NAME else Path(name).expanduser()
    return folder if (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file() else None


def read_description(
    folder: Path, section: ModelSection, *, device: str, base_fingerprint: Callable[[], str]
) -> ModelDescription:
    """Return the description of a model in a folder, as the [model] section of a recipe trains it.

    No weights are read. `device` and `base_fingerprint` come from the process with the weights. Raises ServiceError if the
    folder does not contain a complete model.
    """
    from transformers import AutoConfig, AutoTokenizer

    from sparring.chat import create_chat

    refuse_pickles(folder)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tensors = _headers(folder)
    except Exception as error:  # a damaged file may raise any exception of its reader
        raise ServiceError(f"the model in {folder} cannot be described: {describe_load_error(error)}") from error
    num_parameters = sum(prod(shape) for _, shape in tensors.values())
    stored_bytes = sum(prod(shape) * _BYTES[kind] for kind, shape in tensors.values())
    is_adapted = section.trained_weights == "lora"
    num_trained = _num_adapter(tensors, section, config.get_text_config()) if is_adapted else num_parameters
    limit = getattr(config, "max_position_embeddings", section.max_sequence_length)
    return ModelDescription(
        tokenizer=tokenizer,
        chat=create_chat(tokenizer, section.name),
        architecture=(config.architectures or ["unknown"])[0],
        max_positions=min(section.max_sequence_length, limit),
        num_parameters=num_parameters,
        num_trained=num_trained,
        weights_bytes=stored_bytes + (4 * num_trained if is_adapted else 0),
        device=device,
        base_fingerprint=base_fingerprint,
    )


def _headers(folder: Path) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Return the type and shape of each stored tensor, keyed by name."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no .safetensors file")
    for path in paths:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        tensors |= {name: (one["dtype"], tuple(one["shape"])) for name, one in header.items() if name != "__metadata__"}
    return tensors


def _num_adapter(tensors: Mapping[str, tuple[str, tuple[int, ...]]], section: ModelSection, config: Any) -> int:
    """Return the number of parameters of a LoRA adapter: the sum of rank * (inputs + outputs) over the adapted
    matrices."""
    targets = section.lora_targets or choose_lora_targets(config)
    first = 0 if section.lora_layers is None else config.num_hidden_layers - section.lora_layers
    total = 0
    for name, (_, shape) in tensors.items():
        path = name.removesuffix(".weight").split(".")
        index = next((int(part) for part in path if part.isdigit()), None)
        is_in_layers = section.lora_layers is None or (index is not None and index >= first)
        if name.endswith(".weight") and path[-1] in targets and len(shape) == 2 and is_in_layers:
            total += section.lora_rank * sum(shape)
    return total
