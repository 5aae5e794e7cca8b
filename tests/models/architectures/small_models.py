"""A small model with random weights and a small tokenizer for each family: its own config class and its own special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from openai_harmony import DeveloperContent, SystemContent, TextContent
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tests.models.architectures.small_templates import GEMMA_3, MISTRAL, QWEN_2_5, QWEN_3, SMOLLM_3

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
}
WORDS = (
    "look_up",
    "assistant",
    "commentary",
    "analysis",
    "functions",
    "function",
    "parameter",
    "thought",
    "system",
    "user",
)
"""Tokens besides bytes and special ones, so that the texts of the formats are short."""


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """How the model of a family is built. `special` are its special tokens, the end of an answer first."""

    build: Callable[[int], Any]
    special: tuple[str, ...]
    template: str
    bos: str | None = None
    eos: str | None = None
    """The token that the tokenizer names as the end; by default the first special one."""


def gpt_oss(vocab_size: int) -> Any:
    config = GptOssConfig(
        **SIZES,
        vocab_size=vocab_size,
        num_hidden_layers=2,
        sliding_window=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return GptOssForCausalLM(config)


def qwen3_6(vocab_size: int) -> Any:
    text = SIZES | {"head_dim": 16, "num_hidden_layers": 2, "vocab_size": vocab_size, "tie_word_embeddings": False}
    text |= {"layer_types": ["linear_attention", "full_attention"]}
    text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = Qwen3_5Config(
        text_config=text, vision_config=vision | {"num_position_embeddings": 16}, tie_word_embeddings=False
    )
    return Qwen3_5ForConditionalGeneration(config)


def gemma4(vocab_size: int) -> Any:
    text = SIZES | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    text |= {"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
    text |= {"vocab_size": vocab_size, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 64}
    return Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=vision, audio_config=None))


LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WITHOUT_HEAD_SIZE = {key: value for key, value in SIZES.items() if key != "head_dim"} | {"num_hidden_layers": 2}
WIDE_HEADS = SIZES | {"head_dim": 16, "num_hidden_layers": 2}
"""Heads that together are wider than the hidden state."""


def llama(vocab_size: int) -> Any:
    return LlamaForCausalLM(LlamaConfig(**WITHOUT_HEAD_SIZE, vocab_size=vocab_size, rope_parameters=LLAMA_3_ROPE))


def qwen2(vocab_size: int) -> Any:
    return Qwen2ForCausalLM(Qwen2Config(**WITHOUT_HEAD_SIZE, vocab_size=vocab_size))


def qwen3(vocab_size: int) -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**WIDE_HEADS, vocab_size=vocab_size, tie_word_embeddings=True))


def qwen3_moe(vocab_size: int) -> Any:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**WIDE_HEADS, **experts, vocab_size=vocab_size))


def mistral(vocab_size: int, *, window: int | None = None) -> Any:
    return MistralForCausalLM(MistralConfig(**WIDE_HEADS, vocab_size=vocab_size, sliding_window=window))


def gemma3(vocab_size: int) -> Any:
    text = WIDE_HEADS | {"vocab_size": vocab_size, "query_pre_attn_scalar": 16, "sliding_window": 8}
    text |= {"layer_types": ["sliding_attention", "full_attention"]}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 8, "patch_size": 4}
    return Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1))


def smollm3(vocab_size: int) -> Any:
    """The second layer has no positions."""
    config = SmolLM3Config(**WITHOUT_HEAD_SIZE, vocab_size=vocab_size, no_rope_layers=[1, 0], pad_token_id=None)
    return SmolLM3ForCausalLM(config)


_HERMES = ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<tool_call>", "</tool_call>")
_MISTRAL_TOKENS = (
    *("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)

SMALL_MODELS = {
    "Llama 3": SmallModel(
        build=llama,
        special=(
            *("<|eot_id|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>"),
            *("<|start_header_id|>", "<|end_header_id|>"),
        ),
        template="{# <|start_header_id|> tools_in_user_message #}",
    ),
    "Qwen2.5": SmallModel(build=qwen2, special=_HERMES, template=QWEN_2_5),
    "Qwen3": SmallModel(
        build=qwen3,
        special=(*_HERMES, "<tool_response>", "</tool_response>", "<think>", "</think>"),
        template=QWEN_3,
    ),
    "Qwen3 MoE": SmallModel(
        build=qwen3_moe,
        special=(*_HERMES, "<tool_response>", "</tool_response>", "<think>", "</think>"),
        template=QWEN_3,
    ),
    "Mistral": SmallModel(build=mistral, special=_MISTRAL_TOKENS, template=MISTRAL, bos="<s>"),
    "Mistral with a window": SmallModel(
        build=partial(mistral, window=8), special=_MISTRAL_TOKENS, template=MISTRAL, bos="<s>"
    ),
    # As in the real tokenizer, the end of a turn is not the end of the text.
    "Gemma 3": SmallModel(
        build=gemma3,
        special=("<end_of_turn>", "<start_of_turn>", "<bos>", "<eos>"),
        template=GEMMA_3,
        bos="<bos>",
        eos="<eos>",
    ),
    "SmolLM3": SmallModel(build=smollm3, special=(*_HERMES, "<think>", "</think>"), template=SMOLLM_3),
    "gpt-oss": SmallModel(
        build=gpt_oss,
        special=("<|return|>", "<|call|>", "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"),
        template="{# <|start|> <|channel|> <|call|> #}",
    ),
    "Qwen3.6": SmallModel(
        build=qwen3_6,
        special=(
            *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
            *("<tool_response>", "</tool_response>"),
            *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        ),
        template="{# <|vision_start|> <think> <function= <parameter= args_value is string else args_value | tojson #}",
    ),
    "Gemma 4": SmallModel(
        build=gemma4,
        special=(
            *("<turn|>", "<|turn>", "<bos>", "<eos>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>"),
            *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
            *("<|image>", "<|image|>", "<image|>"),
        ),
        template="{# <|turn> <|tool_call>call: <|channel>thought\\n<channel|> #}",
    ),
}


FAMILY_OF = {name: name for name in SMALL_MODELS} | {"Mistral with a window": "Mistral"}
"""The family of each small model."""


def save_small_model(name: str, folder: Path) -> Any:
    """Save the model and tokenizer of a family as a user's model is saved, and return the model."""
    small = SMALL_MODELS[name]
    tokenizer = byte_tokenizer(small.special, small.template, bos=small.bos, eos=small.eos)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = small.build(len(tokenizer)).eval()
        # A new model has zeros and ones where a trained one has any numbers; then an error would not be seen.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # As in the folders of these models; without it a tokenizer class may make a special token the unknown one.
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "unk_token": None}), "utf-8")
    return model


