"""A Llama of about a million parameters, from scratch, with a vocabulary from the prompts and the tools."""

from __future__ import annotations

import json

from environment import Processor, train_tasks
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from sparring.models.small import small_model


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Model (fp32, random weights of this seed) and tokenizer (the same for every seed)."""
    prompts = [message["content"] for task in train_tasks() for message in task.messages]
    tools = [json.dumps(schema, indent=indent) for schema in Processor.tool_schemas() for indent in (None, 2)] * 8
    results = [json.dumps(task.fields) for task in train_tasks()[:8]]
    return small_model(
        seed,
        [*prompts, *tools, *results],
        vocabulary_size=1024,
        max_token_length=16,
        max_positions=8192,
        isolated=r"[0-9]|\s",
    )
