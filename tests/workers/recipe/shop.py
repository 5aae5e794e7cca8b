"""An environment, a reward and a scorer that do to their process what a task asks for."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sparring.environments import Environment, answer, tool, tool_call
from sparring.environments.calls import Observation, ToolFailure
from sparring.errors import InfrastructureError
from sparring.protocols import SessionLike
from sparring.types import Json, Message, Reward, Score, Task, Trajectory


def die(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":  # in C, without ever giving up the interpreter
            re.match("(a+)+$", "a" * 64 + "b")
        case "raise":
            raise ValueError("no room", 3)
        case "write":  # a whole frame that is JSON and no message
            for descriptor in map(int, os.listdir("/dev/fd")):
                with suppress(OSError):
                    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                        os.write(descriptor, b'\0\0\0\0\0\0\0\x0d{"@":["a",1]}')
        case _ if how.startswith("sleep after "):
            Path(how.removeprefix("sleep after ")).touch()
            time.sleep(600)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Panic(BaseException):
    """No Exception, as libraries in Rust raise it."""


class Shop(Environment):
    describe_tools = "prompt"

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.num_calls = 0
        self.num_replies = 0

    def reset(self, task: Task) -> list[Message]:
        self.task = task
        die(task.fields.get("on_reset", ""))
        if "asleep" in task.fields and not (asleep := Path(task.fields["asleep"])).exists():
            # The first episode that comes here names its process, and waits for its end.
            written = asleep.with_suffix(".part")
            written.write_text(str(os.getpid()))
            written.rename(asleep)
            time.sleep(600)
        return [{"role": "user", "content": f"{task.id} of {self.size}?"}]

    @tool
    def count(self) -> int:
        """How often it was called."""
        self.num_calls += 1
        return self.num_calls

    @tool
    def process(self) -> int:
        """Where it is."""
        return os.getpid()

    @tool
    def end(self, how: str) -> str:
        """Ends its process, or never returns."""
        die(how)
        return "still there"

    @tool
    def start(self) -> int:
        """Starts a process of its own."""
        return subprocess.Popen(["sleep", "600"]).pid

    @tool
    async def wait(self) -> str:
        """Waits for long, and takes its time to give up."""
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.1)
            self.note("given up")
        return "waited"

    @tool
    def returns(self, what: str) -> Json:
        """A result of a kind."""
        return {
            "more to log": Observation({"n": 1}, {"reward": 0.5}),
            "no JSON": object(),
            "NaN": float("nan"),
            "a pair": (1, [2.5, None]),
            "fields": self.task.fields,
            "surrogate": "\ud800",
            "marked": {"@": ["tuple", [1]]},
        }[what]

    @tool
    def fails(self, how: str) -> str:
        """An error of a kind."""
        raise {
            "value": ValueError("not", 1),
            "key": KeyError("k"),
            "failure": ToolFailure("in these words"),
            "mute": Mute(),
            "panic": Panic("out of bounds"),
        }[how]

    @tool
    def breaks(self) -> str:
        """Raise an outage."""
        raise InfrastructureError("the shop is closed")

    async def reply(self, messages: Sequence[Message], session: SessionLike) -> str | None:
        self.num_replies += 1
        if "customer" in self.task.fields:
            asked = [{"role": "user", "content": messages[-1]["content"]}]
            policy = self.task.fields["customer"]
            return (await (session.of(policy) if policy else session).chat(asked))["content"]
        return f"{self.num_replies} of {self.size}" if self.num_replies <= self.size else None

    def final_state(self) -> Json:
        die(self.task.fields.get("on_final_state", ""))
        if self.task.fields.get("is_odd"):
            return {"orders": [{"id": 1, "placed": datetime.date(2026, 1, 6)}]}
        return {1: self.num_calls, "size": self.size}

    @property
    def is_done(self) -> bool:
        return self.num_calls == 3

    @property
    def available_tools(self) -> list[str] | None:
        return ["count"] if self.num_calls == 2 else None

    def demonstrate(self, task: Task) -> list[Message]:
        return [tool_call("count"), answer("ok")]

    def close(self) -> None:
        die(self.task.fields.get("on_close", ""))
        self.note("closed")

    def note(self, text: str) -> None:
        if "notes" in self.task.fields:
            with Path(self.task.fields["notes"]).open("a") as file:
                file.write(f"{text}\n")


def reward(trajectory: Trajectory) -> Reward:
    """Follows from what was sampled."""
    die(trajectory.task.fields.get("on_reward", ""))
    per_turn = {turn.id: sum(turn.token_ids) % 2 * 0.5 for turn in trajectory.turns}
    return Reward(total=sum(per_turn.values()), per_turn=per_turn)


def scorer(trajectory: Trajectory) -> Score:
    die(trajectory.task.fields.get("on_score", ""))
    return Score(0.5, {"size": trajectory.final_state["size"] / 4})


def train_tasks() -> list[Task]:
    return [Task(id=f"t{number}", messages=(), fields={"pair": (number, number)}) for number in range(8)]


def validation_tasks() -> list[Task]:
    return [Task(id=f"v{number}", messages=()) for number in range(2)]
