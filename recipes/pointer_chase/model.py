"""A Llama of under a million parameters, from scratch, with a small subword tokenizer trained on transcripts."""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, START, END]
"""In the order of their ids, from 0."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

VOCABULARY_SIZE = 320
"""256 bytes, so that any text can be encoded, the special tokens, and merges."""
MAX_TOKEN_LENGTH = 8
"""Characters of a merged token: a tool call becomes a dozen tokens, as with a real vocabulary."""


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Model (fp32, random weights of this seed) and tokenizer (the same for every seed)."""
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        # 1 over the root of the width: the usual 0.02 is for models ten times as wide, and slow to start at this one.
        initializer_range=0.088,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index(END),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config), tokenizer


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with ChatML markers. Keys (letters that stand alone) stay tokens of their own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?<![a-z_])[a-z](?![a-z_])"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_transcript_pieces(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _transcript_pieces() -> list[str]:
    """What stands between the special tokens of a transcript."""
    pieces = ["user\n", "tool\n", "assistant\n", "system\n", "\n", "error: "]
    for key in "abcdefghijklmnop":
        call = f'<tool_call>{{"name":"get","arguments":{{"key":"{key}"}}}}</tool_call>'
        pieces += [f"assistant\n{call}", call, f"tool\n{key}", key, f"assistant\nans {key}", f"ans {key}"]
        pieces += [f"user\nfind {key} {hops}?" for hops in (1, 2, 3)]
    return pieces
