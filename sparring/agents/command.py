"""Agents as programs: one process an episode, which asks the policy through the gateway like any other endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, final

from sparring.agents.result import AgentResult, ended_by
from sparring.errors import RewardError, ServiceError
from sparring.rewards.rules import to_reward
from sparring.sessions import AnySession
from sparring.types import Outcome, Reward, Task

_TAIL = 400
"""Characters of what a program said last that stand in an error."""


class DoorLike(Protocol):
    """An episode's way in (`sparring.gateway.Door`)."""

    @property
    def base_url(self) -> str: ...

    @property
    def api_key(self) -> str: ...

    @property
    def policies(self) -> Mapping[str, DoorLike]: ...


@final
class CommandAgent:
    """Starts a program for every episode, in a process group of its own that ends with it.

    The program finds `OPENAI_BASE_URL` and `OPENAI_API_KEY` (and Anthropic's pair) in its environment and the task as
    JSON on its standard input: `{"id", "messages", "prompt"}`, without the fields that hold the truth, and where the recipe
    names further policies `policies` with a `base_url` and an `api_key` for each. The last line of its
    standard output may be `{"reward": ...}`: a number, a list with one for each turn, and with it `components` and
    `metrics`. Without one the recipe's reward function judges the episode.
    """

    def __init__(self, command: Sequence[str], *, enter: Callable[[AnySession], DoorLike], folder: Path) -> None:
        """`enter` opens a door of the gateway to a session; `folder` is the working directory of the program."""
        self._command = tuple(command)
        self._enter = enter
        self._folder = folder

    async def play(self, task: Task, session: AnySession) -> AgentResult:
        """Play one episode. A program that fails ends its episode as `policy_error`, as a function that raises does.

        Raises ServiceError when it cannot be started, RewardError when what it says is no reward.
        """
        door = self._enter(session)
        given = {"id": task.id, "messages": list(task.messages), "prompt": _prompt(task)}
        if door.policies:
            given["policies"] = {
                name: {"base_url": other.base_url, "api_key": other.api_key} for name, other in door.policies.items()
            }
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, cwd=self._folder, env=_environment(door), start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise ServiceError(
                f"agent.command = {list(self._command)} cannot be started in {self._folder}: {error}. Give a program that "
                "exists, with its arguments as a list."
            ) from error
        try:
            out, err = await process.communicate(json.dumps(given).encode())
        finally:
            # Also what the program has started, however the episode ends.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode != 0:
            tail = err.decode(errors="replace").strip()[-_TAIL:]
            return ended_by(None, session, f"the agent ended with exit code {process.returncode}: {tail}")
        return AgentResult(outcome=Outcome.FINISHED, reward=self._reward(out.decode(errors="replace"), session))

    def _reward(self, said: str, session: AnySession) -> Reward | None:
        last = (said.strip().splitlines() or [""])[-1]
        try:
            report = json.loads(last)
        except ValueError:
            return None
        if not isinstance(report, dict) or "reward" not in report:
            return None
        source = f"the reward that {self._command[0]} printed for session {session.id}"
        turn_ids = [turn.id for turn in session.episode_turns if turn.learns]
        value = to_reward(report["reward"], turn_ids=turn_ids, source=source)
        for name in ("components", "metrics"):
            if not isinstance(report.get(name, {}), dict):
                raise RewardError(f"{source} has {name} = {report[name]!r}; give an object of numbers by name.")
        return to_reward(
            Reward(
                total=value.total,
                per_turn=value.per_turn,
                components=report.get("components", {}),
                metrics=report.get("metrics", {}),
            ),
            turn_ids=turn_ids,
            source=source,
        )


def _environment(door: DoorLike) -> dict[str, str]:
    base = door.base_url.removesuffix("/v1")
    return {
        **os.environ,
        "OPENAI_BASE_URL": door.base_url, "OPENAI_API_KEY": door.api_key,
        "ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": door.api_key,
    }  # fmt: skip


def _prompt(task: Task) -> Any:
    """What the last user message says: most agents want a text."""
    users = [message["content"] for message in task.messages if message.get("role") == "user"]
    return users[-1] if users else ""
