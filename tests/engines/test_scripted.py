"""The scripted engine behaves like a policy whose answers are known."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sparring.engines.scripted import ScriptedEngine
from sparring.errors import ConstraintError, InfrastructureError, PolicyTimeout
from sparring.types import Constraint, SampleRequest, Sampling, StopReason, Weights


def request(*, max_tokens: int = 10, deadline: float | None = None) -> SampleRequest:
    return SampleRequest(
        session_id="s",
        prompt_ids=(5, 6),
        sampling=Sampling(max_tokens=max_tokens),
        stop_ids=frozenset({0, 9}),
        seed=1,
        deadline=deadline,
    )


def encode(text: str) -> list[int]:
    return [100 + ord(letter) for letter in text]


def test_a_text_is_encoded_and_ends_with_a_stop_id() -> None:
    completion = asyncio.run(ScriptedEngine(["a"], encode=encode).sample(request()))
    # "a" is 97; the smallest stop id is 0
    assert completion.token_ids == (197, 0)
    assert completion.stop_reason is StopReason.STOP
    assert completion.versions == ((0, 2),)
    assert completion.num_computed_tokens == 4


def test_ids_are_cut_after_the_first_stop_id_and_at_max_tokens() -> None:
    engine = ScriptedEngine([[1, 9, 2], [1, 2, 3]])
    first = asyncio.run(engine.sample(request()))
    second = asyncio.run(engine.sample(request(max_tokens=2)))
    assert (first.token_ids, first.stop_reason) == ((1, 9), StopReason.STOP)
    assert (second.token_ids, second.stop_reason) == ((1, 2), StopReason.LENGTH)


def test_a_script_follows_no_grammar_and_refuses_one() -> None:
    engine = ScriptedEngine(["a"], encode=encode)
    with pytest.raises(ConstraintError, match="cannot constrain"):
        asyncio.run(engine.sample(replace(request(), constraint=Constraint(grammar='start: "a"\n'))))
    assert engine.requests == []


def test_loaded_weights_name_later_answers_but_not_a_running_one() -> None:
    async def play() -> tuple[str, str]:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def sleep(_seconds: float) -> None:
            started.set()
            await go_on.wait()

        engine = ScriptedEngine(lambda _: [1, 9], sleep=sleep)
        running = asyncio.create_task(engine.sample(request()))
        await started.wait()
        await engine.load_weights(Weights(tensors={}, fingerprint="new"), 3)
        go_on.set()
        later = await engine.sample(request())
        assert later.versions == ((3, 2),)
        return (await running).fingerprint, later.fingerprint

    assert asyncio.run(play()) == ("scripted", "new")


def test_failures_and_deadlines_are_raised() -> None:
    engine = ScriptedEngine(
        [InfrastructureError("gone"), [9]], seconds=lambda _: 2.0, sleep=lambda _: asyncio.sleep(0), clock=lambda: 10.0
    )
    with pytest.raises(InfrastructureError, match="gone"):
        asyncio.run(engine.sample(request()))
    with pytest.raises(PolicyTimeout):
        asyncio.run(engine.sample(request(deadline=11.0)))
    with pytest.raises(LookupError, match="2 answers but received request 3"):
        asyncio.run(engine.sample(request()))


def test_tokens_are_reported_one_by_one() -> None:
    seen: list[int] = []
    asyncio.run(ScriptedEngine([[1, 2, 9]]).sample(request(), seen.append))
    assert seen == [1, 2, 9]
