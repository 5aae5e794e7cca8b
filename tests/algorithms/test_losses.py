"""Losses and their gradients against published golden numbers and hand-derived statistics."""

import math

import pytest
import torch

from sparring.algorithms.losses import LOSSES, Tokens, policy_metrics

NEW = [-0.5, -1.2, -0.1, -2.0]
OLD = [-0.7, -1.0, -1.6, -2.05]
# The ratios are exp(0.2), exp(-0.2), exp(1.5), exp(0.05).
ADVANTAGES = [1.0, 1.0, -1.0, -1.0]


def evaluate(name, low=None, high=None, **settings):
    """The loss per token, the gradient of its sum by the new log-probabilities, and the metrics."""
    new = torch.tensor(NEW, requires_grad=True)
    if low is not None:
        settings |= {"clip_low_threshold": low, "clip_high_threshold": high}
    tokens = Tokens(
        logprobs_M=new,
        old_M=torch.tensor(OLD),
        advantages_M=torch.tensor(ADVANTAGES),
        trajectory_M=torch.tensor(settings.pop("trajectories", [0, 0, 0, 0])),
    )
    loss, metrics = LOSSES[name](tokens, **settings)
    loss.sum().backward()
    return loss.detach(), new.grad.tolist(), metrics


def test_importance_sampling_weights_by_the_ratio():
    loss, gradient, metrics = evaluate("importance_sampling")
    assert loss.mean().item() == pytest.approx(0.873207, abs=1e-5)
    assert loss.sum().item() == pytest.approx(3.492826, abs=1e-5)
    assert [g / 4 for g in gradient] == pytest.approx([-0.305351, -0.204683, 1.120422, 0.262818], abs=1e-5)
    assert metrics == {}


def test_ppo_stops_the_gradient_only_where_the_step_already_went_far_enough():
    loss, gradient, metrics = evaluate("ppo", 0.8, 1.2)
    assert loss.mean().item() == pytest.approx(0.878557, abs=1e-5)
    assert loss.sum().item() == pytest.approx(3.514229, abs=1e-5)
    assert [g / 4 for g in gradient] == pytest.approx([0, -0.204683, 1.120422, 0.262818], abs=1e-5)
    # The third ratio is outside the bounds too, but moving back from there is wanted: it is not clipped.
    assert metrics["clip_fraction"].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("low", "high", "total", "expected_gradient", "clipped"),
    [
        (0.8, 1.2, -0.640064, [-1.2, -0.818731, 1.2, 1.051271], [1, 0, 1, 0]),
        (0.0, 4.0, -0.909364, [-1.221403, -0.818731, 4.0, 1.051271], [0, 0, 1, 0]),
        (1.0, 6.0, -0.740010, [-1.221403, -1.0, 4.481689, 1.051271], [0, 1, 0, 0]),
    ],
)
def test_cispo_bounds_the_weight_and_keeps_every_gradient(low, high, total, expected_gradient, clipped):
    loss, gradient, metrics = evaluate("cispo", low, high)
    assert loss.sum().item() == pytest.approx(total, abs=1e-5)
    assert gradient == pytest.approx(expected_gradient, abs=1e-5)
    assert metrics["clip_fraction"].tolist() == clipped


def test_cross_entropy_is_the_negative_log_probability():
    loss, gradient, _ = evaluate("cross_entropy")
    assert loss.tolist() == pytest.approx([0.5, 1.2, 0.1, 2.0])
    assert gradient == [-1, -1, -1, -1]


def test_metrics_describe_the_distance_from_the_sampling_policy():
    ratios = [math.exp(d) for d in (0.2, -0.2, 1.5, 0.05)]
    metrics = {name: value.item() for name, value in policy_metrics(torch.tensor(NEW), torch.tensor(OLD)).items()}
    assert metrics["ratio_mean"] == pytest.approx(sum(ratios) / 4)
    assert (metrics["ratio_min"], metrics["ratio_max"]) == pytest.approx((0.818731, 4.481689), abs=1e-5)
    assert metrics["logprob_difference_mean"] == pytest.approx((0.2 + 0.2 + 1.5 + 0.05) / 4)
    assert metrics["logprob_difference_max"] == pytest.approx(1.5)
    assert metrics["kl_k1"] == pytest.approx(-(0.2 - 0.2 + 1.5 + 0.05) / 4)
    assert metrics["kl_k3"] == pytest.approx(sum(ratios) / 4 - 1 - 1.55 / 4)
    assert metrics["effective_sample_size"] == pytest.approx(sum(ratios) ** 2 / (4 * sum(r * r for r in ratios)))
    # (0.04 + 0.04 + 2.25 + 0.0025) / 4 / 2
    assert metrics["kl_k2"] == pytest.approx(0.2915625)


def test_ppo_with_dual_clip_bounds_what_a_bad_token_costs():
    loss, gradient, metrics = evaluate("ppo", 0.8, 1.2, dual_clip=3.0)
    assert loss.mean().item() == pytest.approx(0.508135, abs=1e-6)
    assert [g / 4 for g in gradient] == pytest.approx([0, -0.204683, 0, 0.262818], abs=1e-6)
    assert metrics["clip_fraction"].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("low", "high", "mean"), [(0.8, 1.2, 0.136646), (None, None, 0.236446)], ids=["epsilon 0.2", "the paper's"]
)
def test_gspo_has_one_ratio_a_trajectory(low, high, mean):
    # s = exp((0.2 - 0.2 + 1.5 + 0.05) / 4) = 1.473293. Good tokens are clipped; bad ones keep s as gradient.
    loss, gradient, metrics = evaluate("gspo", low, high)
    assert loss.mean().item() == pytest.approx(mean, abs=1e-6)
    assert [g / 4 for g in gradient] == pytest.approx([0, 0, 0.368323, 0.368323], abs=1e-6)
    assert metrics["clip_fraction"].tolist() == [1, 1, 0, 0]


def test_gspo_takes_the_mean_over_the_tokens_of_the_trajectory_only():
    # First trajectory: tokens 1 and 3, s = exp(0.85); second: tokens 2 and 4, s = exp(-0.075).
    loss, _, _ = evaluate("gspo", 0.0, math.inf, trajectories=[0, 1, 0, 1])
    first, second = math.exp(0.85), math.exp(-0.075)
    assert loss.tolist() == pytest.approx([-first, -second, first, second], abs=1e-6)


def test_gpg_does_not_look_at_who_sampled():
    loss, gradient, _ = evaluate("gpg")
    assert loss.mean().item() == pytest.approx(-0.1, abs=1e-6)
    assert [g / 4 for g in gradient] == pytest.approx([-0.25, -0.25, 0.25, 0.25])


def test_dppo_tv_leaves_alone_what_has_moved_far_enough_in_the_wanted_direction():
    # Probabilities moved by .11, -.067, .703, .0066; the third is bad and rose, which is to be undone: weight at most 3.
    loss, gradient, metrics = evaluate("dppo_tv", ratio_cap=3.0)
    assert loss.mean().item() == pytest.approx(-0.202341, abs=1e-6)
    assert [g / 4 for g in gradient] == pytest.approx([-0.305351, -0.204683, 0.75, 0.262818], abs=1e-6)
    assert metrics["clip_fraction"].tolist() == [0, 0, 0, 0]
    # With a threshold of 0.1 the first, which is good and rose by 0.11, is left alone.
    _, gradient, metrics = evaluate("dppo_tv", tv_high_threshold=0.1)
    assert gradient[0] == 0
    assert metrics["clip_fraction"].tolist() == [1, 0, 0, 0]
