"""CUDA streams: the work of two threads on one GPU overlaps only if it runs in different streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Compute on a new stream in the calling thread, after the work that the default stream contains now. On a CPU, do
    nothing.

    The learner computes on the default stream. Weights pass from one stream to the other only when they are complete,
    because the fingerprint of a snapshot reads every number in it.
    """
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))
    with torch.cuda.stream(stream):
        yield
