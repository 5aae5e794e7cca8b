"""Export a policy in the formats of peft and transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn
from transformers.utils import logging

from sparring.models.policy import Policy


def save_adapter(policy: Policy, directory: Path, *, base_model: str) -> None:
    """Write adapter_config.json and adapter_model.safetensors for `PeftModel.from_pretrained`, and the tokenizer."""
    module = policy.module
    assert policy.lora_config is not None, "this policy has no adapter"
    module.peft_config["default"].base_model_name_or_path = base_model
    # An adapter has no embeddings. Without this argument, peft would look up the base model on a hub to find this out.
    _save(module, policy, directory, save_embedding_layers=False)


def save_base(policy: Policy, directory: Path) -> None:
    """Write the model without its adapter, and the tokenizer. The policy is not changed."""
    module = policy.module
    _save(module if policy.lora_config is None else copy.deepcopy(module).unload(), policy, directory)


def save_merged(policy: Policy, directory: Path) -> None:
    """Write a merged model for `AutoModelForCausalLM.from_pretrained`, and the tokenizer. The policy is not changed."""
    _save(merged_module(policy), policy, directory)


def merged_module(policy: Policy) -> Any:
    """Return the transformers model with its adapter merged in. The policy is not changed; without an adapter, the result is
    the policy's own model."""
    if policy.lora_config is None:
        return policy.module
    module = copy.deepcopy(policy.module)
    untie_adapted_head(module.get_base_model())
    return module.merge_and_unload()


def _save(module: Any, policy: Policy, directory: Path, **options: Any) -> None:
    # Its progress bar would interrupt the command's own output.
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        module.save_pretrained(str(directory), safe_serialization=True, **options)
    finally:
        if was_shown:
            logging.enable_progress_bar()
    policy.tokenizer.save_pretrained(str(directory))


def untie_adapted_head(model: Any) -> None:
    """Give an adapted output matrix its own weights, so that a merge does not change the embedding that shares them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(head, BaseTunerLayer) and head.weight is embedding.weight:
        head.get_base_layer().weight = nn.Parameter(embedding.weight.detach().clone())
        model.config.tie_word_embeddings = False
