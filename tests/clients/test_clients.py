"""Real agent clients, each in an environment of its own, play one task through the gateway; no token is lost or changed.

`run.py` makes the environments; a client without one is skipped. `measured.toml` holds what each program does.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.chat.messages import content_text
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import Gateway
from sparring.ledger import Ledger, RolloutState
from sparring.protocols import TokenCallback
from sparring.sessions import EpisodeIdentity, Session
from sparring.training.sequences import build_batch
from sparring.types import (
    Completion,
    Message,
    Outcome,
    SampleRequest,
    Sampling,
    Task,
    TrainingBatch,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

HERE = Path(__file__).parent
VENVS = Path(os.environ.get("CLIENT_VENVS", HERE.parents[1] / ".clients")).absolute()
MEASURED: dict[str, dict[str, Any]] = tomllib.loads((HERE / "measured.toml").read_text("utf-8"))

CHAT = TemplateChat(ByteTokenizer())
TASK = "What do I pay for a café with a tip of 1? Look up the price, then add."
ANSWER = "You pay 4.85."
DEADLINE_SECONDS = 120


def policy(request: SampleRequest) -> str:
    """Plays the task in three turns; all that it knows is what the tools returned, and whether it is to write code."""
    heard = CHAT.decode(request.prompt_ids)
    has_tools = "Call a tool with" in heard
    menu = "mcp__menu__" if "mcp__menu__" in heard else ""  # before the names of tools that come over MCP
    if "4.85" in heard:
        if "final_answer" not in heard:
            return ANSWER
        return called(
            f'{{"name":"final_answer","arguments":{{"answer":"{ANSWER}"}}}}', f"final_answer('{ANSWER}')", has_tools
        )
    if "3.85" in heard:
        return called(f'{{"arguments": {{"b":1,  "a" : 3.850}},"name":"{menu}add"}}', "print(add(3.85,  1))", has_tools)
    call = f' {{"name" : "{menu}price",   "arguments":{{ "item" :"café"}} }}'
    first = called(call, "print(price(item = 'café'))", has_tools)
    return f"<think>First the price.</think>I look up the price.\n{first}"


def called(call: str, code: str, has_tools: bool) -> str:
    """A tool call as JSON with a spacing that no serializer gives, or as Python for agents that write code."""
    return f"<tool_call>{call}</tool_call>" if has_tools else f"<code>\n{code}\n</code>"


class Witness:
    """An engine that keeps what it was asked and answered."""

    def __init__(self) -> None:
        self._engine = ScriptedEngine(policy, encode=ByteTokenizer().encode, max_context_tokens=65536)
        self.answered: list[tuple[SampleRequest, Completion]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        completion = await self._engine.sample(request, on_token)
        self.answered.append((request, completion))
        return completion


@dataclass
class Exchange:
    """One request to the gateway, and the status of its answer."""

    path: str
    body: Mapping[str, Any]
    status: int | None = None


class Wiretap:
    """Middleware that keeps every exchange."""

    def __init__(self, app: ASGIApp, exchanges: list[Exchange]) -> None:
        self._app = app
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange, body = Exchange(scope["path"], {}), bytearray()
        self._exchanges.append(exchange)

        async def receiving() -> Event:
            event = await receive()
            if event["type"] == "http.request":
                body.extend(event.get("body", b""))
                if not event.get("more_body"):
                    exchange.body = json.loads(body or b"{}")
            return event

        async def sending(event: Event) -> None:
            if event["type"] == "http.response.start":
                exchange.status = event["status"]
            await send(event)

        await self._app(scope, receiving, sending)


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a program left behind."""

    printed: str
    complaints: str
    answered: list[tuple[SampleRequest, Completion]]
    exchanges: list[Exchange]
    turns: tuple[Turn, ...]
    recorded: tuple[Turn, ...]
    messages: tuple[Message, ...]
    """The conversation of the last request, as the client sent it, with its answer."""


