"""Requests to endpoints and their tokens: LLM judges, reference models, simulated users, policies and services that train.

Each request is one line in the run's `usage.jsonl` and is appended at once. Therefore all processes of a run can share
the file, and a crash loses nothing. A resumed evaluation adds to the earlier counts.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from sparring.metering.prices import endpoint_cost
from sparring.runtime.json_values import parse_json
from sparring.types import Json, Usage

USAGE = "usage.jsonl"
"""The file in a run folder with one `{"during", "endpoint", "answered", "read", "sampled", "cached"}` per request. A request for
training also has `trained`."""

Meter: TypeAlias = tuple[str, str]
"""The run's folder and its current activity: `training`, or the name of an evaluation."""
_meter: Meter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointUsage:
    """Counts of the requests to one endpoint."""

    endpoint: str
    """`model@host`."""
    requests: int
    """The number of attempts, including failed attempts."""
    failed: int
    unreported: int
    """The number of answers without token counts."""
    read: int | None
    """The number of prompt tokens in the answers that report it, or None if no answer reports it."""
    sampled: int | None
    cached: int | None
    """The number of prompt tokens that the endpoint had in a cache, or None if no answer reports it."""
    trained: int | None = None
    """The number of tokens of forward and backward passes, or None if no request was for training."""

    def cost(self, prices: Mapping[str, float]) -> float | None:
        """Return the cost, or None if this endpoint has no price or reports no tokens."""
        if self.read is None or self.sampled is None:
            return None
        return endpoint_cost(
            self.endpoint,
            read=self.read,
            sampled=self.sampled,
            cached=self.cached or 0,
            trained=self.trained or 0,
            prices=prices,
        )

    def as_json(self, prices: Mapping[str, float]) -> dict[str, Json]:
        return {**asdict(self), "cost": self.cost(prices)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EndpointUsage:
        return cls(**{name: value for name, value in content.items() if name != "cost"})

    def summary(self, prices: Mapping[str, float]) -> str:
        """Return the usage as a readable line of text."""
        failed = f" ({self.failed} failed)" if self.failed else ""
        if self.read is None or self.sampled is None:
            tokens = "tokens unknown (the endpoint reports none)" if self.requests > self.failed else "no answer"
        else:
            cached = f" ({self.cached:,} cached)" if self.cached is not None else ""
            missing = f" (not counted: {self.unreported} answers without token counts)" if self.unreported else ""
            trained = f", {self.trained:,} trained" if self.trained is not None else ""
            tokens = f"{self.read:,} tokens read{cached}, {self.sampled:,} sampled{trained}{missing}"
        cost = self.cost(prices)
        return f"{self.endpoint}: {self.requests} requests{failed}, {tokens}" + (
            "" if cost is None else f", cost {cost:.4g}"
        )


@contextmanager
def meter_usage(folder: Path, *, during: str) -> Iterator[None]:
    """Count requests to endpoints in the folder's `usage.jsonl` for the duration of the block."""
    before = current_meter()
    use_meter((str(folder.absolute()), during))
    try:
        yield
    finally:
        use_meter(before)


def current_meter() -> Meter | None:
    """Return the current meter. A worker process passes the meter to `use_meter`."""
    return _meter


def use_meter(meter: Meter | None) -> None:
    global _meter
    _meter = meter


def endpoint_name(model: str, base_url: str) -> str:
    """Return `model@host` or `model@host:port`, without the rest of the address."""
    parts = urlsplit(base_url)
    return f"{model}@{parts.hostname}" + (f":{parts.port}" if parts.port is not None else "")


def count_request(endpoint: str, *, answered: bool, usage: Usage | None, num_trained: int | None = None) -> None:
    """Count one request. Outside of a run, this function does nothing. `num_trained` is the number of tokens of a pass."""
    if _meter is None:
        return
    folder, during = _meter
    line = {
        "during": during,
        "endpoint": endpoint,
        "answered": answered,
        "read": usage and usage.num_prompt_tokens,
        "sampled": usage and usage.num_sampled_tokens,
        "cached": usage and usage.num_cached_tokens,
        **({} if num_trained is None else {"trained": num_trained}),
    }
    # A full disk stops a run when it saves a checkpoint. It must not fail requests.
    with suppress(OSError):
        descriptor = os.open(Path(folder) / USAGE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)


def read_usage(folder: Path, *, during: str | None = None) -> list[EndpointUsage]:
    """Return the usage of each endpoint in the whole run or in one activity (`during`).

    Lines that a crash left incomplete are skipped.
    """
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    path = folder / USAGE
    for text in path.read_bytes().split(b"\n") if path.exists() else ():
        with suppress(ValueError, TypeError, KeyError):
            line = parse_json(text)
            if during is None or line["during"] == during:
                lines[str(line["endpoint"])].append(line)
    return [_summed(endpoint, lines[endpoint]) for endpoint in sorted(lines)]


def _summed(endpoint: str, lines: list[Mapping[str, Any]]) -> EndpointUsage:
    return EndpointUsage(
        endpoint=endpoint,
        requests=len(lines),
        failed=sum(not line["answered"] for line in lines),
        unreported=sum(line["answered"] and line["read"] is None for line in lines),
        read=_sum(line["read"] for line in lines),
        sampled=_sum(line["sampled"] for line in lines),
        cached=_sum(line["cached"] for line in lines),
        trained=_sum(line.get("trained") for line in lines),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
