"""A constrained answer follows its grammar to the end, and is recorded with the distribution it was drawn from."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.chat import ByteTokenizer
from sparring.engines.grammar import Grammars
from sparring.engines.lark import MAX_CONSTRAINT_CHARACTERS
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ConstraintError
from sparring.models.policy import Policy
from sparring.types import Completion, Constraint, SampleRequest, Sampling, StopReason

BYTES = ByteTokenizer()
STOP = ByteTokenizer.eos_token_id
PROMPT = tuple(BYTES.encode("question\n"))
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "bc"]}, "yes": {"type": "boolean"}},
    "required": ["kind", "yes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
VOCAB = ByteTokenizer.num_tokens + 5
"""More logits than tokens, as padded models have."""


def following(schema: Any) -> Constraint:
    return Constraint(grammar="start: @answer\n", schemas=(("answer", json.dumps(schema)),))


@functools.cache
def random_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def random_policy() -> Policy:
    return Policy(random_model(), BYTES, max_positions=1024)


def bigram_policy(following: Mapping[int, Mapping[int, float]]) -> Policy:
    """A model whose next token depends on the last alone, with these probabilities; the rest of it is 1e-9 each."""
    width = 264
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=width,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        layer: Any = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(width))
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight.fill_(math.log(1e-9))
        for last, probabilities in following.items():
            for token, probability in probabilities.items():
                model.lm_head.weight[token, last] = math.log(probability)
        model.lm_head.weight.div_(math.sqrt(width))  # the norm makes a one-hot vector this long
    return Policy(model, BYTES, max_positions=256)


def request(constraint: Constraint | None, **changes: Any) -> SampleRequest:
    sampling = Sampling(temperature=changes.pop("temperature", 1.0), max_tokens=changes.pop("max_tokens", 100))
    given: dict[str, Any] = {
        "session_id": "s",
        "prompt_ids": PROMPT,
        "stop_ids": frozenset({STOP}),
        "seed": 0,
        **changes,
    }
    return SampleRequest(sampling=sampling, constraint=constraint, **given)


def play(policy: Policy, scenario: Callable[[TorchEngine], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        engine = TorchEngine(policy, policy.snapshot(), **options)
        try:
            return await scenario(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def text_of(completion: Completion) -> str:
    assert completion.token_ids[-1] == STOP
    return BYTES.decode(completion.token_ids[:-1])


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_any_weights_give_an_answer_that_follows_and_its_probabilities(temperature: float) -> None:
    constraint = following(SCHEMA)
    asked = request(constraint, temperature=temperature, seed=3)
    completion = play(random_policy(), lambda engine: engine.sample(asked))
    assert completion.stop_reason is StopReason.STOP
    answer = json.loads(text_of(completion))
    assert answer.keys() == {"kind", "yes"}
    assert answer["kind"] in ("a", "bc")
    # The same, computed apart: the model's own forward over the whole answer, and a softmax over what was allowed.
    ids = [*PROMPT, *completion.token_ids]
    with torch.no_grad():
        scores = random_model()(torch.tensor([ids])).logits[0, len(PROMPT) - 1 : -1].double() / (temperature or 1.0)
    guide = Grammars(BYTES, VOCAB).guide(constraint, asked.stop_ids)
    logprobs, removed = [], []
    for row, token in zip(scores, completion.token_ids, strict=True):
        allowed = guide.allowed()
        logprobs.append(row[token] - row[allowed].logsumexp(0))
        removed.append(1 - row.softmax(0)[allowed].sum())
        guide.advance(token)
    assert completion.sampled_logprobs == pytest.approx([float(one) for one in logprobs], abs=1e-4)
    assert completion.removed_mass == pytest.approx(float(max(removed)), abs=1e-5)
    assert completion.removed_mass > 0.5


@pytest.mark.parametrize("deterministic", [False, True])
def test_constrained_and_free_rows_of_a_batch_are_what_they_are_alone(deterministic: bool) -> None:
    asked = [
        request(
            following(SCHEMA) if index % 2 else None, session_id=f"s{index}", seed=index, max_tokens=40, order=(index,)
        )
        for index in range(4)
    ]

    async def alone(engine: TorchEngine) -> list[Completion]:
        return [await engine.sample(one) for one in asked]

    async def together(engine: TorchEngine) -> list[Completion]:
        for one in asked:
            engine.open_session(one.session_id)
        return await asyncio.gather(*map(engine.sample, asked))

    expected = play(random_policy(), alone)
    found = play(random_policy(), together, deterministic=deterministic)
    for one, other in zip(expected, found, strict=True):
        assert one.token_ids == other.token_ids
        assert one.sampled_logprobs == pytest.approx(other.sampled_logprobs, abs=1e-4)
        assert one.removed_mass == pytest.approx(other.removed_mass, abs=1e-5)
    assert [one.removed_mass > 0 for one in found] == [False, True, False, True]


def test_a_policy_that_follows_by_itself_loses_nothing() -> None:
    one, two, end = 3 + ord("1"), 3 + ord("2"), 3 + ord("\n")
    policy = bigram_policy({end: {one: 0.9999}, one: {two: 0.9999}, two: {STOP: 0.9999}})
    completion = play(policy, lambda engine: engine.sample(request(following({"type": "integer"}))))
    assert text_of(completion) == "12"
    assert completion.removed_mass < 1e-6


def test_the_removed_mass_is_the_largest_of_any_token() -> None:
    one, two, end, x = 3 + ord("1"), 3 + ord("2"), 3 + ord("\n"), 3 + ord("x")
    policy = bigram_policy({end: {one: 0.98, x: 0.02}, one: {two: 0.9, x: 0.1}, two: {STOP: 0.95, x: 0.05}})
    completion = play(policy, lambda engine: engine.sample(request(following({"const": 12}))))
    assert text_of(completion) == "12"
    assert completion.removed_mass == pytest.approx(0.1, abs=1e-3)
    assert completion.sampled_logprobs == pytest.approx([0.0, 0.0, 0.0], abs=1e-5)  # of what was left, all


def test_an_answer_that_is_cut_is_marked_so() -> None:
    completion = play(random_policy(), lambda engine: engine.sample(request(following(SCHEMA), max_tokens=5)))
    assert completion.stop_reason is StopReason.LENGTH
    assert len(completion.token_ids) == 5


@pytest.mark.parametrize(
    ("constraint", "stop_ids", "words", "schema"),
    [
        (following({"type": "objekt"}), {STOP}, "objekt", "answer"),
        (following({"type": "object", "not": {}}), {STOP}, "not", "answer"),
        (following({"$ref": "https://example.com/schema"}), {STOP}, "example.com", "answer"),
        (following({"enum": ["x" * MAX_CONSTRAINT_CHARACTERS]}), {STOP}, "characters", None),
        (Constraint(grammar="start: nothing\n"), {STOP}, "nothing", None),
        (following(SCHEMA), set(), "stop id", None),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_and_the_engine_goes_on(
    constraint: Constraint, stop_ids: set[int], words: str, schema: str | None
) -> None:
    async def scenario(engine: TorchEngine) -> None:
        tokens: list[int] = []
        with pytest.raises(ConstraintError, match=words) as refusal:
            await engine.sample(request(constraint, stop_ids=frozenset(stop_ids)), tokens.append)
        assert refusal.value.schema == schema
        assert tokens == []
        assert (await engine.sample(request(None, max_tokens=2))).token_ids

    play(random_policy(), scenario)


def test_a_tokenizer_that_hides_its_bytes_is_refused() -> None:
    with pytest.raises(ConstraintError, match="fast tokenizer"):
        Grammars(object(), VOCAB).guide(following(SCHEMA), frozenset({STOP}))