async def play(program: Path, ledger: Ledger) -> Played:
    """Run a program in its client's environment as the one episode of a gateway and a ledger."""
    engine, exchanges = Witness(), []
    await ledger.plan("episode", task_id="bill", attempt=0)
    await ledger.advance("episode", RolloutState.LEASED)
    await ledger.advance("episode", RolloutState.RUNNING)
    gateway = Gateway()
    gateway._listener._app = Wiretap(gateway._listener._app, exchanges)
    session = Session(EpisodeIdentity("episode"), engine=engine, chat=CHAT, sampling=Sampling(), ledger=ledger)
    async with gateway, session:
        endpoint = gateway.register(session)
        connection = {
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": endpoint.api_key,
            "ANTHROPIC_BASE_URL": endpoint.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": endpoint.api_key,
        }
        # Of our own environment nothing, so that no key and no proxy of the developer's leaks in.
        running = await asyncio.create_subprocess_exec(
            *command_of(program),
            TASK,
            env={"PATH": os.defpath, "PYTHONUTF8": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "true", **connection},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            printed, complaints = await asyncio.wait_for(running.communicate(), DEADLINE_SECONDS)
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()
    return Played(
        printed=printed.decode(),
        complaints=complaints.decode(),
        answered=engine.answered,
        exchanges=exchanges,
        turns=session.turns,
        recorded=ledger.load_turns("episode"),
        messages=session.messages,
    )


def command_of(program: Path) -> list[str | Path]:
    """How a program is run in its client's environment. Node looks for packages above the file: so it gets a copy."""
    environment = VENVS / program.parent.name
    if program.suffix == ".py":
        return [environment / "bin" / "python", program]
    for file in program.parent.glob("*.mjs"):
        shutil.copy(file, environment)
    return ["node", environment / program.name]


def is_installed(client: str) -> bool:
    return (VENVS / client / "installed.txt").exists()


def version_of(client: str) -> str:
    """The version of the first package that the client requires."""
    if (package := HERE / client / "package.json").exists():
        name = next(iter(json.loads(package.read_text("utf-8"))["dependencies"]))
        return json.loads((VENVS / client / "node_modules" / name / "package.json").read_text("utf-8"))["version"]
    name = (HERE / client / "requirements.txt").read_text("utf-8").split(">=")[0].split("[")[0]
    (package,) = importlib.metadata.distributions(
        name=name, path=[str(path) for path in (VENVS / client).glob("lib/*/site-packages")]
    )
    return package.version


def batch_of(turns: tuple[Turn, ...]) -> TrainingBatch:
    """What would be trained of an episode."""
    task = Task(id="bill", messages=({"role": "user", "content": TASK},))
    trajectory = Trajectory(
        id="episode", task=task, attempt=0, turns=turns, messages=(), outcome=Outcome.FINISHED, reward=None, score=None
    )
    group = TrajectoryGroup(task=task, trajectories=(trajectory,))
    return build_batch([group], {"episode": [1.0] * len(turns)})


def kept(played: Played) -> list[str]:
    """Which parts of the first answer came back in the last request as they were sent."""
    if any(exchange.body.get("previous_response_id") for exchange in played.exchanges):
        return ["previous_response_id"]
    sent = played.turns[0].message
    echoed = next(message for message in played.messages[:-1] if message["role"] == "assistant")
    parts: dict[str, Callable[[Message], Any]] = {
        "text": lambda message: content_text(message.get("content")),
        "arguments": lambda message: [call["function"]["arguments"] for call in message.get("tool_calls", ())],
        "ids": lambda message: [call["id"] for call in message.get("tool_calls", ())],
    }
    names = [name for name, part in parts.items() if part(sent) and part(echoed) == part(sent)]
    # Sessions do not compare reasoning, and some dialects do not even read it; so it is looked for in the body.
    return [*names, "reasoning"] if sent["reasoning_content"] in json.dumps(played.exchanges[-1].body) else names


def case(program: str) -> Any:
    client = program.split("/")[0]
    is_absent = not is_installed(client)
    return pytest.param(
        program, id=program, marks=pytest.mark.skipif(is_absent, reason=f"`make clients` installs {client}")
    )


@pytest.mark.clients
@pytest.mark.parametrize("program", [case(program) for program in MEASURED])
def test_a_client_plays_and_every_sampled_token_is_kept(
    program: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        played = asyncio.run(play(HERE / program, ledger))
    story = f"{played.complaints}\n{[(each.status, each.body) for each in played.exchanges]}"
    assert [each.status for each in played.exchanges] == [200] * len(played.exchanges), story
    assert played.printed.strip().splitlines()[-1:] == [ANSWER], story

    # What was sampled is what the session has, what the file has, and what would be trained, once each.
    sampled = [(request.prompt_ids, completion.token_ids) for request, completion in played.answered]
    assert [(turn.prompt_ids, turn.token_ids) for turn in played.turns] == sampled
    assert [(turn.prompt_ids, turn.token_ids) for turn in played.recorded] == sampled
    batch = batch_of(played.recorded)
    trained = Counter(
        token
        for segment in batch.segments
        for token, is_trained in zip(segment.token_ids, segment.mask, strict=True)
        if is_trained
    )
    assert trained == Counter(token for _, token_ids in sampled for token in token_ids)

    branches = [turn.branch_reason for turn in played.recorded if turn.branch_reason is not None]
    if not branches:
        assert [turn.parent for turn in played.recorded] == [None, 0, 1]
    measured = {
        "endpoint": played.exchanges[0].path,
        "streams": played.exchanges[0].body.get("stream") is True,
        "turns": len(played.recorded),
        "sequences": len(batch.sequences),
        "branches": branches,
        "keeps": kept(played),
    }
    record_property(
        "measured", json.dumps({"program": program, "version": version_of(program.split("/")[0]), **measured})
    )
    assert measured == MEASURED[program]
