"""Write a policy in the formats of peft and transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers.utils import logging

from sparring.models.policy import Policy


def save_adapter(policy: Policy, directory: Path, *, base_model: str) -> None:
    """adapter_config.json and adapter_model.safetensors as `PeftModel.from_pretrained` reads, and the tokenizer."""
    module = policy.module
    assert isinstance(module, PeftModel)
    module.peft_config["default"].base_model_name_or_path = base_model
    # An adapter holds no embeddings; to decide that by itself, peft would look the base model up at a hub.
    _save(module, policy, directory, save_embedding_layers=False)


def save_base(policy: Policy, directory: Path) -> None:
    """The model that an adapter is of, as it was before any training, and the tokenizer. The policy is not changed."""
    module = policy.module
    assert isinstance(module, PeftModel)
    _save(copy.deepcopy(module).unload(), policy, directory)


def save_merged(policy: Policy, directory: Path) -> None:
    """A model as `AutoModelForCausalLM.from_pretrained` reads it, and the tokenizer. The policy is not changed."""
    module = policy.module
    if isinstance(module, PeftModel):
        module = copy.deepcopy(module)
        untie_adapted_head(module.get_base_model())
        module = module.merge_and_unload()
    _save(module, policy, directory)


def _save(module: Any, policy: Policy, directory: Path, **options: Any) -> None:
    # Its progress bar would stand in the middle of ours.
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        module.save_pretrained(str(directory), safe_serialization=True, **options)
    finally:
        if was_shown:
            logging.enable_progress_bar()
    policy.tokenizer.save_pretrained(str(directory))


def untie_adapted_head(model: Any) -> None:
    """An adapter of the output matrix must not be merged into the embedding that shares its weights."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(head, BaseTunerLayer) and head.weight is embedding.weight:
        head.get_base_layer().weight = nn.Parameter(embedding.weight.detach().clone())
        model.config.tie_word_embeddings = False
