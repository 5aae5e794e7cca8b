"""A teacher on a vLLM server: exact log-probabilities without an adapter, and every reason to refuse it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sparring.config import validate
from sparring.engines.servers.teacher import ServerTeacher
from sparring.errors import InfrastructureError, ServiceError
from sparring.web.listener import Listener
from tests.contracts.cases import LETTERS, TorchEngine, make_policy
from tests.contracts.vllm_routes import VLLMRoutes

IDS = (3, 1, 4, 50, 9)


class Tokenizer:
    """`cases.LETTERS` with the interface of transformers."""

    def __len__(self) -> int:
        return len(LETTERS.token_bytes)

    def decode(self, token_ids: Any) -> str:
        return LETTERS.decode([one for one in token_ids if one not in LETTERS.all_special_ids])

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return LETTERS.encode(text)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.engines.servers.teacher._FIRST_PAUSE_SECONDS", 0.001)


@asynccontextmanager
async def serve(faults: Mapping[str, Any]) -> AsyncIterator[tuple[VLLMRoutes, TorchEngine, str]]:
    policy = make_policy(lora=True)
    engine = TorchEngine(policy, policy.snapshot(), kv_cache_tokens=1024)
    server = VLLMRoutes(engine, faults)
    listener = Listener(server.app, "127.0.0.1", 0)
    await listener.start()
    try:
        yield server, engine, listener.base_url
    finally:
        await listener.stop()
        await engine.close()


def run(scenario: Callable[..., Awaitable[Any]], model: str = "base", faults: Mapping[str, Any] | None = None) -> Any:
    async def whole() -> Any:
        async with serve(faults or {}) as (server, engine, url):
            teacher = await asyncio.to_thread(ServerTeacher, url, model, tokenizer=Tokenizer())
            try:
                return await scenario(teacher, server, engine)
            finally:
                await teacher.close()

    return asyncio.run(whole())


async def nothing(*_: object) -> None:
    """Do nothing once the teacher is there."""


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_teacher_returns_the_log_probabilities_of_the_served_model(temperature: float) -> None:
    async def scenario(
        teacher: ServerTeacher, server: VLLMRoutes, engine: TorchEngine
    ) -> tuple[list[float], list[float]]:
        found = await teacher.logprobs(IDS, temperature)
        assert server.adapters == {}
        return found, await engine.logprobs(IDS, temperature)

    # The server needs no adapters.
    found, expected = run(scenario, faults={"/v1/load_lora_adapter": 404})
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"/inference/v1/generate": 404}, "status 404 to token ids.*vllm serve MODEL --enable-scale-out"),
        (
            {"other_vocabulary": 1},
            "base has another vocabulary than the recipe's model: token 0 of one text has the id 9",
        ),
        ({"/tokenize": 404}, "vocabulary cannot be compared"),
        ({"/v1/models": 401}, "Check address and key"),
        ({"raw_logprobs": True}, "before the temperature is applied.*--logprobs-mode processed_logprobs"),
    ],
)
def test_a_server_that_cannot_teach_is_refused(faults: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        run(nothing, faults=faults)


def test_a_model_that_is_not_served_is_refused_with_the_names_of_those_that_are() -> None:
    with pytest.raises(ServiceError, match="does not serve 'larger'; it serves 'base'"):
        run(nothing, model="larger")


def test_a_few_errors_are_retried_and_many_are_an_infrastructure_failure() -> None:
    async def scenario(teacher: ServerTeacher, server: VLLMRoutes, engine: TorchEngine) -> None:
        server.faults["errors"] = 2
        assert await teacher.logprobs(IDS) == pytest.approx(await engine.logprobs(IDS), abs=1e-4)
        server.faults["errors"] = 10**6
        with pytest.raises(InfrastructureError, match="answered status 500"):
            await teacher.logprobs(IDS)

    run(scenario)


def test_an_endpoint_can_be_the_teacher_of_a_recipe() -> None:
    recipe = {
        "environment": {"target": "environment:Shop"},
        "reward": {"reward": "environment:reward"},
        "policies": {"expert": {"role": "endpoint", "base_url": "http://127.0.0.1:1/v1", "model": "larger"}},
        "algorithm": {"teacher": "expert"},
    }
    assert validate(recipe).algorithm.teacher == "expert"
