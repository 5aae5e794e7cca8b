"""Agents as programs: one process per episode, which uses the policy through the gateway like any other endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, final

from sparring.agents.endpoint import EndpointLike
from sparring.agents.result import AgentResult, ended_by
from sparring.errors import RewardError, ServiceError, UsageError
from sparring.rewards.reports import HANDED_OVER, read_report
from sparring.rewards.rules import to_reward
from sparring.sessions import AnySession
from sparring.types import Json, Reward, Task

_TAIL = 400
"""The maximum number of characters that an error message quotes from the end of a program's error output."""
_MOST_OUTPUT, _MOST_ERRORS = 8 << 20, 64 << 10
"""The number of bytes that are kept of a program's output and errors. A report over HTTP has the same limit."""
_CHUNK, _MOST_LEFT = 1 << 16, 1 << 20
"""A pipe holds at most 1 MiB, unless root has raised the limit."""
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""The environment variables of this process that every program gets."""
_OF_THE_EPISODE = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")


@final
class CommandAgent:
    """An agent that starts a program for each episode. The process group of the program is killed when the episode
    ends.

    The program gets `OPENAI_BASE_URL` and `OPENAI_API_KEY` (and the corresponding Anthropic variables) as environment
    variables, together with those in PASSED_ON and those that the recipe lists. All other variables of this process,
    such as keys of trackers and endpoints, are left out.

    The program reads the task from standard input as JSON: `{"id", "messages", "prompt"}`, without the fields that
    hold the ground truth. If the recipe defines other policies, the task also contains `policies`, with a `base_url`
    and an `api_key` for each policy. The last line of its standard output may be `{"reward": ...}`, where the reward is
    a number or a list with one number per turn. The object may also contain `components`, `metrics`, `final_state`,
    `transitions` and `artifacts`. Without a reward, the recipe's reward function grades the episode. Of a program that
    fails, everything but the reward, the components and the metrics is kept.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        enter: Callable[[AnySession], EndpointLike],
        folder: Path,
        variables: Sequence[str] = (),
    ) -> None:
        """Create an agent. `enter` opens a gateway endpoint for a session; `folder` is the working directory of the program.

        `variables` lists further environment variables of the program, as `NAME` or `NAME=value`. Raises the errors of
        `_resolve`.
        """
        self._command = tuple(command)
        self._enter = enter
        self._folder = folder
        self._variables = _resolve(variables)

    async def play(self, task: Task, session: AnySession) -> AgentResult:
        """Run one episode. If the program fails after the policy's first turn, the outcome of the episode is `policy_error`,
        as for a function that raises an exception. Before this turn, AgentFailed is raised.

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
            code, out, err = await self._run(endpoint, json.dumps(given).encode())
        except OSError as error:
            raise ServiceError(
                f"agent.command = {list(self._command)} cannot be started in {self._folder}: {error}. Give the path of "
                "an existing program and its arguments, as a list."
            ) from error
        printed = _last_object(out, session)
        source = f"the report that {self._command[0]} printed for session {session.id}"
        report = read_report(printed, source=source)
        if code != 0:
            failed = ended_by(None, session, f"the agent ended with exit code {code}: {err.strip()[-_TAIL:]}")
            return failed.handing_over(report)
        return AgentResult.of_report(report, self._reward(printed, session))

    async def _run(self, endpoint: EndpointLike, given: bytes) -> tuple[int, str, str]:
        """Run the program to its end. Return its exit code, and the end of its output and of its errors. Raises OSError if
        the program cannot be started."""
        with TemporaryFile() as input, closing(_Tail(_MOST_OUTPUT)) as out, closing(_Tail(_MOST_ERRORS)) as errors:
            # A program need not read its input, and a pipe would wait for it.
            input.write(given)
            input.seek(0)
            process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env={**self._variables, **_episode_variables(endpoint)},
                start_new_session=True,
                stdin=input,
                stdout=out.write_end,
                stderr=errors.write_end,
            )
            try:
                code = await process.wait()
            finally:
                # This also kills the processes that the program started, however the episode ends.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            return code, out.text(), errors.text()

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


@final
class _Tail:
    """The end of what a program and its descendants write into a pipe.

    A descendant in another session may keep the pipe open when the program has ended, and any of them may write without
    end. Neither keeps the episode from ending, and memory holds at most twice `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)

    def _read(self) -> bool:
        """Read what is there. Return whether there may be more."""
        try:
            part = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return False
        if not part:
            self._loop.remove_reader(self._read_end)
        self._kept += part
        if len(self._kept) > 2 * self._most:
            del self._kept[: -self._most]
        return bool(part)

    def text(self) -> str:
        """Return the last `most` bytes up to now."""
        for _ in range(_MOST_LEFT // _CHUNK):
            if not self._read():
                break
        return self._kept[-self._most :].decode(errors="replace")

    def close(self) -> None:
        self._loop.remove_reader(self._read_end)
        for end in (self._read_end, self.write_end):
            os.close(end)


def _last_object(output: str, session: AnySession) -> Mapping[str, Any]:
    """Return the JSON object in the last line of a program's output if it is a report, or an empty mapping.

    A line that the policy wrote is not a report: a program may end by printing the policy's answer."""
    last = (output.strip().splitlines() or [""])[-1].strip()
    if any(last in text for turn in session.episode_turns for text in _texts(turn.message)):
        return {}
    try:
        report = json.loads(last)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) and not report.keys().isdisjoint(("reward", *HANDED_OVER)) else {}


def _texts(value: Json) -> Iterator[str]:
    """Yield the texts in a message: its content, and the arguments of its calls, which are JSON in a text."""
    if isinstance(value, str):
        yield value
        yield value.replace('\\"', '"')
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _resolve(listed: Sequence[str]) -> dict[str, str]:
    """Return the variables in PASSED_ON and those that a recipe lists: `NAME` passes on the variable of this process,
    `NAME=value` sets it.

    Raises UsageError for a listed variable that this process does not have, and for one that each episode sets.
    """
    found = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    for entry in listed:
        name, is_set, value = entry.partition("=")
        if name in _OF_THE_EPISODE:
            raise UsageError(
                f"agent.variables has {name}, which every episode sets to its own address or key; leave it out."
            )
        if not is_set and name not in os.environ:
            raise UsageError(
                f"agent.variables has {name}, but the environment has no such variable. Set it before the command "
                f"starts, write {name}=VALUE, or leave it out."
            )
        found[name] = value if is_set else os.environ[name]
    return found


def _episode_variables(endpoint: EndpointLike) -> dict[str, str]:
    base = endpoint.base_url.removesuffix("/v1")
    values = (endpoint.base_url, endpoint.api_key, base, endpoint.api_key)
    return dict(zip(_OF_THE_EPISODE, values, strict=True))


def _prompt(task: Task) -> Any:
    """Return the text of the last user message, since most agents expect a single text."""
    users = [message["content"] for message in task.messages if message.get("role") == "user"]
    return users[-1] if users else ""
