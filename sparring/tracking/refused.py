"""Which requests the gateway refused, as metrics have it."""

from __future__ import annotations

from collections.abc import Mapping


def refused_reasons(metrics: Mapping[str, float]) -> dict[str, float]:
    """Of metrics of a step or an evaluation: how many requests the gateway refused, by reason, the most frequent first."""
    found = {name.partition("/refused/")[2]: number for name, number in metrics.items() if "/refused/" in name}
    return dict(sorted(found.items(), key=lambda one: -one[1]))
