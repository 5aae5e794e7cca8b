"""Which requests the gateway refused, as metrics have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def refused_reasons(metrics: Mapping[str, float]) -> dict[str, float]:
    """Of metrics of a step, its validation among them, or of an evaluation: how many requests the gateway refused, by reason, the
    most frequent first."""
    found = Counter[str]()
    for name, number in metrics.items():
        if "/refused/" in name:
            found[name.partition("/refused/")[2]] += int(number)
    return dict(found.most_common())
