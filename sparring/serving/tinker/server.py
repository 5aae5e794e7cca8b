"""Run a server for Tinker's clients until it is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sparring.runtime import interrupts
from sparring.runtime.machine import default_threads
from sparring.serving.access import Access
from sparring.serving.tinker.app import create_app
from sparring.serving.tinker.base import BaseModel
from sparring.serving.tinker.checkpoints import Checkpoints
from sparring.serving.tinker.service import TinkerService


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerOptions:
    """What a server for Tinker's clients trains, and where it writes."""

    checkpoints: Path = Path("tinker-runs")
    model_name: str | None = None
    """The name by which clients call the model; None is the name or folder from which it was loaded."""
    max_sequence_length: int = 4096
    precision: str = "auto"


def serve_tinker(
    model: str, options: TinkerOptions, *, access: Access, on_ready: Callable[[str, str], None] | None = None
) -> None:
    """Train and sample for the clients of the `tinker` package until interrupted. `on_ready(base_url, model_name)` is called
    when the server accepts requests.

    Raises UsageError if the model's architecture cannot be trained here, and ServiceError if it cannot be loaded, the folder
    of checkpoints cannot be created, or the address is in use.
    """
    torch.set_num_threads(default_threads())
    checkpoints = Checkpoints(options.checkpoints)
    base = BaseModel(
        model,
        name=options.model_name,
        max_sequence_length=options.max_sequence_length,
        precision=options.precision,
    )
    interrupts.run(_serve(TinkerService(base, checkpoints), access, on_ready))


async def _serve(service: TinkerService, access: Access, on_ready: Callable[[str, str], None] | None) -> None:
    listener = access.listen(create_app(service, gate=access.open_gate("tinker")))
    try:
        await listener.start()
        if on_ready is not None:
            on_ready(listener.address, service.base.name)
        await asyncio.Event().wait()
    finally:
        await listener.stop()
        await service.close()
