"""Write a policy as a GGUF file, which llama.cpp and Ollama load.

The names of tensors and keys come from the library `gguf`. llama.cpp stores the rows of query and key matrices of the
architecture `llama` in another order (conversion/llama.py, `permute`), because it rotates neighboring values, and
transformers rotates the two halves of a head. Vectors are always stored in fp32, as llama.cpp computes with them in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparring.errors import UsageError
from sparring.models.export import merged_module
from sparring.models.export_files import GgufPrecision
from sparring.models.gguf_vocabulary import Vocabulary, read_vocabulary
from sparring.models.llama import is_supported
from sparring.models.policy import Policy

CONVERTER = "sparring export RUN FOLDER --merge, then llama.cpp's convert_hf_to_gguf.py FOLDER"

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""The architecture of llama.cpp for each `model_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoded:
    """A tensor of the file."""

    name: str
    shape: tuple[int, ...]
    precision: str
    read: Callable[[], Tensor]
    """Return the tensor, so that only one is held in fp32 at a time."""


def check_gguf(policy: Policy) -> Vocabulary:
    """Return the vocabulary of the file. Raises UsageError, with the reason and the way through llama.cpp, if the model
    cannot be written exactly."""
    config = policy.base.config
    rope = getattr(config, "rope_parameters", None) or {}
    if not is_supported(config):
        reason = f"a {config.model_type} model with this configuration is not computed like a Llama or Qwen model"
    elif rope.get("rope_type") == "llama3" and _ARCHITECTURES[config.model_type] != "llama":
        reason = f"llama.cpp does not rotate positions as in Llama 3 in a {config.model_type} model"
    else:
        found = read_vocabulary(policy.tokenizer, size=config.vocab_size)
        if isinstance(found, Vocabulary):
            return found
        reason = found
    raise UsageError(
        f"the model cannot be written as GGUF: {reason}. llama.cpp's own converter knows more models: {CONVERTER}."
    )


def save_gguf(policy: Policy, path: Path, *, precision: GgufPrecision, name: str, stop_ids: frozenset[int]) -> None:
    """Write the merged model, its tokenizer and its chat template to a file. The policy is not changed.

    Matrices whose rows do not fit the blocks of `q8_0` are stored in `f16`. `stop_ids` are the tokens that end an answer
    in the chat format. Raises the errors of `check_gguf`.
    """
    import gguf

    vocabulary = check_gguf(policy)
    model = merged_module(policy)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, _ARCHITECTURES[model.config.model_type])
    try:
        writer.add_name(name)
        writer.add_file_type(int(_file_type(precision)))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _add_shape(writer, model.config)
        _add_vocabulary(writer, vocabulary, policy.tokenizer, stop_ids)
        _write_tensors(writer, list(_tensors(model, precision)))
    finally:
        writer.close()


def _file_type(precision: str) -> Any:
    from gguf import LlamaFileType

    return LlamaFileType["ALL_F32" if precision == "f32" else f"MOSTLY_{precision.upper()}"]


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _add_shape(writer: Any, config: Any) -> None:
    import gguf

    rope = config.rope_parameters
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))


def _add_vocabulary(writer: Any, vocabulary: Vocabulary, tokenizer: Any, stop_ids: frozenset[int]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.split)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_add_bos_token(vocabulary.adds_bos)
    eos = tokenizer.eos_token_id
    ends = sorted(stop_ids - {eos})
    # llama.cpp stops at both. Without these keys, it takes the token with the id 11.
    if eos is None and ends:
        eos = ends[0]
    if eos is not None:
        writer.add_eos_token_id(eos)
        writer.add_bos_token_id(eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id)
    if ends:
        writer.add_eot_token_id(ends[0])
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    if tokenizer.chat_template:
        writer.add_chat_template(str(tokenizer.chat_template))


def _tensors(model: Any, precision: str) -> Iterator[_Encoded]:
    import gguf

    config = model.config
    architecture = _ARCHITECTURES[config.model_type]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for source, parameter in model.named_parameters():
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        assert name is not None, f"llama.cpp has no name for {source}"
        heads = 0
        if architecture == "llama" and ".self_attn." in source:
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
                source.split(".")[-2], 0
            )
        yield _Encoded(
            name=name,
            shape=tuple(parameter.shape),
            precision=_fitting(precision, parameter),
            read=lambda parameter=parameter, heads=heads: _interleave(parameter.detach(), heads),
        )
    if config.rope_parameters["rope_type"] == "llama3":
        factors = _rope_factors(model)
        yield _Encoded(name="rope_freqs.weight", shape=tuple(factors.shape), precision="f32", read=lambda: factors)


def _fitting(precision: str, parameter: Tensor) -> str:
    if parameter.ndim == 1:
        return "f32"
    return "f16" if precision == "q8_0" and parameter.shape[-1] % 32 else precision


def _interleave(tensor: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from two halves to pairs of neighbors. 0 heads: keep the order."""
    if not heads:
        return tensor
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def _rope_factors(model: Any) -> Tensor:
    """Return by how much each frequency is divided compared with the default frequencies: [head_dim / 2]."""
    dim = _head_dim(model.config)
    theta = model.config.rope_parameters["rope_theta"]
    default = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    return default / model.model.rotary_emb.inv_freq.detach().cpu().float()


def _write_tensors(writer: Any, tensors: list[_Encoded]) -> None:
    import gguf

    kinds = [gguf.GGMLQuantizationType[one.precision.upper()] for one in tensors]
    for one, kind in zip(tensors, kinds, strict=True):
        num_bytes = math.prod(gguf.quants.quant_shape_to_byte_shape(one.shape, kind))
        writer.add_tensor_info(one.name, one.shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for one, kind in zip(tensors, kinds, strict=True):
        writer.write_tensor_data(gguf.quants.quantize(one.read().float().cpu().contiguous().numpy(), kind))
