"""Random clients of one episode: they hang up, retry, duplicate, answer late, reorder and branch."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.gateway import EpisodeEndpoints, Gateway
from sparring.gateway.app import create_app
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import SampleRequest, Sampling
from tests.gateway.builders import CHAT, TOOL
from tests.gateway.interruptions import PATHS, Answer, Exchange, asked, running_ledger
from tests.gateway.model import Attempt, render_answer, violations

MOST_ATTEMPTS = 4


class SocketExchange(Answer):
    """One request on a connection of its own."""

    def __init__(self, root: str, dialect: str, body: Any, key: str, *, is_retry: bool) -> None:
        super().__init__(dialect, is_stream=bool(body.get("stream")))
        headers = {"authorization": f"Bearer {key}"} | ({"x-stainless-retry-count": "1"} if is_retry else {})
        self.task = asyncio.ensure_future(self._run(root + PATHS[dialect], body, headers))

    async def _run(self, url: str, body: Any, headers: dict[str, str]) -> None:
        async with (
            httpx.AsyncClient(timeout=30, verify=False) as client,
            client.stream("POST", url, json=body, headers=headers) as response,
        ):
            self.status = response.status_code
            async for part in response.aiter_raw():
                self.content += part

    def hang_up(self) -> None:
        self.task.cancel()

    cancel = hang_up


@dataclass
class _Asked:
    """A request that was sent."""

    number: int
    history: tuple[str, ...]
    answer: Any
    is_unsure: bool = False


@dataclass
class Clients:
    """All clients of one episode. `send` sends a body with a dialect and whether it marks it as a retry."""

    rng: random.Random
    send: Callable[[str, Any, bool], Any]
    unit: float
    """Seconds that a policy takes for an answer, about."""
    asked: list[_Asked] = field(default_factory=list)
    branches: list[asyncio.Task[None]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    names: Any = field(default_factory=itertools.count)

    async def converse(self, dialect: str, messages: list[Any], history: tuple[str, ...], num_turns: int) -> None:
        """Go on with a conversation, of which other conversations may branch off."""
        rng, is_stream = self.rng, self.rng.random() < 0.5
        tools = [TOOL] if history[0] == "tools" else None
        for _ in range(num_turns):
            answer = await self._answer(dialect, messages, history, tools, is_stream)
            if answer is None:
                return
            if rng.random() < 0.15 and len(self.branches) < 6:
                self._branch(dialect, messages, history, num_turns=1)
            messages, history = [*messages, self._spelled(answer)], (*history, render_answer(answer))
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": f"result {next(self.names)}"}
                for call in answer.get("tool_calls") or ()
            ]
            rng.shuffle(results)
            more = results or [{"role": "user", "content": f"go on {next(self.names)}"}]
            messages, history = [*messages, *more], (*history, *(one["content"] for one in more))
            if rng.random() < 0.2 and len(self.branches) < 6:
                self._branch(dialect, messages, history, num_turns=2)

    def _spelled(self, answer: Any) -> Any:
        """An answer as clients send it back."""
        text = answer.get("content") or ""
        spellings = [text, f"\n{text}", f"{text}\r\n", f"\n<think>\nhm\n</think>\n\n{text}"]
        return {**answer, "content": self.rng.choice([text, self.rng.choice(spellings)])}

    def _branch(self, dialect: str, messages: list[Any], history: tuple[str, ...], *, num_turns: int) -> None:
        """Another conversation with the same beginning: the same request, one turn more, or an edited message."""
        match self.rng.randrange(3):
            case 0:
                pass
            case 1:
                name = f"and {next(self.names)}"
                messages, history = [*messages, {"role": "user", "content": name}], (*history, name)
            case _:
                name = f"edited {next(self.names)}"
                messages, history = [{"role": "user", "content": name}, *messages[1:]], (history[0], name, *history[2:])
        self.branches.append(asyncio.ensure_future(self.converse(dialect, messages, history, num_turns)))

    async def _answer(
        self, dialect: str, messages: list[Any], history: tuple[str, ...], tools: Any, is_stream: bool
    ) -> Any:
        """Ask until an answer has come, in the way of an impatient client; None when it gives up."""
        rng = self.rng
        body = {**asked(dialect, messages, stream=is_stream), **({"tools": tools} if tools else {})}
        number, must_say_so = next(self.numbers), False
        if rng.random() < 0.1:  # a second answer, and meant so
            self._send(next(self.numbers), dialect, body, history, is_retry=False)
        for attempt in range(MOST_ATTEMPTS):
            is_retry = attempt > 0 and (must_say_so or rng.random() < 0.6)
            one = self._send(number, dialect, body, history, is_retry=is_retry)
            patience = None if rng.random() < 0.5 else rng.expovariate(1.0) * self.unit
            await asyncio.wait([one.answer.task], timeout=patience)
            if one.answer.is_whole:
                if rng.random() > 0.05:
                    return one.answer.message
                must_say_so = True  # it failed over the answer, and asks for it again
                continue
            if one.answer.task.done():
                return None  # refused
            behaviour = rng.random()
            if behaviour < 0.7:
                one.answer.hang_up()
            elif behaviour < 0.8:
                one.answer.cancel()
            else:
                must_say_so = True  # the first answer comes late
            if rng.random() < 0.2:
                # It gives up, or takes what it has seen for the whole of it, once that is over.
                seen = one.answer.message
                await asyncio.sleep(10 * self.unit)
                await asyncio.wait([one.answer.task])
                return seen if render_answer(seen) and rng.random() < 0.5 else None
            if rng.random() < 0.5:
                await asyncio.sleep(rng.expovariate(2.0) * self.unit)
        return None

    def _send(self, number: int, dialect: str, body: Any, history: tuple[str, ...], *, is_retry: bool) -> _Asked:
        self.asked.append(_Asked(number, history, self.send(dialect, body, is_retry)))
        return self.asked[-1]

    async def play(self) -> None:
        """Some conversations side by side, some of which branch."""
        for _ in range(self.rng.randint(1, 3)):
            dialect = self.rng.choice(list(PATHS))
            tools = "tools" if dialect == "chat" and self.rng.random() < 0.5 else "none"
            opening = self.rng.choice(["find b", f"question {next(self.names)}"])
            messages = [{"role": "user", "content": opening}]
            self.branches.append(
                asyncio.ensure_future(self.converse(dialect, messages, (tools, opening), self.rng.randint(1, 4)))
            )
        for branch in self.branches:  # more come while it waits
            await branch

    def attempts(self) -> list[Attempt]:
        return [
            Attempt(one.number, one.history, render_answer(one.answer.message), one.answer.is_whole, one.is_unsure)
            for one in self.asked
        ]


async def episode(seed: int, *, on_sockets: bool = False) -> list[str]:
    """What is wrong after one episode of random clients."""
    rng = random.Random(seed)
    unit = 0.004 if on_sockets else 1.0

    async def wait(share: float) -> None:
        await asyncio.sleep(rng.choice([0.0, rng.expovariate(1.0) * share * unit]))

    numbers = itertools.count()

    def script(request: SampleRequest) -> str:
        number = next(numbers)
        if "get" not in CHAT.decode(request.prompt_ids) or rng.random() < 0.5:
            return f"a{number}."
        calls = [json.dumps({"name": "get", "arguments": {"key": f"{number}.{place}"}}) for place in (0, 1)]
        return rng.choice(["", f"a{number}."]) + "".join(f"<tool_call>{call}</tool_call>" for call in calls)

    engine = ScriptedEngine(
        script,
        encode=ByteTokenizer().encode,
        max_context_tokens=100_000,
        seconds=lambda _: rng.choice([0.0, rng.expovariate(1.0) * unit]),
        sleep=lambda seconds: asyncio.sleep(seconds or rng.choice([0.0, 0.0, 0.0, 0.1 * unit])),
    )
    ledger = running_ledger("r", lambda: wait(0.5))
    chat_session = Session(
        EpisodeIdentity("r"), engine=engine, chat=CHAT, sampling=Sampling(max_tokens=500), ledger=ledger
    )
    async with _sender(chat_session, on_sockets=on_sockets, full=lambda: wait(0.05)) as (endpoints, send, end):
        clients = Clients(rng, send, unit)
        playing = asyncio.ensure_future(clients.play())
        ending = rng.random()
        if ending < 0.3:
            await asyncio.wait([playing], timeout=rng.expovariate(0.3) * unit)
            for one in clients.asked:
                one.is_unsure = not one.answer.task.done()
            num_asked = len(clients.asked)
            end() if ending < 0.15 else chat_session.close()
        await playing
        await asyncio.wait([one.answer.task for one in clients.asked])
        if ending < 0.3:
            for one in clients.asked[num_asked:]:
                one.is_unsure = True
        if on_sockets:  # what was on its way when a client hung up
            for one in clients.asked:
                one.is_unsure = one.is_unsure or one.answer.task.cancelled()
            while endpoints._in_flight._num:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    chat_session.close()
    turns = ledger.load_turns("r")
    found = violations(clients.attempts(), turns) + ledger.verify()
    if tuple(turn.id for turn in turns if turn.is_received) != tuple(turn.id for turn in chat_session.turns):
        found.append("session and ledger disagree")
    if (
        endpoints._in_flight._num
        or chat_session._budget._num_running
        or chat_session._budget._num_reserved
        or engine.open_sessions
    ):
        found.append("a place is not free")
    ledger.close()
    return found


@asynccontextmanager
async def _sender(chat_session: Session, *, on_sockets: bool, full: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield the endpoints of a gateway, a function that sends a request, and one that reports the end of the episode."""
    if not on_sockets:
        endpoints = EpisodeEndpoints("policy")
        app, key = create_app(endpoints), endpoints.register(chat_session)
        yield (
            endpoints,
            lambda dialect, body, is_retry: Exchange(app, dialect, body, key, is_retry=is_retry, full=full),
            lambda: endpoints.report(key).complete("ready"),
        )
        return
    async with Gateway() as gateway:
        entry = gateway.register(chat_session)
        yield (
            gateway._endpoints,
            lambda dialect, body, is_retry: SocketExchange(
                entry.endpoint, dialect, body, entry.api_key, is_retry=is_retry
            ),
            lambda: entry.report.complete("ready"),
        )
