"""Agents behind a URL: a real server on loopback that gets the episode and plays it over the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sparring.agents.http import HttpAgent, PushLimits
from sparring.agents.result import AgentResult
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import Gateway
from sparring.sessions import EpisodeIdentity, EpisodeLimits, Session
from sparring.types import Sampling, Task

Payload = Any
Behaviour = Callable[[Payload], Awaitable[Response]]
QUICK = PushLimits(timeout_seconds=10.0, tps_limit=1000.0)

TASK = Task(id="t1", messages=({"role": "user", "content": "find b"},), fields={"truth": "f", "metadata": {"level": 2}})
MESSAGES = [{"role": "user", "content": "find b"}]


def make_session(*script: Any, max_turns: int | None = None) -> Session:
    engine = ScriptedEngine(script or ["one", "two", "three"], encode=ByteTokenizer().encode)
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=50)
    return Session(
        EpisodeIdentity("episode"),
        engine=engine,
        chat=TemplateChat(ByteTokenizer()),
        sampling=sampling,
        limits=EpisodeLimits(max_turns=max_turns),
    )


@contextlib.asynccontextmanager
async def served(behaviour: Behaviour, health: int = 200) -> AsyncIterator[str]:
    """The URL of an agent."""

    async def rollout(request: Request) -> Response:
        return await behaviour(await request.json())

    async def get_health(_request: Request) -> Response:
        return JSONResponse({"status": "healthy"}, status_code=health)

    app = Starlette(routes=[Route("/rollout", rollout, methods=["POST"]), Route("/health", get_health)])
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:  # noqa: ASYNC110 (uvicorn offers no event)
            await asyncio.sleep(0.001)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/rollout"
        finally:
            server.should_exit = True
            await serving


def play(behaviour: Behaviour, *, episode: Session | None = None, task: Task = TASK, **options: Any) -> AgentResult:
    options = {"limits": QUICK, "rng": random.Random(0), **options}

    async def run() -> AgentResult:
        async with Gateway() as gateway, served(behaviour) as url, episode or make_session() as session:
            agent = HttpAgent(url, gateway=gateway, **options)
            async with agent:
                return await agent.play(task, session)

    return asyncio.run(run())


async def ask(payload: Payload) -> str:
    """One turn, as an agent of no particular kind asks for it."""
    async with httpx.AsyncClient(timeout=10) as client:
        response = await client.post(
            f"{payload['base_url']}/chat/completions",
            json={"model": payload["model_name"], "messages": MESSAGES, **payload["inference_params"]},
            headers={"authorization": f"Bearer {payload['api_key']}"},
        )
        response.raise_for_status()
        return response.json()["choices"][0]["message"]["content"]


async def report(payload: Payload, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=10) as client:
        return await client.post(
            f"{payload['base_url']}/episode/{path}",
            json=body,
            headers={"authorization": f"Bearer {payload['api_key']}"},
        )


def answering(answer: Any, *, turns: int = 1, status: int = 200) -> Behaviour:
    async def behaviour(payload: Payload) -> Response:
        for _ in range(turns):
            await ask(payload)
        return Response(json.dumps(answer), status_code=status, media_type="application/json")

    return behaviour
