"""What surrounds a loss: corrections with two and three policies, entropy, divergence from the base."""

import math
import random

import pytest
import torch

from sparring.algorithms.choice import FUNCTIONS
from sparring.algorithms.losses import LOSSES, Tokens
from sparring.algorithms.objective import Objective, reference_metrics
from sparring.errors import DataError

NEW = [-0.5, -1.2, -0.1, -2.0]
OLD = [-0.7, -1.0, -1.6, -2.05]
ADVANTAGES = [1.0, 1.0, -1.0, -1.0]


def evaluate(loss_fn, config=None, *, old=None, entropies=None, reference=None):
    """Loss of each token, gradient of the sum by the new log-probabilities, metrics; fixture B sampled by OLD."""
    new = torch.tensor(NEW, dtype=torch.float64, requires_grad=True)
    sampled = torch.tensor(OLD, dtype=torch.float64)
    tokens = Tokens(
        logprobs_M=new,
        old_M=sampled if old is None else torch.tensor(old, dtype=torch.float64),
        advantages_M=torch.tensor(ADVANTAGES, dtype=torch.float64),
        trajectory_M=torch.zeros(4, dtype=torch.long),
    )
    loss, metrics = Objective.from_config(loss_fn, config or {})(
        tokens, sampled_M=sampled, entropies_M=entropies, reference_M=reference
    )
    loss.sum().backward()
    assert new.grad is not None
    return loss.detach().tolist(), new.grad.tolist(), metrics


def test_with_two_policies_a_truncated_ratio_takes_the_place_of_the_ratio():
    loss, gradient, metrics = evaluate("importance_sampling", {"off_policy_correction": "token_tis"})
    # -rho * A with the third ratio, 4.48, cut to 2; its gradient is -weight * A.
    assert loss == pytest.approx([-1.221403, -0.818731, 2.0, 1.051271], abs=1e-6)
    assert gradient == pytest.approx([-1.221403, -0.818731, 2.0, 1.051271], abs=1e-6)
    assert metrics["correction/changed_fraction"].tolist() == [0, 0, 1, 0]


def test_with_three_policies_the_ratio_starts_at_1_and_the_weight_is_a_factor():
    config = {"off_policy_correction": "token_tis", "policy_ratio": "three_policy"}
    loss, gradient, _ = evaluate("ppo", config, old=NEW)
    # rho = 1, nothing is clipped; weights are min(exp(new - old), 2).
    assert loss == pytest.approx([-1.221403, -0.818731, 2.0, 1.051271], abs=1e-6)
    assert gradient == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(
    ("loss_fn", "config", "expected"),
    [
        # min(rho, 2), also beyond the loss's own cap of 5, where rho as a factor of the loss has become 5.
        ("cispo", {"off_policy_correction": "token_tis"}, [0.5, 1.0, 2.0, 2.0, 2.0]),
        # The lower of both bounds: the correction's 8, the loss's 5.
        ("cispo", {"off_policy_correction": "token_tis", "correction_high": 8.0}, [0.5, 1.0, 3.0, 5.0, 5.0]),
        ("cispo", {"off_policy_correction": "token_tis", "clip_high_threshold": 1.5}, [0.5, 1.0, 1.5, 1.5, 1.5]),
        # A mask keeps what the loss gives, or leaves the token out.
        (
            "cispo",
            {"off_policy_correction": "icepop", "correction_low": 0.4, "correction_high": 10.0},
            [0.5, 1.0, 3.0, 5.0, 0.0],
        ),
        ("dppo_tv", {"off_policy_correction": "token_tis"}, [0.5, 1.0, 2.0, 2.0, 2.0]),
    ],
)
def test_with_two_policies_a_bounded_ratio_is_replaced_up_to_its_bound(loss_fn, config, expected):
    ratios = torch.tensor([0.5, 1.0, 3.0, 8.0, 40.0], dtype=torch.float64)
    new = torch.full((5,), -6.0, dtype=torch.float64, requires_grad=True)
    sampled = new.detach() - ratios.log()
    tokens = Tokens(
        logprobs_M=new,
        old_M=sampled,
        advantages_M=torch.ones(5, dtype=torch.float64),
        trajectory_M=torch.zeros(5, dtype=torch.long),
    )
    loss, _ = Objective.from_config(loss_fn, config)(tokens, sampled_M=sampled)
    loss.sum().backward()
    assert new.grad is not None
    assert (-new.grad).tolist() == pytest.approx(expected)


