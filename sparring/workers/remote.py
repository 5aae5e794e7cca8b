"""Environments, rewards and scorers whose code runs in a worker process, with the usual interfaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from sparring.environments import Environment
from sparring.environments.tools import ToolLike
from sparring.protocols import SessionLike
from sparring.types import Json, Message, Task, ToolSchema, Trajectory
from sparring.workers.pool import Place, WorkerPool
from sparring.workers.wire import decode_result
from sparring.workers.worker import Answering


def run_in_workers(environment_class: type[Environment], pool: WorkerPool) -> type[_RemoteEnvironment]:
    """Return an environment class whose objects live in the pool's workers. The class takes no options, because the
    pool already has them."""
    named = {"__module__": environment_class.__module__, "__qualname__": environment_class.__qualname__}
    return type(
        environment_class.__name__, (_RemoteEnvironment,), {**named, "_pool": pool, "_played": environment_class}
    )


def grade_in_workers(pool: WorkerPool, key: str, grader: Callable[..., Any]) -> Callable[[Trajectory], Awaitable[Any]]:
    """Return a reward (`key` "reward") or a scorer ("scorer") that runs in the pool's workers."""
    name = getattr(grader, "__name__", type(grader).__name__)

    async def grade(trajectory: Trajectory) -> Any:
        place = Place()
        try:
            return decode_result(await pool.ask(place, key, trajectory, what=f"{key} {name} of {trajectory.id}"))
        finally:
            pool.leave(place)

    grade.__name__ = name
    return grade


class _RemoteEnvironment(Environment):
    """An environment that has the tools of the original class. Its methods run in a worker."""

    _pool: ClassVar[WorkerPool]
    _played: ClassVar[type[Environment]]

    def __init__(self) -> None:
        self._place = Place()
        self._is_done: Mapping[str, Any] = {"value": False}
        self._available_tools: Mapping[str, Any] = {"value": None}
        self._task_id = ""

    @classmethod
    def tools(cls) -> Mapping[str, ToolLike]:
        return cls._played.tools()

    @classmethod
    def offered_tools(cls) -> tuple[ToolSchema, ...]:
        return cls._played.offered_tools()

    async def reset(self, task: Task) -> Sequence[Message] | None:
        self._task_id = task.id
        return await self._ask("reset", task)

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Json:
        return await self._ask("call_tool", name, arguments, what=name)

    async def reply(self, messages: Sequence[Message], session: SessionLike) -> str | None:
        return await self._ask("reply", list(messages), session.id, answering=partial(_answer, session))

    async def final_state(self) -> Json:
        return await self._ask("final_state")

    async def close(self) -> None:
        if self._place.worker is None:
            self._pool.leave(self._place)
            return  # no worker has created it
        try:
            await self._ask("close")
        finally:
            self._pool.leave(self._place)

    @property
    def is_done(self) -> bool:
        return decode_result(self._is_done)

    @property
    def available_tools(self) -> Collection[str] | None:
        return decode_result(self._available_tools)

    def demonstrate(self, task: Task) -> Sequence[Message]:
        self._task_id = task.id
        return decode_result(self._pool.ask_now(self._place, "demonstrate", task, what=self._named("demonstrate")))

    async def _ask(self, do: str, *arguments: Json, what: str | None = None, answering: Answering | None = None) -> Any:
        answer = await self._pool.ask(self._place, do, *arguments, what=self._named(what or do), answering=answering)
        # A missing one is reported when it is read.
        self._is_done, self._available_tools = answer.get("is_done", {}), answer.get("available_tools", {})
        return decode_result(answer)

    def _named(self, method: str) -> str:
        return f"{type(self).__name__}.{method} of task {self._task_id}"


async def _answer(session: SessionLike, question: Mapping[str, Json]) -> Message:
    """Run a turn that the environment requests from the named policy, or from the main one."""
    asked = session if question["policy"] is None else session.of(question["policy"])
    return await asked.chat(question["messages"], question["tools"])
