"""The cost of a run at prices that the user sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparring.errors import UsageError

PER_TOKENS = 1_000_000
"""A token price is the price of this number of tokens."""
PRICES: Mapping[str, str] = {
    "prefill": "a million prompt tokens that the model processed",
    "sample": "a million sampled tokens",
    "train": "a million tokens that the learner processed",
    "hour": "an hour of the machine",
}
"""Prices of a run's own work, by name, with the unit that each price is for."""
ENDPOINT_PRICES = ("read", "cached", "sample", "train")
"""Kinds of endpoint prices, as in `MODEL:read` or `MODEL@HOST:read`, each for a million tokens. Only a service that trains has
`train`."""


def has_price(name: str) -> bool:
    """Return whether this is a valid name for a price."""
    endpoint, _, kind = name.rpartition(":")
    return name in PRICES or (endpoint != "" and kind in ENDPOINT_PRICES)


def read_prices(settings: Sequence[str]) -> dict[str, float]:
    """Parse prices such as `sample=0.6`. Raises UsageError if a string is not a price."""
    prices = {}
    for one in settings:
        name, _, amount = one.rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            price = -1.0
        if not has_price(name) or not 0 <= price < float("inf"):
            raise UsageError(
                f"--price {one!r} is not a price. Write {', '.join(f'{key}=AMOUNT' for key in PRICES)}, for "
                f"{', '.join(PRICES.values())}. For an endpoint, write MODEL:read=AMOUNT, MODEL:cached=AMOUNT and "
                "MODEL:sample=AMOUNT, and for a service that trains also MODEL:train=AMOUNT."
            )
        prices[name] = price
    return prices


def cost(name: str, amount: float, price: float) -> float:
    """Return the cost of an amount. The unit of the amount is tokens, or hours if the name is `hour`."""
    return price * amount if name == "hour" else price * amount / PER_TOKENS


def endpoint_cost(
    endpoint: str, *, read: int, sampled: int, cached: int, prices: Mapping[str, float], trained: int = 0
) -> float | None:
    """Return the cost of tokens at `model@host`, or None if the endpoint has no price.

    `cached` is the number of `read` tokens that were cached. If cached tokens have no price of their own, they cost as
    much as the other tokens that are read.
    """
    model = endpoint.rpartition("@")[0]
    own = {kind: prices.get(f"{endpoint}:{kind}", prices.get(f"{model}:{kind}")) for kind in ENDPOINT_PRICES}
    if all(price is None for price in own.values()):
        return None
    for_read = own["read"] or 0.0
    for_cached = for_read if own["cached"] is None else own["cached"]
    total = for_read * (read - cached) + for_cached * cached
    return (total + (own["sample"] or 0.0) * sampled + (own["train"] or 0.0) * trained) / PER_TOKENS


def usage_metrics(
    *, computed: float, sampled: float, trained: float, seconds: float, prices: Mapping[str, float]
) -> dict[str, float]:
    """Return the usage of a step, keyed by metric name. `usage/cost` is included only if there are prices.

    `computed` counts the tokens that the model processed for sampling, including the `sampled` ones. `trained` counts
    the tokens that the learner processed.
    """
    amounts = {"prefill": max(0.0, computed - sampled), "sample": sampled, "train": trained, "hour": seconds / 3600}
    metrics = {f"usage/{name}_tokens": amount for name, amount in amounts.items() if name != "hour"}
    if prices:
        metrics["usage/cost"] = sum(
            cost(name, amounts[name], price) for name, price in prices.items() if name in PRICES
        )
    return metrics
