"""Write a policy in the formats of peft and transformers."""

from __future__ import annotations

import copy
from pathlib import Path

from peft import PeftModel

from sparring.models.policy import Policy


def save_adapter(policy: Policy, directory: Path, *, base_model: str) -> None:
    """adapter_config.json and adapter_model.safetensors as `PeftModel.from_pretrained` reads them, and the tokenizer."""
    module = policy.module
    assert isinstance(module, PeftModel)
    module.peft_config["default"].base_model_name_or_path = base_model
    module.save_pretrained(str(directory), safe_serialization=True)
    policy.tokenizer.save_pretrained(str(directory))


def save_merged(policy: Policy, directory: Path) -> None:
    """A whole model as `AutoModelForCausalLM.from_pretrained` reads it, and the tokenizer. The policy is not changed."""
    module = policy.module
    if isinstance(module, PeftModel):
        module = copy.deepcopy(module).merge_and_unload()
    module.save_pretrained(str(directory), safe_serialization=True)
    policy.tokenizer.save_pretrained(str(directory))
