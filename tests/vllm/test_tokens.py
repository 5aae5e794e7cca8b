"""The tokens of real vLLM servers have the probabilities that Sparring's own model computes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from sparring.engines.servers.engine import ServersEngine
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ConstraintError
from sparring.models.policy import Policy
from sparring.types import Completion, Constraint, SampleRequest, Sampling, StopReason, Weights
from tests.contracts.cases import LETTERS, STOP, VOCAB

TOLERANCE = 1e-3


def request(number: int, *, temperature: float = 1.0, max_tokens: int = 100) -> SampleRequest:
    prompt = tuple((7 * number + 3 * place) % VOCAB for place in range(5 + number))
    return SampleRequest(
        session_id=f"s{number}",
        prompt_ids=prompt,
        sampling=Sampling(max_tokens=max_tokens, temperature=temperature),
        stop_ids=frozenset(),
        seed=number,
    )


def sample(build: Callable[[], ServersEngine], scenario: Callable[[ServersEngine], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        engine = build()
        try:
            return await asyncio.wait_for(scenario(engine), 600)
        finally:
            await engine.close()

    return asyncio.run(whole())


def differences(policy: Policy, weights: Weights, turns: list[tuple[SampleRequest, Completion]]) -> list[float]:
    """Return how far each sampled log-probability is from that of our own forward pass in fp32."""

    async def score() -> list[float]:
        engine, found = TorchEngine(policy, weights), list[float]()
        for asked, turn in turns:
            ids = [*asked.prompt_ids, *turn.token_ids]
            expected = (await engine.logprobs(ids, asked.sampling.temperature))[len(asked.prompt_ids) - 1 :]
            found += [abs(a - b) for a, b in zip(expected, turn.sampled_logprobs, strict=True)]
        await engine.close()
        return found

    return asyncio.run(score())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_log_probabilities_are_those_of_our_model(
    build_engine: Callable[[], ServersEngine], policy: Policy, adapters: tuple[Weights, Weights], temperature: float
) -> None:
    asked = [request(number, temperature=temperature) for number in range(8)]

    async def scenario(engine: ServersEngine) -> list[Completion]:
        return await asyncio.gather(*map(engine.sample, asked))

    turns = sample(build_engine, scenario)
    found = differences(policy, adapters[0], list(zip(asked, turns, strict=True)))
    assert len(found) == 8 * 100
    assert max(found) < TOLERANCE
    assert min(min(turn.sampled_logprobs) for turn in turns) < -3  # not only tokens that are nearly certain


@pytest.mark.parametrize("is_streamed", [False, True])
def test_answers_follow_their_grammars_and_end_with_a_stop_id(
    build_engine: Callable[[], ServersEngine], is_streamed: bool
) -> None:
    """Turns with and without a grammar run at once. The tokenizer's end-of-sequence id is not a stop id."""
    letters = Constraint(grammar="start: /[a-c]{3,9}/ | other\nother: /[x-z]{5}/")
    asked = [
        replace(request(number, max_tokens=20), stop_ids=frozenset({STOP, STOP - 2}), constraint=one)
        for number, one in enumerate([letters, None] * 8)
    ]

    async def scenario(engine: ServersEngine) -> list[tuple[Completion, list[int]]]:
        streamed = [list[int]() for _ in asked]
        turns = await asyncio.gather(
            *(
                engine.sample(one, found.append if is_streamed else None)
                for one, found in zip(asked, streamed, strict=True)
            )
        )
        return list(zip(turns, streamed, strict=True))

    for one, (turn, streamed) in zip(asked, sample(build_engine, scenario), strict=True):
        assert streamed == (list(turn.token_ids) if is_streamed else [])
        if one.constraint is not None:
            *answer, last = turn.token_ids
            assert last in one.stop_ids
            assert turn.stop_reason is StopReason.STOP
            assert re.fullmatch("[a-c]{3,9}|[x-z]{5}", LETTERS.decode(answer))
            assert all(logprob <= 0.0 for logprob in turn.sampled_logprobs)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "constraint",
    [Constraint(grammar="start: nothing"), Constraint(grammar="start: @a", schemas=(("a", '{"not": {}}'),))],
)
def test_a_grammar_that_is_not_supported_is_refused(
    build_engine: Callable[[], ServersEngine], constraint: Constraint, is_streamed: bool
) -> None:
    asked = replace(request(0), stop_ids=frozenset({STOP}), constraint=constraint)

    async def scenario(engine: ServersEngine) -> dict[str, float]:
        tokens: list[int] = []
        with pytest.raises(ConstraintError, match="refused the grammar"):
            await engine.sample(asked, tokens.append if is_streamed else None)
        assert tokens == []
        return engine.metrics()

    assert sample(build_engine, scenario) == {"engine/retried_turns": 0.0, "engine/servers_up": 1.0}


def test_turns_that_run_keep_their_adapter_and_later_turns_get_the_next_one(
    build_engine: Callable[[], ServersEngine], policy: Policy, adapters: tuple[Weights, Weights]
) -> None:
    asked = [request(number) for number in range(8)]

    async def scenario(engine: ServersEngine) -> tuple[list[Completion], list[Completion], int]:
        num_tokens = 0

        def count(_: int) -> None:
            nonlocal num_tokens
            num_tokens += 1

        running = [asyncio.create_task(engine.sample(one, count)) for one in asked]
        while num_tokens < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await engine.load_weights(adapters[1], 1)
        num_at_switch = num_tokens
        later = await asyncio.gather(*map(engine.sample, asked))
        return await asyncio.gather(*running), later, num_at_switch

    earlier, later, num_at_switch = sample(build_engine, scenario)
    assert num_at_switch < 8 * 100  # the switch happened while turns ran
    assert {turn.versions for turn in earlier} == {((0, 100),)}
    assert {turn.versions for turn in later} == {((1, 100),)}
    assert max(differences(policy, adapters[0], list(zip(asked, earlier, strict=True)))) < TOLERANCE
    assert max(differences(policy, adapters[1], list(zip(asked, later, strict=True)))) < TOLERANCE
    # The two adapters are so different that one cannot be taken for the other.
    assert max(differences(policy, adapters[1], list(zip(asked, earlier, strict=True)))) > 100 * TOLERANCE


def test_given_ids_are_scored_while_turns_run(
    build_engine: Callable[[], ServersEngine], policy: Policy, adapters: tuple[Weights, Weights]
) -> None:
    ids = [(11 * place) % VOCAB for place in range(40)]

    async def scenario(engine: ServersEngine) -> list[float]:
        running = [asyncio.create_task(engine.sample(request(number))) for number in range(8)]
        await asyncio.sleep(0.2)
        scored = await engine.logprobs(ids, 0.7)
        await asyncio.gather(*running)
        return scored

    async def expect() -> list[float]:
        engine = TorchEngine(policy, adapters[0])
        found = await engine.logprobs(ids, 0.7)
        await engine.close()
        return found

    scored, expected = sample(build_engine, scenario), asyncio.run(expect())
    assert scored == pytest.approx(expected, abs=TOLERANCE)
    assert min(expected) < -6  # ids that are rarer than the 20 likeliest of a server's answer


def test_a_server_samples_the_same_turn_alone_and_in_a_batch(build_engine: Callable[[], ServersEngine]) -> None:
    async def scenario(engine: ServersEngine) -> tuple[Completion, list[Completion]]:
        alone = await engine.sample(request(3, max_tokens=30))
        return alone, await asyncio.gather(*(engine.sample(request(number, max_tokens=30)) for number in range(8)))

    alone, together = sample(build_engine, scenario)
    assert together[3].token_ids == alone.token_ids
