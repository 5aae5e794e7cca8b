"""Losses and their gradients against published golden numbers and hand-derived statistics."""

import math

import pytest
import torch

from sparring.algorithms.losses import LOSSES, loss_metrics

NEW = [-0.5, -1.2, -0.1, -2.0]
OLD = [-0.7, -1.0, -1.6, -2.05]
# The ratios are exp(0.2), exp(-0.2), exp(1.5), exp(0.05).
ADVANTAGES = [1.0, 1.0, -1.0, -1.0]


def evaluate(name, low=0.0, high=math.inf):
    """The loss per token, the gradient of its sum by the new log-probabilities, and the metrics."""
    new = torch.tensor(NEW, requires_grad=True)
    config = {"clip_low_threshold": low, "clip_high_threshold": high}
    loss, metrics = LOSSES[name](new, torch.tensor(OLD), torch.tensor(ADVANTAGES), config)
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
    metrics = {name: value.item() for name, value in loss_metrics(torch.tensor(NEW), torch.tensor(OLD)).items()}
    assert metrics["ratio_mean"] == pytest.approx(sum(ratios) / 4)
    assert (metrics["ratio_min"], metrics["ratio_max"]) == pytest.approx((0.818731, 4.481689), abs=1e-5)
    assert metrics["logprob_difference_mean"] == pytest.approx((0.2 + 0.2 + 1.5 + 0.05) / 4)
    assert metrics["logprob_difference_max"] == pytest.approx(1.5)
    assert metrics["kl_k1"] == pytest.approx(-(0.2 - 0.2 + 1.5 + 0.05) / 4)
    assert metrics["kl_k3"] == pytest.approx(sum(ratios) / 4 - 1 - 1.55 / 4)
    assert metrics["effective_sample_size"] == pytest.approx(sum(ratios) ** 2 / (4 * sum(r * r for r in ratios)))
