"""A model that cannot be trained is refused with what is supported."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from sparring.chat.choice import create_chat
from sparring.errors import DataError, ServiceError
from sparring.models.pretrained import load_pretrained
from tests.models.architectures.small_models import SMALL_MODELS, byte_tokenizer, save_small_model


@pytest.mark.parametrize("model_type", ["t5", "no-such-type"])
def test_a_type_without_a_causal_model_is_refused_with_the_supported_families(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ServiceError, match=rf"'{model_type}'.*not supported.*gpt-oss \(gpt_oss\), Qwen3\.6 \(qwen3_5"):
        load_pretrained(str(tmp_path))


def test_missing_weights_are_not_filled_with_random_ones(tmp_path: Path) -> None:
    save_small_model("gpt-oss", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ServiceError, match=re.escape("lacks 1 of the weights") + ".*q_proj"):
        load_pretrained(str(tmp_path))


@pytest.mark.parametrize("name", ["gpt-oss", "Qwen3.6", "Gemma 4", "Llama 3"])
def test_a_tokenizer_that_lacks_tokens_of_its_format_is_refused(name: str) -> None:
    tokenizer = byte_tokenizer(SMALL_MODELS[name].special[:1], SMALL_MODELS[name].template)
    with pytest.raises(DataError, match="does not fit that format"):
        create_chat(tokenizer)
