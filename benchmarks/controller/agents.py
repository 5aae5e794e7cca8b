"""Agents in a process of their own, which lease episodes from the gateway and run them over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.gateway import Client

EPISODES_PER_WORKER = 32
"""The number of episodes that one worker runs at once."""


async def play(invocation: Mapping[str, Any]) -> float:
    """Run an episode through the gateway, and return its reward."""
    client = await connect(invocation)
    messages = list(invocation["messages"])
    while not messages or messages[-1]["role"] != "assistant":
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        try:
            content = await client.post(body)
        except asyncio.IncompleteReadError:  # the gateway closes connections that are idle for some seconds
            client.close()
            client = await connect(invocation)
            content = await client.post(body)
        message = content["choices"][0]["message"]
        results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": f"A page of 20 words. {call['function']['arguments']}",
            }
            for call in message.get("tool_calls") or ()
        ]
        messages += [message, *results]
    client.close()
    return random.Random(invocation["api_key"]).random()


async def connect(invocation: Mapping[str, Any]) -> Client:
    client = Client(invocation["base_url"], invocation["api_key"])
    await client.open()
    return client


def work(port: int, sessions: int, key: str) -> None:
    """Run workers for all sessions, until the process is ended."""
    from sparring.agents.worker import Worker

    async def run() -> None:
        number = max(1, sessions // EPISODES_PER_WORKER)
        workers = [Worker(f"http://127.0.0.1:{port}", play, key=key) for _ in range(number)]
        await asyncio.gather(*(one.run(-(-sessions // number)) for one in workers))

    while not is_open(port):  # the gateway starts with the first episode
        time.sleep(0.1)
    asyncio.run(run())


def is_open(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0
