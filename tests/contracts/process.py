"""Engines or learners of the contract cases behind HTTP servers: `python -m tests.contracts.process engine learner`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial

import torch
from starlette.applications import Starlette

from sparring.engines.server import ServedModel, engine_app
from sparring.runtime.faults import arm_from_environment
from sparring.training.rank import RankLearner
from sparring.training.server import learner_app
from sparring.web.listener import Listener
from tests.contracts import cases
from tests.contracts.sglang_routes import SGLangRoutes
from tests.contracts.vllm_routes import VLLMRoutes


def app_of(kind: str) -> Starlette:
    if "rank" in kind:
        load = partial(cases.torch_learner, lora="all weights" not in kind)
        return learner_app(RankLearner(load, shards_weights="sharded" in kind))
    if "learner" in kind:
        return learner_app(cases.torch_learner(lora=kind == "learner"))
    if "vLLM" in kind or kind == "SGLang":
        policy = cases.make_policy(lora="all weights" not in kind)
        engine = cases.slow_down(cases.TorchEngine(policy, policy.snapshot(), max_running=1, kv_cache_tokens=1024))
        return (SGLangRoutes(engine) if kind == "SGLang" else VLLMRoutes(engine)).app
    weights = cases.torch_learner().export_weights()
    model = ServedModel(device=cases.DEVICE, weights=weights, base_fingerprint=lambda: "base")
    return engine_app(cases.strict_torch_engine() if "strict" in kind else cases.torch_engine(), model=model)


async def main(kinds: Sequence[str]) -> None:
    arm_from_environment()
    torch.set_num_threads(1)
    for kind in kinds:
        listener = Listener(app_of(kind), "127.0.0.1", 0)
        await listener.start()
        print(listener.base_url, flush=True)  # noqa: T201 - the parent reads the address
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1:]))
