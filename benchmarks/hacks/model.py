"""A Llama of under a million parameters, from scratch, whose tokenizer is trained on a case's own transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.chat.tool_calls import render_assistant
from sparring.types import Message

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, START, END]
"""In the order of their ids, from 0."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def small_model(
    seed: int,
    conversations: Iterable[Sequence[Message]],
    *,
    vocabulary_size: int = 320,
    max_token_length: int = 12,
    max_positions: int = 512,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Model (fp32, random weights of this seed) and tokenizer (the same for every seed).

    The vocabulary is 256 bytes, so that any text can be encoded, the special tokens, and merges of what the conversations
    say. Letters and digits that stand alone stay tokens of their own, so that they can be copied.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?<![a-z0-9_])[a-z0-9](?![a-z0-9_])"), behavior="isolated"),
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
    tokenizer.train_from_iterator(_pieces(conversations), trainer)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        # 1 over the root of the width: the usual 0.02 is for models ten times as wide, and slow to start at this one.
        initializer_range=0.088,
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


def _pieces(conversations: Iterable[Sequence[Message]]) -> Iterator[str]:
    """What stands between the special tokens of a transcript."""
    for messages in conversations:
        for message in messages:
            text = render_assistant(message) if message["role"] == "assistant" else message["content"]
            yield f"{message['role']}\n{text}"
        yield "\n"
