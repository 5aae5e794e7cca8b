"""An environment that owns a process in a session of its own, and writes down when it is opened and closed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import tiny

from sparring.environments import tool, tool_call
from sparring.types import Message, Task, Trajectory

NOTES, PLAN = "OWNER_NOTES", "OWNER_PLAN"


def plan(what: str) -> str:
    """What the test has planned for a place: `reset=t,close=hang` and the like."""
    return dict(one.split("=") for one in os.environ.get(PLAN, "").split(",") if one).get(what, "")


if plan("import"):
    Path(os.environ[NOTES]).write_text("importing\n")
    time.sleep(600)


class Owner(tiny.Echo):
    def note(self, what: str) -> None:
        with Path(os.environ[NOTES]).open("a") as file:
            file.write(f"{what} {self.name} {os.getpid()}\n")

    async def reset(self, task: Task) -> None:
        self.name = uuid.uuid4().hex
        # Nothing ends it but what ends all that descends from the command.
        subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: ASYNC220
        self.note("opened")
        if task.id.startswith(plan("reset") or "none"):
            await asyncio.sleep(600)

    @tool
    async def wait(self) -> str:
        """Wait."""
        await asyncio.sleep(600 if plan("tool") else 0)
        return "waited"

    async def close(self) -> None:
        if not hasattr(self, "name"):
            return
        self.note("closing")
        if plan("close") == "hang":
            time.sleep(600)  # noqa: ASYNC251 (the event loop is held up)
        await asyncio.sleep(600 if plan("close") == "wait" else 1.0)
        self.note("closed")


def held_out_tasks() -> list[Task]:
    return [
        Task(id=f"h{number}", fields={"kind": "even"}, messages=({"role": "user", "content": f"{number}."},))
        for number in range(2)
    ]


def reward(trajectory: Trajectory) -> float:
    return 1.0


def act(messages: Sequence[Message]) -> Message | str:
    return "ok" if messages[-1]["role"] == "tool" else tool_call("wait")
