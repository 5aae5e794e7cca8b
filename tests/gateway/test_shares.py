"""An episode that has used its share of a core waits, and no other one does."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import sparring.gateway.episode as episodes
from sparring.gateway import EpisodeEndpoint, Gateway
from sparring.runtime.shares import CoreShare
from tests.gateway.builders import session
from tests.gateway.test_policies import episode

LONG = "find b. " * 40_000
"""More than bodies.LARGE_BODY_BYTES, so that it is read and tokenized in a thread."""


async def ask(client: httpx.AsyncClient, entry: EpisodeEndpoint, text: str) -> str:
    headers = {"authorization": f"Bearer {entry.api_key}"}
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    answer = await client.post(f"{entry.base_url}/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[CoreShare]:
    """The shares of the episodes, in the order in which they were registered."""
    created: list[CoreShare] = []

    def create() -> CoreShare:
        created.append(CoreShare())
        return created[-1]

    monkeypatch.setattr(episodes, "CoreShare", create)
    return created


@pytest.mark.parametrize("text", ["short", LONG])
def test_a_gateway_answers_others_while_one_episode_waits_and_that_one_gets_the_same_answers(
    text: str, shares: list[CoreShare]
) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {"max_context_tokens": 1_000_000}
        greedy, other = session(["an answer"] * 5, **options), session(["another answer"] * 20, **options)
        async with Gateway() as gateway, greedy, other, httpx.AsyncClient(timeout=30) as client:
            entries = [gateway.register(one) for one in (greedy, other)]
            await shares[0].acquire()  # as if the episode were in debt
            waiting = [asyncio.create_task(ask(client, entries[0], f"{text}{number}")) for number in range(5)]
            for number in range(20):
                assert await ask(client, entries[1], f"{text[:3000]}{number}") == "another answer"
            assert not any(task.done() for task in waiting)
            assert not greedy.sampled_turns
            shares[0].release()
            assert await asyncio.gather(*waiting) == ["an answer"] * 5
            asked = {message["content"] for turn in greedy.turns for message in [greedy.messages[0]] if turn}
            assert asked <= {f"{text}{number}" for number in range(5)}

    asyncio.run(scenario())


def test_a_client_that_leaves_while_it_waits_gets_no_turn_and_blocks_nothing(shares: list[CoreShare]) -> None:
    async def scenario() -> None:
        chat_session = session(["first", "second"])
        async with Gateway() as gateway, chat_session, httpx.AsyncClient(timeout=30) as client:
            entry = gateway.register(chat_session)
            await shares[0].acquire()
            async with httpx.AsyncClient(timeout=0.2) as hasty:
                with pytest.raises(httpx.ReadTimeout):
                    await ask(hasty, entry, "a")
            patient = asyncio.create_task(ask(client, entry, "b"))
            shares[0].release()
            assert await patient in ("first", "second")
            assert len(chat_session.turns) == 1

    asyncio.run(scenario())


def test_the_policies_of_an_episode_have_one_share_together(shares: list[CoreShare]) -> None:
    async def scenario() -> None:
        chat_session = episode(main=["what?"], customer=["tea"])
        async with Gateway() as gateway, chat_session, httpx.AsyncClient(timeout=30) as client:
            entry = gateway.register(chat_session)
            assert len(shares) == 1
            await shares[0].acquire()
            waiting = [asyncio.create_task(ask(client, one, "a")) for one in (entry, entry.policies["customer"])]
            await asyncio.wait(waiting, timeout=0.2)
            assert not any(task.done() for task in waiting)
            shares[0].release()
            assert await asyncio.gather(*waiting) == ["what?", "tea"]

    asyncio.run(scenario())
