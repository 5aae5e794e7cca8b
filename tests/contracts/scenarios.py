"""Requests to the engines of the contract cases, and how a test runs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from sparring.protocols import Engine
from sparring.types import Completion, SampleRequest, Sampling
from tests.contracts.cases import EngineCase

Scenario: TypeAlias = Callable[[EngineCase], Awaitable[Any]]
PROMPT: tuple[int, ...] = (3, 1, 4, 1, 5)


def run_scenario(make: Callable[[], EngineCase], scenario: Scenario) -> Any:
    async def whole() -> Any:
        case = make()
        try:
            await case.engine.load_weights(case.first, case.engine.policy_version + 1)
            return await asyncio.wait_for(scenario(case), 120)
        finally:
            await case.engine.close()

    return asyncio.run(whole())


def require(engine: Engine, *capabilities: str) -> None:
    """Skip the test if the engine states that it does not have one of these capabilities."""
    for name in capabilities:
        if not getattr(engine.capabilities, name):
            pytest.skip(f"{type(engine).__name__} states that {name} is false")


def asked(prompt: tuple[int, ...] = PROMPT, **changes: Any) -> SampleRequest:
    sampling = Sampling(max_tokens=changes.pop("max_tokens", 6), temperature=changes.pop("temperature", 1.0))
    values: dict[str, Any] = {"session_id": "s", "stop_ids": frozenset(), "seed": 11, **changes}
    return SampleRequest(prompt_ids=prompt, sampling=sampling, **values)


async def started(engine: Engine, request: SampleRequest) -> asyncio.Task[Completion]:
    """Request a slow turn, and return once it runs."""
    tokens: list[int] = []
    turn = asyncio.create_task(engine.sample(request, tokens.append))
    begun = time.monotonic()
    while not tokens and time.monotonic() - begun < 1.5:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert not turn.done()
    return turn
