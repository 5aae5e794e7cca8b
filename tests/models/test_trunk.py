"""What the frozen layers computed for a sampled token is not computed again for training."""

from __future__ import annotations

import asyncio

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.engines.torch_engine import TorchEngine
from sparring.models.policy import LoraSettings, Policy
from sparring.models.token_tree import TokenTree
from sparring.models.trunk import TrunkCache
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.types import Completion, TrainingBatch, Weights
from tests.engines.playing import request, some_ids

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=6)


def make_cache(max_tokens: int = 100) -> TrunkCache:
    return TrunkCache(
        num_layers=1, hidden_size=1, max_tokens=max_tokens, dtype=torch.float32, device=torch.device("cpu")
    )


def outputs_of(branches: list[tuple[int, ...]], ancestors: list[tuple[tuple[int, int], ...]]) -> torch.Tensor:
    """Return an output for each token that depends on its whole history."""
    values = []
    for tokens, parts in zip(branches, ancestors, strict=True):
        history = [token for branch, size in parts for token in branches[branch][:size]]
        for token in tokens:
            history.append(token)
            values.append(float(hash(tuple(history)) % 100_003))
    return torch.tensor(values)[:, None]


@settings(max_examples=150, deadline=None)
@given(kept=SEQUENCES, wanted=SEQUENCES)
def test_outputs_are_found_exactly_if_every_history_is_known(
    kept: list[tuple[int, ...]], wanted: list[tuple[int, ...]]
) -> None:
    cache = make_cache()
    for ids in kept:
        cache.add([ids], [()], outputs_of([ids], [()]))
    tree = TokenTree(wanted)
    found = cache.find(tree.branches, tree.ancestors)
    is_known = all(any(other[: len(ids)] == ids for other in kept) for ids in wanted)
    assert (found is not None) == is_known
    if found is not None:
        assert torch.equal(found, outputs_of(tree.branches, tree.ancestors))
    cache.add(tree.branches, tree.ancestors, outputs_of(tree.branches, tree.ancestors))
    found = cache.find(tree.branches, tree.ancestors)
    assert found is not None
    assert torch.equal(found, outputs_of(tree.branches, tree.ancestors))


def test_a_full_cache_is_emptied_and_a_sequence_that_never_fits_is_left_out() -> None:
    cache = make_cache(max_tokens=4)
    cache.add([(1, 2, 3)], [()], outputs_of([(1, 2, 3)], [()]))
    cache.add([(7, 8, 9, 10, 11)], [()], outputs_of([(7, 8, 9, 10, 11)], [()]))
    assert cache.find([(1, 2, 3)], [()]) is not None
    cache.add([(4, 5)], [()], outputs_of([(4, 5)], [()]))
    assert cache.find([(1, 2, 3)], [()]) is None
    assert cache.find([(4, 5)], [()]) is not None


def make_policy(layers: int | None = 2) -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
    )
    policy = Policy(
        LlamaForCausalLM(config), None, max_positions=256, lora=LoraSettings(rank=2, alpha=4, layers=layers)
    )
    for name, one in policy.trained.items():
        one.data.copy_(torch.randn(one.shape, generator=torch.Generator().manual_seed(len(name))) * 0.2)
    return policy


def play(policy: Policy, weights: list[Weights]) -> list[tuple[list[int], Completion]]:
    """Sample two turns of each of six sessions, half of them after new weights were loaded."""

    async def scenario() -> list[tuple[list[int], Completion]]:
        engine = TorchEngine(policy, weights[0], kv_cache_tokens=4096)
        try:
            played = []
            for version, later in enumerate(weights):
                await engine.load_weights(later, version)
                prompts = [some_ids(place % 2, 30) for place in range(3)]
                for turn in range(2):
                    answers = await asyncio.gather(
                        *(
                            engine.sample(request(f"{version}-{place}", prompt, seed=place + 9 * turn, temperature=0.5))
                            for place, prompt in enumerate(prompts)
                        )
                    )
                    played += list(zip(prompts, answers, strict=True))
                    prompts = [[*ids, *one.token_ids, 3, 4] for ids, one in zip(prompts, answers, strict=True)]
            return played
        finally:
            await engine.close()

    return asyncio.run(scenario())


def lesson_of(played: list[tuple[list[int], Completion]]) -> TrainingBatch:
    return build_demonstration_batch(
        [((*ids, *one.token_ids), (*(False,) * len(ids), *(True,) * len(one.token_ids))) for ids, one in played]
    )


