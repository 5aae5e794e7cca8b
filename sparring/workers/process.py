"""A worker process: `python -m sparring.workers.process DESCRIPTOR` handles its pool's requests until the pipe ends.
It then closes the environments that are still open.

Each message is an object (see `wire`). The pool first sends {"code", "beat_seconds"}. Its other messages are {"ask",
"do", "place", "arguments", "meter"}, {"cancel": ask} and {"reply": question, "value" or "error"}. The worker sends
{"answer": ask, "value" or "error", "is_done", "available_tools"}, {"question", "of": ask, "policy", "messages",
"tools"}, and {"beat"} each time that it returns to its event loop. Its first message is {"loaded", "refusal"}: whether it could
load the code, and the error if it could not.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, final

from sparring.environments import Environment
from sparring.errors import UsageError
from sparring.metering.usage import use_meter
from sparring.runtime.faults import arm_from_environment, fault_point
from sparring.runtime.logs import ignore_write_errors
from sparring.runtime.plugins import call, load_object
from sparring.sandbox.limits import programs_end
from sparring.types import Json, Message, ToolSchema, Turn
from sparring.workers.code import Code
from sparring.workers.wire import check_sendable, decode_result, encode_outcome, frame, frame_outcome, receive


def main() -> None:
    """Handle requests from the descriptor in `sys.argv` until the pipe ends."""
    descriptor = int(sys.argv[1])
    # Standard output is for a command's results, and a closed terminal must not make a tool fail.
    sys.stdout = sys.stderr = ignore_write_errors(sys.stderr)
    with suppress(OSError):
        os.dup2(2, 1)
    arm_from_environment()
    asyncio.run(_main(socket.socket(fileno=descriptor)))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    # Threads that user code left behind must not keep the process alive.
    os._exit(0)


async def _main(pipe: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=pipe)
    with suppress(EOFError, ConnectionError):
        hello = await receive(reader)
        loaded = _Loaded(hello["code"])
        writer.write(frame({"loaded": loaded.refusal is None, "refusal": str(loaded.refusal)}))
        worker = _Worker(loaded, writer)
        beating = asyncio.ensure_future(_beat(writer, hello["beat_seconds"]))
        try:
            while True:
                worker.heard(await receive(reader))
        finally:
            beating.cancel()
            await worker.aclose()


async def _beat(writer: asyncio.StreamWriter, seconds: float) -> None:
    while True:
        writer.write(frame({"beat": True}))
        await asyncio.sleep(seconds)


@final
class _Loaded:
    """The user's code, or the error that loading it raised. In that case, every request raises this error. The error is
    not expected, because the trainer has already loaded the same code."""

    def __init__(self, code: Code) -> None:
        self.refusal: Exception | None = None
        """The error."""
        load = partial(load_object, folder=Path(code["folder"]))
        try:
            named = {"reward": code["reward"], "scorer": code["scorer"]}
            self._graders = {key: load(name) for key, name in named.items() if name is not None}
            if code["target"] is not None:
                found = load(code["target"]).with_options(**code["options"])
                self._make_environment: Callable[[], Environment] = partial(found, **code["options"])
        except Exception as error:  # noqa: BLE001 (raised for each request)
            self.refusal = error

    def grader(self, key: str) -> Callable[..., Any]:
        self._refuse()
        return self._graders[key]

    def environment(self) -> Environment:
        self._refuse()
        return self._make_environment()

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal


@final
class _Worker:
    """The environments of many episodes in one event loop, as in the trainer's process."""

    def __init__(self, loaded: _Loaded, writer: asyncio.StreamWriter) -> None:
        self._loaded = loaded
        self._writer = writer
        self._environments: dict[int, Environment] = {}
        self._running: dict[int, tuple[int, asyncio.Task[None]]] = {}
        """The place and the task of each running request, by its number."""
        self._questions: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = itertools.count()

    def heard(self, message: Mapping[str, Any]) -> None:
        match message:
            case {
                "ask": int(number),
                "do": str(do),
                "place": int(place),
                "arguments": tuple(arguments),
                "meter": meter,
                "end": end,
            }:
                use_meter(meter)
                with programs_end(end):
                    running = asyncio.ensure_future(self._answer(number, place, do, arguments))
                self._running[number] = (place, running)
                running.add_done_callback(lambda _: self._running.pop(number))
            case {"cancel": int(number)}:
                if number in self._running:
                    self._running[number][1].cancel()
            case {"reply": int(number)}:
                if number in self._questions and not self._questions[number].done():
                    self._questions[number].set_result(message)

    async def aclose(self) -> None:
        """Cancel all calls, and close all environments. The pool ends a process that takes too long."""
        running = [task for _, task in self._running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        open_environments, self._environments = self._environments, {}
        await asyncio.gather(*(call(one.close) for one in open_environments.values()), return_exceptions=True)

    async def _answer(self, number: int, place: int, do: str, arguments: tuple[Any, ...]) -> None:
        came_of_it: object
        try:
            came_of_it = await self._do(number, place, do, arguments)
        except Exception as error:  # noqa: BLE001 (sent to the caller)
            came_of_it = error
        self._writer.write(frame_outcome({"answer": number, **self._properties(place)}, came_of_it))

    def _properties(self, place: int) -> dict[str, Mapping[str, Json]]:
        """Return the environment's properties as outcomes, since the caller reads them between calls."""
        environment = self._environments.get(place)
        if environment is None:
            return {"is_done": encode_outcome(False), "available_tools": encode_outcome(None)}
        return {
            "is_done": _read(lambda: bool(environment.is_done)),
            "available_tools": _read(lambda: _names(environment)),
        }

    async def _do(self, number: int, place: int, do: str, arguments: tuple[Any, ...]) -> Json:
        fault_point("worker.answering")
        if do in ("reward", "scorer"):
            return await call(self._loaded.grader(do), *arguments)
        if do == "close":
            return await self._close(number, place)
        environment = self._environments.get(place)
        if environment is None:
            environment = self._environments[place] = await call(self._loaded.environment)
        match do:
            case "reset":
                opening = await call(environment.reset, *arguments)
                return None if opening is None else list(opening)
            case "demonstrate":
                return list(await call(environment.demonstrate, *arguments))
            case "reply":
                messages, session_id = arguments
                return await call(environment.reply, messages, _Session(session_id, None, partial(self._ask, number)))
            case "final_state":
                return check_sendable(await call(environment.final_state), f"{type(environment).__name__}.final_state")
        return await call(getattr(environment, do), *arguments)

    async def _close(self, number: int, place: int) -> None:
        """Close an environment once its cancelled calls have ended."""
        others = [task for other, (at, task) in self._running.items() if at == place and other != number]
        await asyncio.gather(*others, return_exceptions=True)
        environment = self._environments.pop(place, None)
        if environment is not None:
            await call(environment.close)

    async def _ask(self, of: int, **question: Json) -> Any:
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(frame({"question": number, "of": of, **question}))
            return decode_result(await answer)
        finally:
            del self._questions[number]


def _names(environment: Environment) -> list[str] | None:
    names = environment.available_tools
    return None if names is None else list(names)


def _read(read: Callable[[], Json]) -> Mapping[str, Json]:
    try:
        return encode_outcome(read())
    except Exception as error:  # noqa: BLE001 (sent to the caller)
        return encode_outcome(error)


@final
class _Session:
    """The part of the episode's session that `Environment.reply` needs: its turns run in the trainer's process."""

    def __init__(self, session_id: str, policy: str | None, ask: Callable[..., Any]) -> None:
        self._id, self._policy, self._ask = session_id, policy, ask

    @property
    def id(self) -> str:
        return self._id

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Request a turn from the episode's session. Raises the errors that the session raises."""
        return await self._ask(policy=self._policy, messages=list(messages), tools=list(tools))

    @property
    def seconds_left(self) -> float | None:
        return None

    def of(self, name: str) -> _Session:
        return _Session(self._id, name, self._ask)

    @property
    def turns(self) -> tuple[Turn, ...]:
        raise UsageError(
            "session.turns is not available in a worker process, where only session.chat is; set environment.workers = "
            "0."
        )

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        return self.turns


if __name__ == "__main__":
    main()
