"""A model of a few thousand parameters that writes bytes, and an environment that pays for even ones."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.environments import Environment, answer, tool
from sparring.types import Message, Task, Trajectory

SPECIAL_TOKENS = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role[0] }}{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)


class Echo(Environment):
    describe_tools = "prompt"

    @tool
    def echo(self, word: str) -> str:
        """The word again."""
        return word

    def demonstrate(self, task: Task) -> list[Message]:
        return [answer("ok")]


def reward(trajectory: Trajectory) -> float:
    """Follows from what was sampled alone, and differs within a group more often than not."""
    return float(trajectory.turns[0].token_ids[0] % 2)


def task(id: str, number: int, mark: str) -> Task:
    kind = "odd" if number % 2 else "even"
    return Task(id=id, fields={"kind": kind}, messages=({"role": "user", "content": f"{number}{mark}"},))


def train_tasks() -> list[Task]:
    return [task(f"t{number}", number, "?") for number in range(8)]


def validation_tasks() -> list[Task]:
    return [task(f"v{number}", number, "!") for number in range(2)]


def build(seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model, PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