def gradient_of(policy: Policy, lesson: TrainingBatch, **options: int) -> torch.Tensor:
    TorchLearner(policy, **options).forward_backward(lesson, "cross_entropy", {})
    return torch.cat([one.grad.flatten() for one in policy.trained.values() if one.grad is not None])


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("budget", [60, 10_000])
def test_the_learner_reads_what_the_engine_computed(budget: int, is_checkpointed: bool) -> None:
    policy = make_policy()
    other = Weights(tensors={name: one * 1.5 for name, one in policy.snapshot().tensors.items()}, fingerprint="other")
    lesson = lesson_of(play(policy, [policy.snapshot(), other]))
    options = {"max_tokens_per_microbatch": budget, "activation_checkpointing": is_checkpointed}
    trunk = policy.trunk
    assert trunk is not None
    assert trunk.num_layers == 2
    found = gradient_of(policy, lesson, **options)
    logprobs, reference = TorchLearner(policy).logprobs(lesson), TorchLearner(policy).reference_logprobs(lesson)
    trunk._outputs_S_H += 1.0
    spoiled = gradient_of(policy, lesson, **options)
    policy.trunk = None
    expected = gradient_of(policy, lesson, **options)
    assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert (spoiled - expected).norm() > 1e-2 * expected.norm(), "every token must come from the engine"
    assert logprobs == pytest.approx(TorchLearner(policy).logprobs(lesson), abs=1e-5)
    assert reference == pytest.approx(TorchLearner(policy).reference_logprobs(lesson), abs=1e-5)


def test_what_the_learner_computed_serves_its_next_pass() -> None:
    policy = make_policy()
    policy.keep_trunk(1000)
    lesson = build_demonstration_batch([(some_ids(1, 20), [False] * 5 + [True] * 15)])
    first = gradient_of(policy, lesson)
    assert policy.trunk is not None
    policy.trunk._outputs_S_H.zero_()
    assert not torch.allclose(gradient_of(policy, lesson), first)


def test_sampled_episodes_leave_room_for_demonstrations() -> None:
    """As many tokens of demonstrations as the KV cache holds stay known while the engine samples as many."""
    policy = make_policy()

    async def scenario() -> tuple[torch.Tensor, torch.Tensor]:
        engine = TorchEngine(policy, policy.snapshot(), kv_cache_tokens=512)
        try:
            lesson = build_demonstration_batch([(some_ids(one, 64), [False] + [True] * 63) for one in range(8)])
            first = gradient_of(policy, lesson)
            for one in range(8):
                await engine.sample(request(str(one), some_ids(20 + one, 40), max_tokens=20))
            assert policy.trunk is not None
            policy.trunk._outputs_S_H.zero_()
            return first, gradient_of(policy, lesson)
        finally:
            await engine.close()

    first, second = asyncio.run(scenario())
    assert not torch.allclose(first, second), "the second pass must read what the first one kept"


@pytest.mark.parametrize("layers", [None, 4])
def test_a_model_without_frozen_layers_keeps_nothing(layers: int | None) -> None:
    policy = make_policy(layers)
    play(policy, [policy.snapshot()])
    assert policy.trunk is None


def test_a_deterministic_engine_uses_no_outputs_of_an_earlier_phase() -> None:
    """Not even with equal tokens: they were computed with other shapes, and a resumed run does not have them."""
    policy = make_policy()

    def is_known(prompt: list[int]) -> bool:
        assert policy.trunk is not None
        return policy.trunk.find([tuple(prompt)], [()]) is not None

    async def scenario() -> list[bool]:
        engine = TorchEngine(policy, policy.snapshot(), kv_cache_tokens=4096, deterministic=True)
        found = []
        try:
            for name, seed in (("a", 1), ("b", 2)):
                engine.open_session(name)
                await engine.sample(request(name, some_ids(seed, 30)))
                engine.close_session(name)
                await asyncio.sleep(0.2)  # the engine's thread notices that the last session is closed
                found += [is_known(some_ids(1, 30)), is_known(some_ids(2, 30))]
            await engine.sample(request("stranger", some_ids(3, 30)))
            return [*found, is_known(some_ids(3, 30))]
        finally:
            await engine.close()

    # After each phase, the learner finds what was computed in it.
    assert asyncio.run(scenario()) == [True, False, False, True, False]


def test_known_tokens_do_not_count_when_a_cache_is_nearly_full() -> None:
    cache = make_cache(max_tokens=6)
    for last in (4, 5, 6):
        cache.add([(1, 2, 3, last)], [()], outputs_of([(1, 2, 3, last)], [()]))
    assert cache.find([(1, 2, 3, 4)], [()]) is not None
