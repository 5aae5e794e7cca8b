"""Pointer chase: pairs held out, links that cannot be guessed, demonstrations of known quality, a tiny model."""

import asyncio
import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sparring.environments import answer, record_demonstration
from sparring.rewards import evaluate_reward
from sparring.scorers import evaluate_score
from sparring.types import Message, Outcome, Task, Trajectory


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        path.replace("/", "_"), Path(__file__).parents[2] / "recipes" / f"{path}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


chase: Any = load("pointer_chase/environment")
tiny: Any = load("pointer_chase/model")


def graded(task: Task, messages: list[Message]) -> tuple[float, float]:
    """Score and reward of a conversation."""
    trajectory = Trajectory(
        id=task.id,
        task=task,
        attempt=0,
        turns=(),
        messages=tuple(messages),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
    )
    score = asyncio.run(evaluate_score(chase.scorer, trajectory)).value
    return score, asyncio.run(evaluate_reward(chase.reward, trajectory)).total


def test_no_start_and_hops_is_in_two_splits_and_every_key_is_trained_on() -> None:
    pairs = {split: set(chase.pairs(split)) for split in ("train", "validation", "held_out")}
    assert {split: len(found) for split, found in pairs.items()} == {"train": 30, "validation": 6, "held_out": 12}
    assert len(set().union(*pairs.values())) == 48
    assert {start for start, _ in pairs["train"]} == set(chase.KEYS)
    assert Counter(hops for _, hops in pairs["held_out"]) == {1: 4, 2: 4, 3: 4}
    assert {(task.fields["start"], task.fields["hops"]) for task in chase.held_out_tasks()} == pairs["held_out"]


@pytest.mark.parametrize("split", ["train", "validation", "held_out"])
def test_the_expert_scores_1_by_both_rules(split: str) -> None:
    for task in chase.tasks(split, 32, 0):
        messages = record_demonstration(chase.PointerChase, task)
        assert graded(task, messages) == (1.0, 1.0)
        assert len(messages) == 2 + 2 * task.fields["hops"]


def test_stopping_early_or_late_or_naming_another_key_is_wrong() -> None:
    for task in chase.train_tasks(64):
        hops = task.fields["hops"]
        for steps in {0, 1, 2, 3, 4} - {hops}:
            assert graded(task, record_demonstration(chase.PointerChase, task, chase._walk(task, steps))) == (0.0, 0.0)
        assert sum(graded(task, [answer(f"ans {key}")])[0] for key in chase.KEYS) == 1.0


@pytest.mark.parametrize(
    "text", ["", "ans", "ans  {key}", "ans {key} ", "{key}", "ans {key}{key}", "ans {key}\nans {key}"]
)
def test_only_the_exact_answer_counts(text: str) -> None:
    task = chase.train_tasks(1)[0]
    assert graded(task, [answer(text.format(key=task.fields["answer"]))]) == (0.0, 0.0)


def test_the_log_is_right_or_gives_up_a_hop_early_as_often_as_its_shares_say() -> None:
    tasks = chase.tasks("train", 600, 1)
    right: dict[int, list[float]] = {1: [], 2: [], 3: []}
    early: dict[int, list[bool]] = {1: [], 2: [], 3: []}
    for task, messages in zip(tasks, chase.mixed_log(600), strict=True):
        hops = task.fields["hops"]
        right[hops].append(graded(task, messages)[0])
        early[hops].append(sum(message["role"] == "tool" for message in messages) == hops - 1)
    for hops, share in {1: 0.15, 2: 0.15, 3: 0.15}.items():
        # About 200 draws: standard error 0.035 at most. 0.05 name another key.
        assert sum(right[hops]) / len(right[hops]) == pytest.approx(share, abs=0.1)
        assert sum(early[hops]) / len(early[hops]) == pytest.approx(0.95 - share, abs=0.1)


def test_the_model_is_small_follows_from_its_seed_and_leaves_the_global_randomness_alone() -> None:
    before = torch.get_rng_state()
    model, tokenizer = tiny.build(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.num_parameters() < 1_000_000
    again, other = tiny.build(3)[0].state_dict(), tiny.build(4)[0].state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(model.state_dict()[name], again[name])
    assert not torch.equal(again[name], other[name])
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.config.vocab_size == len(tokenizer)


def test_a_tool_call_is_about_a_dozen_tokens_and_each_key_one() -> None:
    _, tokenizer = tiny.build()
    call = '<tool_call>{"name":"get","arguments":{"key":"b"}}</tool_call>'
    assert 10 <= len(tokenizer.encode(call, add_special_tokens=False)) <= 14
    for key in chase.KEYS:
        assert len(tokenizer.encode(key, add_special_tokens=False)) == 1
        assert tokenizer.encode(f"ans {key}", add_special_tokens=False)[-1] == tokenizer.encode(key)[0]


def test_any_text_survives_the_tokenizer_and_the_template_is_chatml() -> None:
    _, tokenizer = tiny.build()
    text = "error: no tool 'gét'; there are get\t{}"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "find b 2?"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nfind b 2?<|im_end|>\n<|im_start|>assistant\n"
