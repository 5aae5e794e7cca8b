"""Chains of three to five links, and a policy with four layers instead of two, which takes longer for each token."""

from __future__ import annotations

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.diagnosis.blind.chains import chain_log, chains
from sparring.models.small import small_model
from sparring.types import Message, Task

HOPS = (3, 4, 5)


def build(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    return small_model(seed, log(256), vocabulary_size=400, max_token_length=64, width=64, layers=4)


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return chains("train", num, seed, HOPS)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return chains("validation", num, seed, HOPS)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return chains("held_out", num, seed, HOPS)


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return chain_log(train_tasks(num, seed + 1), seed)