def test_a_loss_without_ratio_gets_the_whole_weight():
    loss, gradient, _ = evaluate("gpg", {"off_policy_correction": "token_tis"})
    weights = [1.221403, 0.818731, 2.0, 1.051271]
    assert gradient == pytest.approx([-w * a for w, a in zip(weights, ADVANTAGES, strict=True)], abs=1e-6)
    assert loss == pytest.approx([-w * a * x for w, a, x in zip(weights, ADVANTAGES, NEW, strict=True)], abs=1e-6)


@pytest.mark.parametrize("loss_fn", sorted(FUNCTIONS["loss_fn"]))
def test_a_correction_of_equal_policies_changes_nothing(loss_fn):
    config = {"off_policy_correction": "token_tis", "policy_ratio": "two_policy"}
    new = torch.tensor(OLD, requires_grad=True)
    tokens = Tokens(
        logprobs_M=new,
        old_M=torch.tensor(OLD),
        advantages_M=torch.tensor(ADVANTAGES),
        trajectory_M=torch.zeros(4, dtype=torch.long),
    )
    corrected, _ = Objective.from_config(loss_fn, config)(tokens, sampled_M=torch.tensor(OLD))
    plain, _ = Objective.from_config(loss_fn, {})(tokens, sampled_M=torch.tensor(OLD))
    assert corrected.tolist() == pytest.approx(plain.tolist(), abs=1e-6)


def test_entropy_is_taken_off_the_loss():
    entropies = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    with_bonus, _, _ = evaluate("gpg", {"entropy_coef": 0.5}, entropies=entropies)
    without, _, _ = evaluate("gpg")
    assert with_bonus == pytest.approx([x - 0.5 * e for x, e in zip(without, entropies.tolist(), strict=True)])


def test_divergence_from_the_base_as_k2_and_as_k3_with_the_gradient_of_k2():
    reference = torch.tensor(OLD, dtype=torch.float64)
    plain, plain_gradient, _ = evaluate("gpg")
    # d = new - reference = [.2, -.2, 1.5, .05]: k2 = d^2 / 2, its derivative d; k3 = exp(-d) + d - 1.
    for form, values in (
        ("loss_k2", [0.02, 0.02, 1.125, 0.00125]),
        ("loss_k3", [0.018731, 0.021403, 0.72313, 0.001229]),
    ):
        loss, gradient, _ = evaluate("gpg", {"kl_coef": 2.0, "kl_form": form}, reference=reference)
        assert [(a - b) / 2 for a, b in zip(loss, plain, strict=True)] == pytest.approx(values, abs=1e-5)
        slopes = [(a - b) / 2 for a, b in zip(gradient, plain_gradient, strict=True)]
        assert slopes == pytest.approx([0.2, -0.2, 1.5, 0.05], abs=1e-6)


def test_divergence_is_reported_in_all_three_forms():
    metrics = reference_metrics(torch.tensor(NEW), torch.tensor(OLD))
    # Means of [.2, -.2, 1.5, .05], of [.02, .02, 1.125, .00125], of [.018731, .021403, .72313, .001229].
    assert metrics["reference_kl_k1"] == pytest.approx(0.3875, abs=1e-6)
    assert metrics["reference_kl_k2"] == pytest.approx(0.2915625, abs=1e-6)
    assert metrics["reference_kl_k3"] == pytest.approx(0.19112325, abs=1e-5)


def surrogate(loss_fn, at, old, advantages):
    """Of log-probabilities: the sum whose gradient at `at` the loss promises. What it treats as constant is taken there."""
    rho = [math.exp(new - before) for new, before in zip(at, old, strict=True)]
    if loss_fn == "cispo":
        weights = [min(ratio, 5.0) for ratio in rho]
    elif loss_fn == "dppo_tv":
        moved = [math.exp(new) - math.exp(before) for new, before in zip(at, old, strict=True)]
        is_free = [move <= 0.2 if a > 0 else move >= -0.2 for move, a in zip(moved, advantages, strict=True)]
        weights = [min(ratio, 20.0) * free for ratio, free in zip(rho, is_free, strict=True)]
    else:
        return lambda new: sum(losses_at(loss_fn, new, old, advantages)[0])
    return lambda new: -sum(w * a * x for w, a, x in zip(weights, advantages, new, strict=True))


