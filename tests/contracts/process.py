"""An engine or a learner of the contract cases behind its HTTP server: `python -m tests.contracts.process engine`."""

from __future__ import annotations

import asyncio
import sys

import torch

from sparring.engines.server import ServedModel, engine_app
from sparring.gateway.server import Listener
from sparring.training.server import learner_app
from tests.contracts import cases


async def main(kind: str) -> None:
    torch.set_num_threads(1)
    learner = cases.torch_learner()
    model = ServedModel(device=cases.DEVICE, weights=learner.export_weights(), base_fingerprint=lambda: "base")
    app = engine_app(cases.torch_engine(), model=model) if kind == "engine" else learner_app(learner)
    listener = Listener(app, "127.0.0.1", 0)
    await listener.start()
    print(listener.base_url, flush=True)  # noqa: T201 - the parent reads the address
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1]))
