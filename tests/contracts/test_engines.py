"""What every engine that reports token ids does, whatever it is made of and wherever it runs."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from sparring.config.sections import ENGINE_CAPABILITIES
from sparring.errors import ConstraintError, InfrastructureError, PolicyTimeout
from sparring.types import Completion, Constraint, EngineCapabilities, StopReason
from tests.contracts.cases import CONTEXT, LETTERS, SLOW, STOP, VOCAB, EngineCase
from tests.contracts.scenarios import PROMPT, Scenario, asked, require, started


def test_a_completion_adds_up(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[Completion, int, str]:
        return await case.engine.sample(asked()), case.engine.policy_version, case.first.fingerprint

    completion, version, fingerprint = run(scenario)
    assert 1 <= len(completion.token_ids) <= 6
    assert len(completion.sampled_logprobs) == len(completion.token_ids)
    assert all(type(one) is int and 0 <= one < VOCAB for one in completion.token_ids)
    assert all(type(one) is float and math.isfinite(one) and one <= 0 for one in completion.sampled_logprobs)
    assert completion.versions == ((version, len(completion.token_ids)),)
    assert completion.fingerprint == fingerprint
    assert completion.stop_reason is StopReason.LENGTH
    assert completion.num_computed_tokens >= 0  # 0 if another turn had the same history and the engine kept its logits


def test_a_turn_ends_with_the_first_stop_id(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[Completion, Completion]:
        whole = await case.engine.sample(asked())
        return whole, await case.engine.sample(asked(stop_ids=frozenset({whole.token_ids[2]})))

    whole, stopped = run(scenario)
    end = whole.token_ids.index(whole.token_ids[2]) + 1
    assert stopped.token_ids == whole.token_ids[:end]
    assert stopped.stop_reason is StopReason.STOP


def test_the_same_seed_samples_the_same_turn(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> list[Completion]:
        return [await case.engine.sample(asked(session_id=f"s{seed}", seed=seed)) for seed in (1, 1, 2)]

    one, again, other = run(scenario)
    assert (one.token_ids, one.sampled_logprobs) == (again.token_ids, pytest.approx(again.sampled_logprobs, abs=1e-5))
    assert one.token_ids != other.token_ids


def test_tokens_arrive_one_by_one_and_in_order(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[list[int], Completion]:
        tokens: list[int] = []
        completion = await case.engine.sample(asked(), tokens.append)
        await asyncio.sleep(0.1)
        return tokens, completion

    tokens, completion = run(scenario)
    assert tuple(tokens) == completion.token_ids


def test_a_turn_never_leaves_the_context(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[int, Completion]:
        limit = case.engine.max_context_tokens
        return limit, await case.engine.sample(asked(tuple(range(8, 8 + 40)) * 3, max_tokens=500))

    limit, completion = run(scenario)
    assert limit == CONTEXT
    assert len(completion.token_ids) == CONTEXT - 120


def test_loaded_weights_are_those_of_later_turns(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[int, str, str, Completion]:
        version = case.engine.policy_version + 1
        await case.engine.load_weights(case.second, version)
        assert case.engine.policy_version == version
        return version, case.engine.fingerprint, case.second.fingerprint, await case.engine.sample(asked())

    version, fingerprint, expected, completion = run(scenario)
    assert fingerprint == completion.fingerprint == expected
    assert completion.versions[0][0] == version


def test_a_turn_that_runs_keeps_its_weights(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[int, str, Completion]:
        require(case.engine, "holds_several_weights")
        version = case.engine.policy_version
        turn = await started(case.engine, asked((SLOW, 1, 2), max_tokens=15))
        await case.engine.load_weights(case.second, version + 1)
        return version, case.first.fingerprint, await turn

    version, fingerprint, completion = run(scenario)
    assert completion.fingerprint == fingerprint
    assert {number for number, _ in completion.versions} == {version}


def test_a_turn_continues_with_the_newest_weights_if_an_engine_holds_one_version(
    run: Callable[[Scenario], Any],
) -> None:
    async def scenario(case: EngineCase) -> tuple[Completion, int, str, list[float]]:
        if case.engine.capabilities.holds_several_weights:
            pytest.skip("it holds several versions")
        prompt, version = (SLOW, 1, 2), case.engine.policy_version
        turn = await started(case.engine, asked(prompt, max_tokens=15))
        await case.engine.load_weights(case.second, version + 1)
        completion = await turn
        scored = await case.engine.logprobs([*prompt, *completion.token_ids])
        return completion, version, case.second.fingerprint, scored[len(prompt) - 1 :]

    completion, version, fingerprint, scored = run(scenario)
    (first, num_before), (second, num_after) = completion.versions
    assert (first, second, num_before + num_after) == (version, version + 1, 15)
    assert completion.fingerprint == fingerprint
    # `scored` are the log-probabilities under the second weights, which sampled only the later tokens.
    assert completion.sampled_logprobs[num_before:] == pytest.approx(scored[num_before:], abs=1e-4)
    assert completion.sampled_logprobs[:num_before] != pytest.approx(scored[:num_before], abs=1e-2)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_of_given_ids_are_those_it_sampled_with(
    run: Callable[[Scenario], Any], temperature: float
) -> None:
    async def scenario(case: EngineCase) -> tuple[Completion, list[float] | None]:
        if temperature != 1.0 and not case.is_tempered:
            pytest.skip("its log-probabilities are those at temperature 1")
        completion = await case.engine.sample(asked(temperature=temperature))
        if not case.engine.capabilities.scores_given_ids:
            return completion, None
        ids = [*PROMPT, *completion.token_ids]
        scored = await case.engine.logprobs(ids, temperature)
        assert await case.engine.logprobs(ids, temperature, len(PROMPT)) == pytest.approx(
            scored[len(PROMPT) - 1 :], abs=1e-5
        )
        return completion, scored

    completion, scored = run(scenario)
    if scored is not None:
        assert len(scored) == len(PROMPT) + len(completion.token_ids) - 1
        assert all(type(one) is float for one in scored)
        assert scored[len(PROMPT) - 1 :] == pytest.approx(completion.sampled_logprobs, abs=1e-4)


def test_texts_that_are_scored_together_get_the_values_that_each_has_alone(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[list[list[float]], list[list[float]]]:
        if not case.engine.capabilities.scores_given_ids:
            pytest.skip("it computes no log-probabilities of given ids")
        # Two with a common beginning, the beginning of another one at another temperature, and short ones.
        calls: list[tuple[list[int], float, int]] = [
            ([*PROMPT, 3, 4, 5], 1.0, 1),
            ([*PROMPT, 3, 6], 1.0, len(PROMPT)),
            ([*PROMPT, 3], 0.7 if case.is_tempered else 1.0, 2),
            ([*PROMPT[:2]], 1.0, 1),
            ([*PROMPT[:1]], 1.0, 1),
        ]
        alone = [await case.engine.logprobs(*call) for call in calls]
        together = await asyncio.gather(*(case.engine.logprobs(*call) for call in calls))
        return alone, together

    alone, together = run(scenario)
    assert [len(one) for one in together] == [len(PROMPT) + 2, 2, len(PROMPT) - 1, 1, 0]
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_past_the_deadline_a_turn_is_a_timeout_of_the_policy(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> float:
        begun = time.monotonic()
        with pytest.raises(PolicyTimeout):
            await case.engine.sample(asked((SLOW, 1), max_tokens=100, deadline=begun + 0.8))
        return time.monotonic() - begun

    assert run(scenario) < 10


def test_cancelling_a_turn_frees_its_slot(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> tuple[bool, float]:
        turn = await started(case.engine, asked((SLOW, 1), max_tokens=100))  # 20 seconds
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        begun = time.monotonic()
        await case.engine.sample(asked(session_id="next", max_tokens=1))
        return case.is_slotted, time.monotonic() - begun

    is_slotted, seconds = run(scenario)
    assert not is_slotted or seconds < 10


def test_a_grammar_is_followed_or_refused_before_anything_is_sampled(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> None:
        tokens: list[int] = []
        request = asked(constraint=Constraint(grammar='start: "ab"'), stop_ids=frozenset({STOP}))
        if case.engine.capabilities.constrained_sampling:
            completion = await case.engine.sample(request, tokens.append)
            assert completion.token_ids == (*LETTERS.encode("ab"), STOP)
        else:
            with pytest.raises(ConstraintError):
                await case.engine.sample(request, tokens.append)
            assert tokens == []

    run(scenario)


def test_a_frozen_policy_keeps_its_weights(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> list[Completion]:
        require(case.engine, "holds_several_weights")
        frozen, later = case.engine.freeze(case.first), case.engine.freeze()
        await later.load_weights(case.second, 0)
        await case.engine.load_weights(case.second, case.engine.policy_version + 1)
        found = [await one.sample(asked(session_id=f"s{i}")) for i, one in enumerate((frozen, later, case.engine))]
        assert (frozen.fingerprint, frozen.policy_version) == (case.first.fingerprint, 0)
        assert [one.fingerprint for one in found] == [
            case.first.fingerprint, case.second.fingerprint, case.second.fingerprint,
        ]  # fmt: skip
        await frozen.close()
        await case.engine.sample(asked(session_id="still open"))
        return found

    frozen, later, trained = run(scenario)
    assert frozen.versions[0][0] == later.versions[0][0] == 0
    assert trained.versions[0][0] > 0
    assert later.token_ids == trained.token_ids


def test_sessions_may_open_and_close_in_any_order(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> Completion:
        case.engine.close_session("never opened")
        for name in ("a", "b"):
            case.engine.open_session(name)
        case.engine.close_session("b")
        completion = await case.engine.sample(asked(session_id="a"))
        case.engine.close_session("a")
        return completion

    assert run(scenario).token_ids


def test_metrics_are_numbers_by_name(run: Callable[[Scenario], Any]) -> None:
    async def scenario(case: EngineCase) -> dict[str, float]:
        await case.engine.sample(asked())
        return case.engine.metrics()

    metrics = run(scenario)
    assert all(type(name) is str and type(value) is float for name, value in metrics.items())
    json.dumps(metrics)


def test_a_turn_that_runs_when_the_engine_closes_is_an_infrastructure_failure(make: Callable[[], EngineCase]) -> None:
    async def scenario() -> None:
        case = make()
        turn = await started(case.engine, asked((SLOW, 1), max_tokens=100))
        await case.engine.close()
        with pytest.raises(InfrastructureError):
            await asyncio.wait_for(turn, 30)
        await case.engine.close()

    asyncio.run(scenario())


def test_capabilities_are_those_that_recipes_are_checked_against(make: Callable[[], EngineCase]) -> None:
    async def scenario() -> EngineCapabilities:
        case = make()
        await case.engine.close()
        return case.engine.capabilities

    stated = asyncio.run(scenario())
    assert stated.reports_token_ids
    assert stated.reports_removed_mass <= stated.constrained_sampling
    assert set(ENGINE_CAPABILITIES) >= {"torch", "openai", "scripted"}
