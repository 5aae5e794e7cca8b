"""The small model: what its parameters, its vocabulary and its seed are, and which sizes are refused."""

import math

import pytest
import torch

from sparring.environments import answer, tool_call
from sparring.errors import UsageError
from sparring.models.small import small_model
from sparring.types import Message

TALK: list[list[Message]] = [
    [
        {"role": "user", "content": "stock of bolt b?"},
        tool_call("stock", item="bolt b"),
        {"role": "tool", "tool_call_id": "call_1", "content": "17"},
        answer("bolt b: 17"),
    ]
] * 8


def test_parameters_are_those_of_the_formula() -> None:
    model, tokenizer = small_model(0, TALK, width=64, layers=2, vocabulary_size=300)
    vocabulary = len(tokenizer)
    # Tied embeddings; per layer four square projections, three of three times the width, two norms; one norm at the end.
    assert model.num_parameters() == vocabulary * 64 + 2 * (4 * 64**2 + 3 * 3 * 64**2 + 2 * 64) + 64
    assert vocabulary <= 300
    assert model.num_parameters() < 1_000_000


def test_weights_follow_from_the_seed_alone_and_the_global_randomness_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (small_model(seed, TALK)[0].state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(first[name], other[name])
    # 49,152 draws: a standard error of 0.3 %.
    assert first[name].std().item() == pytest.approx(1 / math.sqrt(128), rel=0.02)


def test_calls_are_few_tokens_and_what_stands_alone_is_one_of_its_own() -> None:
    _, tokenizer = small_model(0, TALK)
    tokens = tokenizer.tokenize('<tool_call>{"name":"stock","arguments":{"item":"bolt b"}}</tool_call>')
    assert len(tokens) < 16
    assert "b" in tokens
    # None of the merges is longer than twelve characters.
    assert max(len(token) for token in tokenizer.get_vocab() if not token.startswith("<|")) <= 12


def test_any_text_comes_back_and_unseen_text_too() -> None:
    _, tokenizer = small_model(0, TALK)
    for text in ("gét\t{}\n", "Жизнь 生活 🙂", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_conversation_ends_each_message_with_the_token_that_ends_sampling() -> None:
    model, tokenizer = small_model(0, TALK)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "stock?"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nstock?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(text).count(model.config.eos_token_id) == 1


def test_texts_teach_the_same_merges_as_the_messages_that_hold_them() -> None:
    conversations: list[list[Message]] = [[{"role": "user", "content": "seventeen bolts"}]]
    as_messages, as_texts = (
        small_model(0, talk, vocabulary_size=280)[1].get_vocab()
        for talk in (conversations, ["user\nseventeen bolts", "\n"])
    )
    assert as_messages == as_texts


def test_a_vocabulary_without_room_for_all_bytes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"vocabulary_size = 258 .* choose 259 or more"):
        small_model(0, TALK, vocabulary_size=258)


def test_a_width_that_the_heads_cannot_share_is_refused() -> None:
    with pytest.raises(UsageError, match=r"width = 100 .* multiple of 8"):
        small_model(0, TALK, width=100)
