"""What a run costs, at prices that a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparring.errors import UsageError

PER_TOKENS = 1_000_000
"""What prices of tokens are for."""
PRICES: Mapping[str, str] = {
    "prefill": "a million tokens read to sample others",
    "sample": "a million sampled tokens",
    "train": "a million tokens that the learner computed",
    "hour": "an hour of the machine",
}
"""What may have a price."""


def read_prices(given: Sequence[str]) -> dict[str, float]:
    """From `sample=0.6` and the like. Raises UsageError for anything else."""
    prices = {}
    for one in given:
        name, _, amount = one.partition("=")
        try:
            price = float(amount)
        except ValueError:
            price = -1.0
        if name not in PRICES or not 0 <= price < float("inf"):
            raise UsageError(
                f"--price {one!r} is no price; write {', '.join(f'{key}=AMOUNT' for key in PRICES)}, for "
                f"{', '.join(PRICES.values())}."
            )
        prices[name] = price
    return prices


def cost(name: str, amount: float, price: float) -> float:
    """Of an amount in tokens, or in hours."""
    return price * amount if name == "hour" else price * amount / PER_TOKENS


def usage_metrics(
    *, computed: float, sampled: float, trained: float, seconds: float, prices: Mapping[str, float]
) -> dict[str, float]:
    """What a step took, by metric name; `usage/cost` only where something has a price.

    `computed` are the tokens that went through the model to sample, `sampled` among them; `trained` those that the learner
    computed.
    """
    amounts = {"prefill": max(0.0, computed - sampled), "sample": sampled, "train": trained, "hour": seconds / 3600}
    metrics = {f"usage/{name}_tokens": amount for name, amount in amounts.items() if name != "hour"}
    if prices:
        metrics["usage/cost"] = sum(cost(name, amounts[name], price) for name, price in prices.items())
    return metrics
