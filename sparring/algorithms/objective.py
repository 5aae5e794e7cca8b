"""The objective of an optimizer step: a loss with an off-policy correction, an optional entropy bonus and an optional
divergence.

    w = correction(policy that should have sampled / policy that did)
    loss of a token = w * loss(rho, A) - entropy_coef * H + kl_coef * k(policy / base)

With two policies, rho is policy / sampler. The loss already contains rho as a factor, so it is multiplied by w / rho.
If the loss contains rho only up to a cap, the factor is min(w, cap) / min(rho, cap). With three policies, rho is policy
/ policy before the step, and w is policy before the step / sampler (arXiv:2505.24298).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparring.algorithms.choice import CAPS, FUNCTIONS, WITHOUT_RATIO, bind, read_defaults
from sparring.algorithms.corrections import LARGEST_LOG, none
from sparring.algorithms.losses import LOSSES, PerToken, Tokens, effective_sample_size
from sparring.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


TAKEN = frozenset({"loss", "entropy", "tokens", "trained_tokens"})
"""The metric names that the learner itself reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A loss with its correction, entropy bonus and divergence. `from_config` reads the flat settings of a learner."""

    loss: Callable[..., PerToken]
    carries_ratio: bool = True
    """Whether the loss has rho as a factor."""
    ratio_cap: float = math.inf
    """The bound up to which the loss has rho as a factor."""
    correction: Callable[..., Tensor] = none
    corrects: bool = False
    is_three_policy: bool = False
    entropy_coef: float = 0.0
    kl_coef: float = 0.0
    kl_form: str = "loss_k2"
    is_supervised: bool = False

    @classmethod
    def from_config(
        cls, loss_fn: str, config: Mapping[str, Any], losses: Mapping[str, Callable[..., PerToken]] = LOSSES
    ) -> Objective:
        """Build an objective.

        `config` contains the hyperparameters of the loss and the correction, `off_policy_correction`, `policy_ratio`,
        `entropy_coef`, `kl_coef` and `kl_form`. Missing keys get their default values, and other keys are ignored.
        """
        correction, loss = config.get("off_policy_correction", "none"), bind(losses[loss_fn], config)
        return cls(
            loss=loss,
            carries_ratio=loss_fn not in WITHOUT_RATIO,
            ratio_cap=read_defaults(loss)[CAPS[loss_fn]] if loss_fn in CAPS else math.inf,
            correction=bind(FUNCTIONS["off_policy_correction"][correction], config),
            corrects=correction != "none",
            is_three_policy=config.get("policy_ratio") == "three_policy",
            entropy_coef=config.get("entropy_coef", 0.0),
            kl_coef=config.get("kl_coef", 0.0) if config.get("kl_form", "loss_k2") != "reward_k1" else 0.0,
            kl_form=config.get("kl_form", "loss_k2"),
            is_supervised=loss_fn == "cross_entropy",
        )

    def __call__(
        self,
        tokens: Tokens,
        *,
        sampled_M: Tensor,
        entropies_M: Tensor | None = None,
        reference_M: Tensor | None = None,
    ) -> PerToken:
        """Return the loss of each token and its metrics.

        `sampled_M` are the log-probabilities under the sampler. `entropies_M` (with gradient) and `reference_M` are
        needed if their coefficients are not 0.
        """
        loss_M, metrics = _checked(self.loss(tokens), tokens)
        if self.corrects:
            proximal_M = tokens.old_M if self.is_three_policy else tokens.logprobs_M.detach()
            log_weights_M = proximal_M - sampled_M
            weights_M = self.correction(log_weights_M, tokens.trajectory_M)
            if not self.is_three_policy and self.carries_ratio:
                carried_M = log_weights_M.clamp(min=-LARGEST_LOG).exp().clamp(max=self.ratio_cap)
                factors_M = weights_M.clamp(max=self.ratio_cap) / carried_M
            else:
                factors_M = weights_M
            loss_M = loss_M * factors_M
            metrics = metrics | {
                "correction/weight": weights_M,
                "correction/changed_fraction": (weights_M != log_weights_M.exp()).float(),
            }
        if self.entropy_coef and entropies_M is not None:
            loss_M = loss_M - self.entropy_coef * entropies_M
        if self.kl_coef and reference_M is not None:
            difference_M = tokens.logprobs_M - reference_M
            k2_M = difference_M.square() / 2
            if self.kl_form == "loss_k3":
                k3_M = (-difference_M).exp() + difference_M - 1
                k2_M = k2_M + (k3_M - k2_M).detach()
            loss_M = loss_M + self.kl_coef * k2_M
        return loss_M, metrics


def _checked(answer: object, tokens: Tokens) -> PerToken:
    """Check the result of a loss, which may be a user's function. Raises DataError if the result would make the
    training incorrect."""
    match answer:
        case (loss_M, dict() as metrics):
            pass
        case _:
            raise DataError(
                f"loss_fn returned {type(answer).__name__}; return the losses [M] and a dict of metrics [M]."
            )
    for name, value in (("loss", loss_M), *metrics.items()):
        shape = getattr(value, "shape", None)
        if shape is None or not hasattr(value, "is_floating_point") or not value.is_floating_point():
            raise DataError(
                f"loss_fn returned {value!r:.60} as {name!r}; return a tensor of floating-point numbers [M]."
            )
        if shape != tokens.logprobs_M.shape:
            raise DataError(
                f"loss_fn returned a {name} of shape {tuple(shape)} for {len(tokens.logprobs_M)} tokens; return one "
                "number per "
                "token, without a reduction."
            )
    taken = sorted(metrics.keys() & TAKEN)
    if taken:
        raise DataError(f"loss_fn returned a metric {taken[0]!r}, but this name is already in use; rename the metric.")
    if tokens.logprobs_M.requires_grad and not loss_M.requires_grad:
        raise DataError(
            "loss_fn returned losses without gradient; compute them from tokens.logprobs_M, not from a detached copy."
        )
    return loss_M, metrics


def weight_metrics(weights_M: Tensor) -> dict[str, float]:
    """Return metrics that summarize the correction weights of a step."""
    return {
        "correction/effective_sample_size": effective_sample_size(weights_M).item(),
        "correction/weight_max": weights_M.max().item(),
    }


def reference_metrics(logprobs_M: Tensor, reference_M: Tensor) -> dict[str, float]:
    """Return k1, k2 and k3 of KL(policy || base), with d = logprob - reference (joschu.net/blog/kl-approx.html)."""
    difference_M = (logprobs_M - reference_M).detach()
    return {
        "reference_kl_k1": difference_M.mean().item(),
        "reference_kl_k2": difference_M.square().mean().item() / 2,
        "reference_kl_k3": ((-difference_M).exp() + difference_M - 1).mean().item(),
    }
