"""A frozen policy keeps its weights while the one in training changes, in the same engine and the same rounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.agents import AgentResult
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.frozen import FrozenEngine
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import InfrastructureError
from sparring.ledger import Ledger
from sparring.models.policy import Policy
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, NamedPolicy, RolloutLimits
from sparring.sessions import Session
from sparring.types import Completion, Message, Outcome, SampleRequest, Sampling, Task, Trajectory

CONTEXT = 256
TOKENIZER = ByteTokenizer()


def make_policy(seed: int) -> Policy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=TOKENIZER.num_tokens,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Policy(LlamaForCausalLM(config), TOKENIZER, max_positions=CONTEXT)


POLICY = make_policy(0)
FIRST, SECOND = POLICY.snapshot(), make_policy(1).snapshot()


def request(prompt: Sequence[int]) -> SampleRequest:
    return SampleRequest(
        session_id="s", prompt_ids=tuple(prompt), sampling=Sampling(max_tokens=6), stop_ids=frozenset(), seed=3
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_it_samples_from_its_own_weights_whatever_is_trained(deterministic: bool) -> None:
    async def run() -> tuple[Completion, Completion, Completion, list[float], list[float]]:
        engine = TorchEngine(POLICY, FIRST, deterministic=deterministic)
        try:
            frozen = FrozenEngine(engine, FIRST)
            before = await frozen.sample(request(range(1, 9)))
            await engine.load_weights(SECOND, 7)
            after, trained = await asyncio.gather(
                frozen.sample(request(range(1, 9))), engine.sample(request(range(1, 9)))
            )
            ids = (*range(1, 9), *after.token_ids)
            return before, after, trained, await frozen.logprobs(ids), await engine.logprobs(ids)
        finally:
            await engine.close()

    before, after, trained, own, others = asyncio.run(run())
    assert after.token_ids == before.token_ids
    assert (after.fingerprint, after.versions) == (FIRST.fingerprint, ((0, 6),))
    assert (trained.fingerprint, trained.versions) == (SECOND.fingerprint, ((7, 6),))
    assert own[-6:] == pytest.approx(after.sampled_logprobs, abs=1e-4)
    assert others[-6:] != pytest.approx(after.sampled_logprobs, abs=1e-4)


def test_it_keeps_what_it_has_computed_of_a_conversation() -> None:
    async def run() -> Completion:
        engine = TorchEngine(POLICY, FIRST)
        try:
            frozen = FrozenEngine(engine, FIRST)
            frozen.open_session("s")
            first = await frozen.sample(request(range(1, 30)))
            await engine.load_weights(SECOND, 1)
            return await frozen.sample(request((*range(1, 30), *first.token_ids, 5)))
        finally:
            await engine.close()

    assert asyncio.run(run()).num_computed_tokens < 12


def test_it_does_not_state_that_it_pins_weights() -> None:
    """Its newest weights apply to a session that has begun, although the engine pins those of the policy in training."""

    async def run() -> tuple[Completion, Completion, bool]:
        engine = TorchEngine(POLICY, FIRST, session_weights="pinned")
        try:
            frozen = FrozenEngine(engine, FIRST)
            frozen.open_session("s")
            before = await frozen.sample(request(range(1, 9)))
            await frozen.load_weights(SECOND, 1)
            return before, await frozen.sample(request(range(1, 9))), frozen.capabilities.pins_weights
        finally:
            await engine.close()

    before, after, pins_weights = asyncio.run(run())
    assert before.fingerprint != after.fingerprint
    assert not pins_weights


def test_without_weights_it_reports_that() -> None:
    async def run() -> None:
        engine = TorchEngine(POLICY, FIRST)
        try:
            frozen = FrozenEngine(engine)
            with pytest.raises(InfrastructureError, match="no weights yet"):
                await frozen.sample(request(range(1, 9)))
            await frozen.load_weights(SECOND, 0)
            assert (await frozen.sample(request(range(1, 9)))).fingerprint == SECOND.fingerprint
        finally:
            await engine.close()

    asyncio.run(run())


def conversations(seed: int, *, learns: bool) -> list[Trajectory]:
    """A deterministic group of four whose members ask the other policy at different times and take their time about it."""
    rng = random.Random(seed)

    async def play(task: Task, session: Session) -> AgentResult:
        member = int(session.id.partition(".")[0].rpartition("/")[2])
        mine: list[Message] = [{"role": "user", "content": f"find {member}"}]
        for turn in range(3):
            mine.append(await session.chat(mine))
            await asyncio.sleep(rng.random() / 50)
            if turn >= member:  # some are still busy with the other policy when others are over
                reply = await session.of("customer").chat([{"role": "user", "content": mine[-1]["content"]}])
                await asyncio.sleep(rng.random() / 50)
                mine.append({"role": "user", "content": reply["content"]})
            else:
                mine.append({"role": "user", "content": "go on"})
        return AgentResult(outcome=Outcome.FINISHED)

    async def run() -> list[Trajectory]:
        chat = TemplateChat(TOKENIZER)
        engine = TorchEngine(POLICY, SECOND, deterministic=True, version=4)
        other: Any = engine if learns else FrozenEngine(engine, FIRST)
        sampling = None if learns else Sampling(temperature=0.8, max_tokens=7)
        try:
            with Ledger() as ledger:
                collector = Collector(
                    agent=EpisodeAgent(play),
                    policy=MainPolicy(engine, chat),
                    grading=Grading(reward=lambda _: 1.0),
                    ledger=ledger,
                    seed=0,
                    limits=RolloutLimits(timeout_seconds=120, max_concurrency=4, max_context_tokens=CONTEXT),
                    policies={"customer": NamedPolicy(engine=other, chat=chat, learns=learns, sampling=sampling)},
                )
                task = Task(id="t", messages=({"role": "user", "content": "?"},))
                plan = GroupPlan(task=task, position=0, group_size=4, sampling=Sampling(max_tokens=8))
                group = await collector.play_group(plan)
                assert ledger.verify() == []
                return list(group.trajectories)
        finally:
            await engine.close()

    return asyncio.run(run())


@pytest.mark.parametrize("learns", [False, True])
def test_rounds_of_episodes_with_several_policies_follow_from_the_seed_alone(learns: bool) -> None:
    plays = [conversations(seed, learns=learns) for seed in range(2)]
    tokens = [
        [
            (turn.id, turn.policy, turn.token_ids, turn.sampled_logprobs, turn.num_computed_tokens)
            for trajectory in played
            for turn in (*trajectory.turns, *trajectory.other_turns)
        ]
        for played in plays
    ]
    assert [len(played) for played in plays] == [4, 4]
    assert tokens[0] == tokens[1]
    versions = {turn.oldest_version for trajectory in plays[0] for turn in trajectory.turns}
    assert versions == {4}  # a frozen policy's version is of no account for staleness
    assert {len(trajectory.turns) + len(trajectory.other_turns) for trajectory in plays[0]} == {3, 4, 5, 6}
