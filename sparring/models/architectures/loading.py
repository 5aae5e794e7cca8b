"""Load the part of a model that reads and writes text, from a folder or the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sparring.errors import ServiceError
from sparring.models.architectures.families import FAMILIES

_TEXT_KEYS = {
    r"^(?:model\.language_model|language_model\.model)\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
"""The prefixes of the tensor names of the text part: in a model that also reads images, and in a text model."""


def load_model(source: Path | str, *, dtype: torch.dtype | str = torch.float32) -> Any:
    """Load a causal LM. If the model also reads images or sound, only the text part is loaded. With `dtype="auto"`, the
    dtype of the files is used.

    Raises ServiceError for a model type that is not supported, and if the files lack weights of the model.
    """
    _refuse_unsupported(PreTrainedConfig.get_config_dict(source)[0], source)
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    text = config.get_text_config(decoder=True)
    options: dict[str, Any] = {
        "dtype": dtype,
        "output_loading_info": True,
        "use_safetensors": True,
        "trust_remote_code": False,
    }
    if text is not config:
        options |= {"config": text, "key_mapping": _TEXT_KEYS}
    load: Any = AutoModelForCausalLM.from_pretrained
    model, report = load(source, **options)
    if missing := sorted(report["missing_keys"]):
        raise ServiceError(
            f"{source} lacks {len(missing)} of the weights of a {config.model_type!r} model, for example {missing[0]}; random "
            "weights would take their place. Give the folder of a complete model."
        )
    if text is not config:
        # It is saved under its own names: transformers would apply the inverse of the mapping, which is not unique.
        del model._weight_conversions
    return model


def _refuse_unsupported(config: Mapping[str, Any], source: Path | str) -> None:
    model_type = config.get("model_type")
    types = (model_type, (config.get("text_config") or {}).get("model_type"))
    if model_type is None or any(one in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES for one in types):
        return
    known = ", ".join(f"{family.name} ({', '.join(family.model_types)})" for family in FAMILIES)
    raise ServiceError(
        f"{source} is of model type {model_type!r}, which is not supported: transformers {transformers.__version__} has no "
        f"causal language model of this type. Supported families: {known}. Other causal language models of transformers can "
        "also be loaded, but are not tested (docs/models.md)."
    )