def byte_tokenizer(
    special: tuple[str, ...], template: str, *, bos: str | None = None, eos: str | None = None
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken(name, special=True) for name in special])
    bare.add_tokens([*WORDS])
    named = {"eos_token": eos or special[0]} | ({} if bos is None else {"bos_token": bos})
    return PreTrainedTokenizerFast(tokenizer_object=bare, chat_template=template, **named)


class HarmonyText:
    """Renders harmony's messages with any tokenizer, by the published description of the format.

    The library itself only renders with the vocabulary of gpt-oss, which is too large for a small model. This text has not
    been compared with the library's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def render_conversation(self, conversation: Any) -> list[int]:
        return [token for message in conversation.messages for token in self.render(message)]

    def render(self, message: Any) -> list[int]:
        author, (content,) = message.author, message.content
        text = f"<|start|>{author.name or author.role.value}"
        text += f" to={message.recipient}" if message.recipient else ""
        text += f"<|channel|>{message.channel}" if message.channel else ""
        text += " <|constrain|>json" if message.content_type else ""
        end = "<|call|>" if message.recipient and author.role.value == "assistant" else "<|end|>"
        text += f"<|message|>{content_text(content)}{end}"
        return self._tokenizer.encode(text, add_special_tokens=False)


def content_text(content: Any) -> str:
    if isinstance(content, TextContent):
        return content.text
    if isinstance(content, SystemContent):
        return f"{content.model_identity}\n\nReasoning: {content.reasoning_effort.value.lower()}\n\n# Valid channels"
    assert isinstance(content, DeveloperContent)
    tools = [tool.name for namespace in (content.tools or {}).values() for tool in namespace.tools]
    return f"# Instructions\n\n{content.instructions}\n\n# Tools\n\n{tools}"
