"""What is computed once for several trajectories changes no loss, gradient or metric.

The control computes each sequence on its own, with transformers' forward pass.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.algorithms.choice import FUNCTIONS
from sparring.algorithms.reductions import REDUCTIONS
from sparring.models.token_tree import count_nodes
from sparring.training.learner import TorchLearner
from sparring.training.packing import MICROBATCH_TOKENS, _divide
from sparring.training.sequences import build_batch, sequence_ids

TOLERANCE = 1e-5
"""The largest relative error of a gradient that rounding in fp32 explains."""

COMBINATIONS = [
    *((loss, "token_tis", "trajectory_mean", {}) for loss in FUNCTIONS["loss_fn"]),
    *(("ppo", correction, "token_mean", {}) for correction in FUNCTIONS["off_policy_correction"]),
    *(("importance_sampling", "none", reduction, {}) for reduction in REDUCTIONS),
    ("ppo", "token_tis", "trajectory_mean", {"policy_ratio": "three_policy"}),
    ("ppo", "none", "token_mean", {"entropy_coef": 0.1}),
    ("ppo", "none", "token_mean", {"kl_coef": 0.1, "kl_form": "loss_k2"}),
    ("gspo", "none", "token_mean", {"kl_coef": 0.1, "kl_form": "loss_k3", "entropy_coef": 0.1}),
]


@pytest.fixture
def groups(turn, group):
    """Two groups whose members often say the same: a fork, two roots, two temperatures, two versions of the weights."""
    system = (1, 2, 3, 4)

    def play(*answers, temperature=1.0, version=0, sampled=-3.0):
        turns, history = [], (*system, 5, 6)
        for index, answer in enumerate(answers):
            made = turn(index, index - 1 if index else None, history, answer, temperature=temperature, sampled=sampled)
            turns.append(replace(made, versions=((version, len(answer)),)))
            history = (*history, *answer, 30)
        return turns

    fork = [
        *play([7, 8, 9], [10]),
        turn(2, 0, [*system, 5, 6, 7, 8, 9, 30, 31], [11, 12], sampled=-2.5),
        turn(3, None, [*system, 33], [34], sampled=-2.0),
    ]
    first = group("a", play([7, 8, 9], [10]), play([7, 8, 9], [10, 11], version=1, sampled=-2.8), fork)
    second = group("b", play([7, 8]), play([7, 8], temperature=0.7), play([7, 9, 9], temperature=0.7, sampled=-3.5))
    return [first, second]


def learn(policy, batch, loss, config, *, budget=10_000, is_shared=True, after=None):
    """Return the metrics and gradients of a first pass, those of a second pass after a step, and the weights after the
    step. The second pass uses the weights `after` if they are given: Adam turns the rounding errors of tiny gradients
    into steps of full size."""
    policy.is_lean = is_shared
    learner = TorchLearner(policy, max_tokens_per_microbatch=budget)
    old_logprobs = learner.logprobs(batch)
    passes = []
    for _ in range(2):
        metrics = learner.forward_backward(batch, loss, config, old_logprobs)
        passes.append((metrics, torch.cat([one.grad.flatten() for one in policy.trained.values()])))
        if len(passes) == 1:
            learner.optim_step(0.01)
            stepped = torch.cat([one.detach().flatten() for one in policy.trained.values()])
            if after is not None:
                torch.nn.utils.vector_to_parameters(after, policy.trained.values())
    return passes, stepped


@pytest.mark.parametrize(("loss", "correction", "reduction", "others"), COMBINATIONS)
@pytest.mark.parametrize("budget", [1, 30, 10_000])
def test_every_objective_is_that_of_sequences_on_their_own(
    tiny_policy, groups, loss, correction, reduction, others, budget
):
    advantages = {
        trajectory.id: [(-1.0) ** place * (index + 1) for index, _ in enumerate(trajectory.turns)]
        for group in groups
        for place, trajectory in enumerate(group.trajectories)
    }
    batch = build_batch(groups, advantages, reduction=REDUCTIONS[reduction])
    config = {"off_policy_correction": correction, **others}
    shared, weights = learn(tiny_policy(), batch, loss, config, budget=budget)
    alone, expected_weights = learn(tiny_policy(), batch, loss, config, is_shared=False, after=weights)
    assert (weights - expected_weights).norm() <= 1e-4 * weights.norm()
    for (found, gradient), (expected, control) in zip(shared, alone, strict=True):
        for name in expected.keys() - {"training/tokens"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
        assert (gradient - control).norm() <= TOLERANCE * control.norm() + 1e-6
        if budget == 10_000:
            assert found["training/tokens"] < count_nodes(sequence_ids(batch)) < expected["training/tokens"]


@settings(max_examples=200, deadline=None)
@given(
    items=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=7),
    max_tokens=st.integers(1, 30),
)
def test_a_division_costs_least_of_all_that_keep_the_limit(items, max_tokens):
    sizes = [size for size, _ in items]
    # Two neighbors share at most the size of the smaller one.
    shared = [0, *(min(*pair, share) for pair, (_, share) in zip(pairwise(sizes), items[1:], strict=True))]

    def cost(cuts):
        ends = [*cuts, len(sizes)]
        parts = list(zip([0, *cuts], ends, strict=True))
        costs = [sum(sizes[begin:end]) - sum(shared[begin + 1 : end]) for begin, end in parts]
        fits = all(one <= max_tokens or end - begin == 1 for one, (begin, end) in zip(costs, parts, strict=True))
        return sum(costs) + MICROBATCH_TOKENS * len(parts) if fits else None

    places = range(1, len(sizes))
    every = [cost(cuts) for number in range(len(sizes)) for cuts in combinations(places, number)]
    found = _divide(sizes, shared, max_tokens)
    assert [part.start for part in found] == [0, *(part.stop for part in found[:-1])]
    assert found[-1].stop == len(sizes)
    assert cost([part.stop for part in found[:-1]]) == min(one for one in every if one is not None)