def losses_at(loss_fn, new, old, advantages):
    """Losses of the tokens of two trajectories of three, and the gradient of their sum."""
    new_M = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    tokens = Tokens(
        logprobs_M=new_M,
        old_M=torch.tensor(old, dtype=torch.float64),
        advantages_M=torch.tensor(advantages, dtype=torch.float64),
        trajectory_M=torch.tensor([0, 0, 0, 1, 1, 1]),
    )
    loss_M, _ = LOSSES[loss_fn](tokens)
    loss_M.sum().backward()
    assert new_M.grad is not None
    return loss_M.detach().tolist(), new_M.grad.tolist()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loss_fn", sorted(FUNCTIONS["loss_fn"]))
def test_gradients_equal_finite_differences(loss_fn, seed):
    """In float64, at random places that are not on a kink. The advantage is one for each trajectory, as it is for those
    whose ratio is one for each trajectory."""
    rng = random.Random(seed)
    old = [-rng.uniform(0.05, 3) for _ in range(6)]
    new = [before + rng.gauss(0, 0.4) for before in old]
    advantages = [rng.choice([-1.0, 1.0]) * rng.uniform(0.1, 2)] * 3 + [rng.uniform(-2, 2)] * 3
    _, gradient = losses_at(loss_fn, new, old, advantages)
    total, step = surrogate(loss_fn, new, old, advantages), 1e-6
    for place in range(6):
        above, below = ([x + sign * step * (i == place) for i, x in enumerate(new)] for sign in (1, -1))
        assert (total(above) - total(below)) / (2 * step) == pytest.approx(gradient[place], abs=1e-6)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda one: (one.logprobs_M.sum(), {}), r"a loss of shape \(\) for 4 tokens; return one number per token"),
        (lambda one: (one.logprobs_M[:, None], {}), r"a loss of shape \(4, 1\) for 4 tokens"),
        (lambda one: (one.logprobs_M.sum(), {"loss": one.logprobs_M}), r"a loss of shape \(\) for 4 tokens"),
        (lambda one: (one.logprobs_M, {"clipped": one.logprobs_M[:2]}), r"a clipped of shape \(2,\) for 4 tokens"),
        (lambda one: one.logprobs_M, "returned Tensor; return the losses"),
        (lambda one: (one.logprobs_M, None), "returned tuple; return the losses"),
        (lambda one: (one.logprobs_M, {"clipped": 0.5}), "returned 0.5 as 'clipped'; return a tensor"),
        (
            lambda one: (one.logprobs_M, {"clipped": one.logprobs_M > 0}),
            "as 'clipped'; return a tensor of floating-point",
        ),
        (
            lambda one: (one.logprobs_M, {"entropy": one.logprobs_M}),
            "a metric 'entropy', but this name is already in use",
        ),
        (lambda one: (one.logprobs_M.detach(), {}), "losses without gradient"),
    ],
)
def test_a_loss_of_the_users_own_that_would_train_on_wrong_numbers_is_refused(answer, message):
    new = torch.tensor(NEW, requires_grad=True)
    tokens = Tokens(
        logprobs_M=new,
        old_M=torch.tensor(OLD),
        advantages_M=torch.tensor(ADVANTAGES),
        trajectory_M=torch.zeros(4, dtype=torch.long),
    )
    objective = Objective.from_config("mine", {}, {"mine": answer})
    with pytest.raises(DataError, match=message):
        objective(tokens, sampled_M=torch.tensor(OLD))


@pytest.mark.parametrize("correction", sorted(FUNCTIONS["off_policy_correction"]))
def test_a_token_that_the_policy_has_abandoned_leaves_the_loss_finite(correction):
    tokens = Tokens(
        logprobs_M=torch.tensor([-120.0, -1.0]),
        old_M=torch.tensor([-1.0, -1.0]),
        advantages_M=torch.tensor([1.0, -1.0]),
        trajectory_M=torch.zeros(2, dtype=torch.long),
    )
    objective = Objective.from_config("ppo", {"off_policy_correction": correction})
    loss, metrics = objective(tokens, sampled_M=torch.tensor([-1.0, -1.0]))
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(value).all() for value in metrics.values())
