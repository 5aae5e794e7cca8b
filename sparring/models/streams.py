"""CUDA streams: what two threads compute on one GPU overlaps only in different streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Compute on a new stream in the calling thread, after all that the default stream holds by now. On a CPU do nothing.

    The learner uses the default stream. Weights cross between both only when they are complete: a snapshot's fingerprint
    reads every number of it.
    """
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))
    with torch.cuda.stream(stream):
        yield
