"""Create a small model: a Llama with fewer than a million parameters, which learns a small environment in minutes on
one CPU thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.chat.tool_calls import render_assistant
from sparring.errors import UsageError
from sparring.types import Message

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, START, END]
"""The special tokens in the order of their ids, from 0."""
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)
"""The size of the smallest vocabulary: all bytes, so that any text can be encoded, and the special tokens."""
NUM_HEADS = 4

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_model(
    seed: int,
    conversations: Iterable[Sequence[Message] | str],
    *,
    vocabulary_size: int = 320,
    max_token_length: int = 12,
    isolated: str = r"(?<![a-z0-9_])[a-z0-9](?![a-z0-9_])",
    width: int = 128,
    layers: int = 3,
    max_positions: int = 512,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return a model (fp32, random weights from this seed) and a tokenizer (byte-level BPE with ChatML markers).

    The tokenizer is the same for every seed. It learns its merges from conversations, or from texts as they appear
    between the special tokens ("user\\n" and the user's text). No merge is longer than `max_token_length` characters.
    Matches of the pattern `isolated` are never merged. By default, these are single letters and digits, so that each is
    one token that the model can copy. The vocabulary is smaller than `vocabulary_size` if the conversations have no
    more pairs to merge.

    Raises UsageError if the vocabulary is too small for all bytes and the special tokens, or if the width cannot be
    divided among four heads.
    """
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise UsageError(
            f"vocabulary_size = {vocabulary_size} is too small for all bytes and the special tokens; "
            f"choose {SMALLEST_VOCABULARY} or more."
        )
    if width % (2 * NUM_HEADS):
        raise UsageError(
            f"width = {width} cannot be divided into {NUM_HEADS} heads of even width; choose a multiple of {2 * NUM_HEADS}."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(isolated), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=max_token_length,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(conversations), trainer)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        # This is 0.088 at a width of 128. The usual 0.02 is for models ten times as wide; at this width it starts slowly.
        initializer_range=round(width**-0.5, 3),
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(END),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model, PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def random_llama(seed: int, sizes: Mapping[str, Any]) -> LlamaForCausalLM:
    """Return a Llama model (fp32, random weights) with the sizes of a transformers config, for timings and tests."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**sizes))


def _texts(conversations: Iterable[Sequence[Message] | str]) -> Iterator[str]:
    """Yield the texts between the special tokens."""
    for conversation in conversations:
        if isinstance(conversation, str):
            yield conversation
            continue
        for message in conversation:
            text = render_assistant(message) if message["role"] == "assistant" else message["content"]
            yield f"{message['role']}\n{text}"
        yield "\n"
