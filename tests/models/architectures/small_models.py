"""A small model with random weights and a small tokenizer for each family: its own config class and its own special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from openai_harmony import DeveloperContent, SystemContent, TextContent
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

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


SMALL_MODELS = {
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


def save_small_model(name: str, folder: Path) -> Any:
    """Save the model and tokenizer of a family as a user's model is saved, and return the model."""
    small = SMALL_MODELS[name]
    tokenizer = byte_tokenizer(small.special, small.template)
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


def byte_tokenizer(special: tuple[str, ...], template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken(name, special=True) for name in special])
    bare.add_tokens([*WORDS])
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token=special[0], chat_template=template)


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
