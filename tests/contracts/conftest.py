"""The engines of the contract cases, one after the other, each opened once for all files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.contracts.cases import ENGINES, EngineCase, EngineCases
from tests.contracts.scenarios import Scenario, run_scenario


@pytest.fixture(scope="session", params=ENGINES)
def engine_cases(request: pytest.FixtureRequest) -> Iterator[EngineCases]:
    torch.set_num_threads(1)
    with ENGINES[request.param]() as opened:
        yield opened


@pytest.fixture
def make(engine_cases: EngineCases) -> Callable[[], EngineCase]:
    return engine_cases.usual


@pytest.fixture
def run(engine_cases: EngineCases) -> Callable[[Scenario], Any]:
    """Run a scenario with an engine that samples with the case's first weights, and close it."""
    return lambda scenario: run_scenario(engine_cases.usual, scenario)


@pytest.fixture
def run_strict(engine_cases: EngineCases) -> Callable[[Scenario], Any]:
    """Run a scenario with an engine that samples in deterministic rounds and pins the weights of sessions."""
    return lambda scenario: run_scenario(engine_cases.strict, scenario)
