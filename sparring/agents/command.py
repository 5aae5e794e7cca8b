"""Agents as programs: one process per episode, which uses the policy through the gateway like any other endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from sparring.agents.endpoint import EndpointLike
from sparring.agents.result import AgentResult, ended_by
from sparring.errors import RewardError, ServiceError
from sparring.rewards.reports import HANDED_OVER, read_report
from sparring.rewards.rules import to_reward
from sparring.sessions import AnySession
from sparring.types import Reward, Task

_TAIL = 400
"""The maximum number of characters that an error message quotes from the end of a program's error output."""


@final
class CommandAgent:
    """An agent that starts a program for each episode. The process group of the program is killed when the episode
    ends.

    The program gets `OPENAI_BASE_URL` and `OPENAI_API_KEY` (and the corresponding Anthropic variables) as environment
    variables. It reads the task from standard input as JSON: `{"id", "messages", "prompt"}`, without the fields that
    hold the ground truth. If the recipe defines other policies, the task also contains `policies`, with a `base_url`
    and an `api_key` for each policy. The last line of its standard output may be `{"reward": ...}`, where the reward is
    a number or a list with one number per turn. The object may also contain `components`, `metrics`, `final_state`,
    `transitions` and `artifacts`. Without a reward, the recipe's reward function grades the episode. Of a program that
    fails, everything but the reward, the components and the metrics is kept.
    """

    def __init__(self, command: Sequence[str], *, enter: Callable[[AnySession], EndpointLike], folder: Path) -> None:
        """Create an agent. `enter` opens a gateway endpoint for a session; `folder` is the working directory of the program."""
        self._command = tuple(command)
        self._enter = enter
        self._folder = folder

    async def play(self, task: Task, session: AnySession) -> AgentResult:
        """Run one episode. If the program fails, the outcome of the episode is `policy_error`, as for a function that
        raises an exception.

        Raises ServiceError if the program cannot be started, and RewardError if the value that it prints is not a
        reward.
        """
        endpoint = self._enter(session)
        given = {"id": task.id, "messages": list(task.messages), "prompt": _prompt(task)}
        if endpoint.policies:
            given["policies"] = {
                name: {"base_url": other.base_url, "api_key": other.api_key}
                for name, other in endpoint.policies.items()
            }
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env=_environment(endpoint),
                start_new_session=True,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise ServiceError(
                f"agent.command = {list(self._command)} cannot be started in {self._folder}: {error}. Give the path of "
                "an "
                "existing program and its arguments, as a list."
            ) from error
        try:
            out, err = await process.communicate(json.dumps(given).encode())
        finally:
            # This also kills the processes that the program started, however the episode ends.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        printed = _last_object(out.decode(errors="replace"), session)
        source = f"the report that {self._command[0]} printed for session {session.id}"
        report = read_report(printed, source=source)
        if process.returncode != 0:
            tail = err.decode(errors="replace").strip()[-_TAIL:]
            failed = ended_by(None, session, f"the agent ended with exit code {process.returncode}: {tail}")
            return failed.handing_over(report)
        return AgentResult.of_report(report, self._reward(printed, session))

    def _reward(self, report: Mapping[str, Any], session: AnySession) -> Reward | None:
        if "reward" not in report:
            return None
        source = f"the reward that {self._command[0]} printed for session {session.id}"
        turn_ids = [turn.id for turn in session.episode_turns if turn.learns]
        value = to_reward(report["reward"], turn_ids=turn_ids, source=source)
        for name in ("components", "metrics"):
            if not isinstance(report.get(name, {}), dict):
                raise RewardError(f"{source} has {name} = {report[name]!r}; give an object that maps names to numbers.")
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


def _last_object(output: str, session: AnySession) -> Mapping[str, Any]:
    """Return the JSON object in the last line of a program's output if it is a report, or an empty mapping.

    A line that the policy wrote is not a report: a program may end by printing the policy's answer."""
    last = (output.strip().splitlines() or [""])[-1].strip()
    if any(last in str(turn.message.get("content") or "") for turn in session.episode_turns):
        return {}
    try:
        report = json.loads(last)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) and not report.keys().isdisjoint(("reward", *HANDED_OVER)) else {}


def _environment(endpoint: EndpointLike) -> dict[str, str]:
    base = endpoint.base_url.removesuffix("/v1")
    return {
        **os.environ,
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": endpoint.api_key,
    }


def _prompt(task: Task) -> Any:
    """Return the text of the last user message, since most agents expect a single text."""
    users = [message["content"] for message in task.messages if message.get("role") == "user"]
    return users[-1] if users else ""
