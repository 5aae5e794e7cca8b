"""The turns of a served conversation go to the vLLM server that has its earlier turns, although each is a session of its
own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.chat import ByteTokenizer
from sparring.engines.servers import recent_prompts
from sparring.engines.servers.engine import ServersEngine
from sparring.engines.servers.recent_prompts import RecentPrompts
from sparring.engines.torch_engine import TorchEngine
from sparring.gateway.app import create_app
from sparring.gateway.endpoints import StatelessEndpoints
from sparring.gateway.versions import Version, Versions
from sparring.models.adapter_files import AdapterShape
from sparring.models.policy import LoraSettings, Policy
from sparring.types import Sampling
from sparring.web.listener import Listener
from tests.contracts.vllm_routes import VLLMRoutes
from tests.gateway.builders import CHAT

INSTRUCTIONS = {"role": "system", "content": "Answer with letters."}


def build_policy() -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=ByteTokenizer.num_tokens,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    lora = LoraSettings(rank=2, alpha=4, targets=("q_proj", "v_proj", "down_proj"))
    return Policy(LlamaForCausalLM(config), ByteTokenizer(), max_positions=1024, lora=lora)


class Served:
    """A policy that is served with two vLLM servers."""

    def __init__(self, app: Any, servers: list[VLLMRoutes], listeners: list[Listener]) -> None:
        self.servers, self.listeners = servers, listeners
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60)

    async def ask(self, messages: list[dict[str, str]]) -> None:
        """Ask for an answer, and append it to the conversation."""
        body = {"model": "m", "messages": [INSTRUCTIONS, *messages], "max_tokens": 8}
        answer = await self._client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"] or "a"})

    def take_cached(self) -> list[list[tuple[int, int]]]:
        """Return the turns of each server since the last call: the tokens of each prompt, and how many were cached."""
        found = [list(one.cached) for one in self.servers]
        for one in self.servers:
            one.cached.clear()
        return found


@asynccontextmanager
async def serve(folder: Path, **settings: Any) -> AsyncIterator[Served]:
    async with AsyncExitStack() as opened:
        servers, listeners = list[VLLMRoutes](), list[Listener]()
        for _ in range(2):
            policy = build_policy()
            engine = TorchEngine(policy, policy.snapshot(), kv_cache_tokens=65536)
            opened.push_async_callback(engine.close)
            servers.append(VLLMRoutes(engine, vocabulary=ByteTokenizer.num_tokens))
            listeners.append(Listener(servers[-1].app, "127.0.0.1", 0))
            await listeners[-1].start()
            opened.push_async_callback(listeners[-1].stop)
        client = await asyncio.to_thread(
            ServersEngine,
            [one.base_url for one in listeners],
            shape=AdapterShape(rank=2, alpha=4),
            folder=folder / "adapters",
            weights=build_policy().snapshot(),
            **settings,
        )
        opened.push_async_callback(client.close)
        endpoints = StatelessEndpoints(versions=Versions([Version("m", client)]), chat=CHAT, sampling=Sampling())
        served = Served(create_app(endpoints), servers, listeners)
        served.take_cached()
        yield served


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("at_once", [False, True])
def test_later_turns_of_a_conversation_find_the_earlier_ones_in_the_cache(tmp_path: Path, at_once: bool) -> None:
    """The first turns are the same, so only the later ones belong to one conversation."""

    async def scenario() -> None:
        async with serve(tmp_path) as served:
            conversations = [[user("go")] for _ in range(6)]
            lengths: list[int] = []
            for place in range(3):
                if at_once:
                    await asyncio.gather(*map(served.ask, conversations))
                else:
                    for one in conversations:
                        await served.ask(one)
                turns = served.take_cached()
                assert at_once or [len(one) for one in turns] == [3, 3]
                assert sum(map(len, turns)) == 6
                for prompt, cached in (turn for one in turns for turn in one):
                    assert place == 0 or cached >= min(lengths), (prompt, cached)
                conversations.reverse()  # so that taking the servers in turn does not keep them there
                lengths = [prompt for one in turns for prompt, _ in one]
                for number, one in enumerate(conversations):
                    one.append(user(f"and {'abcdef'[number]}, step {place}?"))

    asyncio.run(scenario())


def test_a_conversation_moves_if_its_server_has_no_slot_or_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engines.servers.engine._FIRST_PAUSE_SECONDS", 0.01)

    async def scenario() -> None:
        async with serve(tmp_path, max_running=1) as served:
            conversation = [user("go")]
            await served.ask(conversation)
            (home,) = (one for one in served.servers if one.cached)
            other = next(one for one in served.servers if one is not home)
            home.faults["seconds"] = 2.0
            conversation.append(user("and then?"))
            same = list(conversation)
            await asyncio.gather(served.ask(conversation), served.ask(same))
            assert (len(home.cached), len(other.cached)) == (2, 1)

            home.faults.clear()
            await served.listeners[served.servers.index(home)].stop()
            conversation.append(user("and now?"))
            await served.ask(conversation)
            assert (len(home.cached), len(other.cached)) == (2, 2)

    asyncio.run(scenario())


def test_the_longest_prompt_that_is_continued_counts_and_equal_prompts_do_not() -> None:
    recent = RecentPrompts[str]()
    recent.note((1, 2), "a")
    recent.note((1, 2, 3, 4), "b")
    recent.note((1, 9), "c")
    found = [recent.find(ids) for ids in ((1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5), (1, 9, 9), (2, 1, 3), ())]
    assert found == [(), ("a",), ("a",), ("b",), ("c",), (), ()]
    recent.note((1, 2), "c")
    recent.note((1, 2), "a")
    assert recent.find((1, 2, 3)) == ("a", "c")


def test_only_the_latest_prompts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_prompts, "NUM_KEPT", 3)
    recent = RecentPrompts[str]()
    for number in range(3):
        recent.note((number,), "a")
    recent.note((0,), "a")  # now the latest one
    recent.note((7,), "a")
    assert [recent.find((one, 0)) for one in (0, 1, 2, 7)] == [("a",), (), ("a",), ("a",)]
