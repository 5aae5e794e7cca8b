"""Read from metrics how many requests the gateway refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def refused_reasons(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the number of requests that the gateway refused for each reason, the most frequent reason first.

    `metrics` are the metrics of a step, including its validation, or of an evaluation.
    """
    counts = Counter[str]()
    for name, number in metrics.items():
        if "/refused/" in name:
            counts[name.partition("/refused/")[2]] += int(number)
    return dict(counts.most_common())
