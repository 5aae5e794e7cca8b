"""Recognize how a service reduces its losses, and compensate for it exactly. These are pure functions of measurements.

Tinker's contract is a plain sum over tokens: sum(weight * loss). Some services divide it, silently:

    loss = sum over rows of (sum over the row's tokens of weight * loss) / (row divisor) / (divisor of the pass)

A client that computes its own gradient and sends it as weights of `cross_entropy` then trains on something else. The
divisor "weights" is the worst: it rescales each sequence, and is 1e-9 for a row whose weights have a negative sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from sparring.tinker.service import Row

RowDivisor: TypeAlias = Literal["nothing", "tokens", "weights"]
PassDivisor: TypeAlias = Literal["nothing", "rows", "tokens", "weights"]

LEAST_SUM = 1e-9
"""The smallest sum of weights that a service divides by (SkyRL 0.4.0, skyrl/backends/jax.py)."""
TOLERANCE = 0.08
"""The largest relative difference between a measured and an expected response."""
_WORDS = {
    "tokens": "its number of tokens",
    "weights": "the sum of its weights (at least 1e-9)",
}
_PASS_WORDS = {
    "rows": "the number of rows",
    "tokens": "the number of tokens of all rows",
    "weights": "the sum of all weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """How a service reduces the loss of a pass."""

    row: RowDivisor = "nothing"
    whole: PassDivisor = "nothing"

    def __str__(self) -> str:
        parts = []
        if self.row != "nothing":
            parts.append(f"each row's loss is divided by {_WORDS[self.row]}")
        if self.whole != "nothing":
            parts.append(f"the sum over the rows is divided by {_PASS_WORDS[self.whole]}")
        return ", and ".join(parts) or "a plain sum over all tokens"

    def factors(self, rows: Sequence[Shape]) -> list[float]:
        """Return the factor by which each row's contribution to the gradient differs from that of the plain sum."""
        divisors: Mapping[str, float] = {
            "nothing": 1.0,
            "rows": len(rows),
            "tokens": sum(row.num_tokens for row in rows),
            "weights": max(sum(row.total_weight for row in rows), LEAST_SUM),
        }
        of_row = {
            "nothing": lambda _: 1.0,
            "tokens": lambda row: float(row.num_tokens),
            "weights": lambda row: max(row.total_weight, LEAST_SUM),
        }[self.row]
        return [1.0 / of_row(row) / divisors[self.whole] for row in rows]


PLAIN = Formula()
FORMULAS = (
    PLAIN,
    Formula(whole="rows"),
    Formula(whole="tokens"),
    Formula(whole="weights"),
    Formula(row="tokens"),
    Formula(row="weights"),
    Formula(row="tokens", whole="rows"),
    Formula(row="weights", whole="rows"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a reduction sees of a row of the probe: the probe's weights times `scale`, on a row of `num_tokens`."""

    scale: float
    num_tokens: int
    total_weight: float


def expected_response(formula: Formula, rows: Sequence[Shape]) -> float:
    """Return the gradient of a pass, in units of the gradient of the probe's weighted sum."""
    return sum(row.scale * factor for row, factor in zip(rows, formula.factors(rows), strict=True))


def recognize(responses: Mapping[str, float], shapes: Mapping[str, Sequence[Shape]]) -> Formula | None:
    """Return the formula that explains the responses, or None if no known one does.

    Both are keyed by the name of a pass. A response is the gradient of the pass divided by that of the pass "one".
    """
    for formula in FORMULAS:
        unit = expected_response(formula, shapes["one"])
        if all(
            is_close(response, expected_response(formula, shapes[name]) / unit) for name, response in responses.items()
        ):
            return formula
    return None


def is_close(found: float, expected: float) -> bool:
    return abs(found - expected) <= TOLERANCE * max(abs(expected), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to send the gradient of sum(weight * logprob), so that a service with this formula computes exactly that.

    A divisor by tokens or rows is known before the pass, so the weights are multiplied by it. A divisor by weights is
    avoided: the loss `importance_sampling` takes the gradient as advantages, and its weights are all 1. Its ratio to the
    log-probabilities of the same weights of the model is 1, so that its gradient is the advantage times that of the
    log-probability.
    """

    formula: Formula = PLAIN

    @property
    def loss_fn(self) -> str:
        return "importance_sampling" if "weights" in (self.formula.row, self.formula.whole) else "cross_entropy"

    def carry(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows to send. `rows` are all rows between two optimizer steps. They have the weights that a plain sum
        needs and the present log-probabilities of their targets."""
        # Weights that are all 1 have the number of tokens as their sum.
        shapes = [Shape(1.0, row.num_targets, float(row.num_targets)) for row in rows]
        scaled = [
            tuple(weight / factor for weight in row.weights)
            for row, factor in zip(rows, self.formula.factors(shapes), strict=True)
        ]
        if self.loss_fn == "cross_entropy":
            return [
                replace(row, weights=weights, logprobs=(), advantages=())
                for row, weights in zip(rows, scaled, strict=True)
            ]
        return [replace(row, weights=(), advantages=weights) for row, weights in zip(rows, scaled, strict=True)]
