"""Score by unit tests in clean sandboxes: the candidate runs in one, the tests in another, and only values pass between.

No code of the candidate is in the process that judges, so that patched comparisons, edited tests, early exits and forged
output change nothing but the candidate's own return values.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from sparring.errors import DataError, InfrastructureError
from sparring.protocols import Scorer
from sparring.sandbox import Box, Limits, Program, Sandbox, open_sandbox
from sparring.sandbox.limits import programs_end
from sparring.scorers.conduct import by_behavior, conduct
from sparring.types import Score, Trajectory

Candidate: TypeAlias = Callable[[Trajectory], str | None]
"""Where in a trajectory the program is; None when there is none."""

LIMITS = Limits(seconds=20.0, output_kib=4096)
CALL_SECONDS = 2.0
MAX_VALUE = 1 << 20
"""Bytes of one return value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """How a candidate did: the reason of each failed test by its name."""

    __test__ = False  # not a test itself

    num_tests: int
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return 1 - len(self.failures) / self.num_tests


def unit_tests(
    candidate: Candidate | None = None,
    *,
    tests: str = "tests",
    partial: bool = False,
    limits: Limits = LIMITS,
    sandbox: Callable[[Limits], Sandbox] = lambda limits: open_sandbox(limits=limits),
) -> Scorer:
    """1.0 when a program passes all tests, else 0.0; with `partial`, the share that it passes.

    `candidate` finds the program, by default the one fenced block of the last message. `tests` names the task's field with
    the tests: functions `test_*` that `import solution`, call its functions with plain values and assert what they return.
    Parts: `format` (a program was found), `tests` (the share passed), and how the episode went.

    Raises DataError when the tests themselves cannot be read.
    """
    find = candidate or fenced_code()

    async def unit_tests_score(trajectory: Trajectory) -> Score:
        program = find(trajectory)
        parts = {"format": float(program is not None), "tests": 0.0, **conduct(trajectory)}
        if program is None:
            return Score(0.0, parts)
        place = await asyncio.to_thread(sandbox, limits)
        report = await run_tests(place, program, trajectory.task.fields[tests])
        return Score(report.share if partial else float(not report.failures), parts | {"tests": report.share})

    return by_behavior(unit_tests_score)


def fenced_code(language: str = "python") -> Candidate:
    """The program in the last message, when that is the assistant's and has exactly one fenced block."""
    pattern = re.compile(rf"^```(?:{re.escape(language)})?[ \t]*\n(.*?)^```[ \t]*$", flags=re.DOTALL | re.MULTILINE)

    def find(trajectory: Trajectory) -> str | None:
        last = trajectory.messages[-1] if trajectory.messages else {}
        text = last.get("content")
        if last.get("role") != "assistant" or not isinstance(text, str) or text.count("```") != 2:
            return None
        found = pattern.search(text)
        return found[1] if found else None

    return find


def submitted(tool: str = "submit", argument: str = "code") -> Candidate:
    """The argument of the last call of a tool that took it."""

    def find(trajectory: Trajectory) -> str | None:
        calls = [entry for entry in trajectory.transitions if entry["tool"] == tool and entry["error"] is None]
        value = calls[-1]["arguments"].get(argument) if calls else None
        return value if isinstance(value, str) else None

    return find


async def run_tests(
    sandbox: Sandbox, candidate: str, tests: str, *, seconds: float | None = None, call_seconds: float = CALL_SECONDS
) -> TestReport:
    """Play tests against a candidate. Tests that are not over after `seconds` fail, and so does a call after
    `call_seconds`.

    Raises DataError for tests that cannot be read or hold no test; InfrastructureError when a sandbox cannot be started or
    does not come to read the tests.
    """
    try:
        ast.parse(tests)
    except (SyntaxError, ValueError) as error:
        raise DataError(f"The tests cannot be read: {error}; correct the task.") from error
    seconds = seconds or sandbox.limits.seconds
    judging = {"tests_program.py": _program("tests_program.py")}
    played = {"candidate_program.py": _program("candidate_program.py")}
    async with (
        sandbox.session(judging) as judge_box,
        sandbox.session(played) as candidate_box,
        AsyncExitStack() as stack,
    ):
        with programs_end(None):  # only the candidate's: it is to blame when there is no time to read the tests
            judge = await stack.enter_async_context(
                judge_box.start(["python3", "-I", "-B", "tests_program.py"], seconds=seconds)
            )
        player = _Player(candidate_box, candidate, seconds, call_seconds)
        try:
            return await _judged(judge, player, tests)
        finally:
            await player.stop()


async def _judged(judge: Program, player: _Player, tests: str) -> TestReport:
    await _say(judge, tests)
    listing = await judge.read_line()
    if listing is None:
        run = await judge.wait()
        if run.ended != "exit":
            # Nothing of the candidate has run yet: the tests do not end, or this machine is too busy to begin.
            raise InfrastructureError(
                f"The tests could not be read: their box ended by {run.ended} after {run.seconds:.1f} s."
            )
        raise DataError(f"The tests cannot be read ({run.ended}): {run.stderr[-300:]} Correct the task.")
    names = json.loads(listing)["tests"]
    if not names:
        raise DataError("The tests hold no function whose name begins with test_, so nothing can be judged; add one.")
    failures = dict.fromkeys(names, "not over in time")
    name = None
    while (line := await judge.read_line()) is not None:
        said = json.loads(line)
        if "begin" in said:
            name = said["begin"]
            await _say(judge, True)
        elif "call" in said:
            await _say(judge, await player.call(said["call"], said["arguments"]))
        elif said["passed"]:
            del failures[name]
        else:
            failures[name] = said["text"]
    return TestReport(num_tests=len(names), failures=failures)


class _Player:
    """The candidate's program, started at its first call and again when it has ended."""

    def __init__(self, box: Box, source: str, seconds: float, call_seconds: float) -> None:
        self._box, self._source, self._seconds, self._call_seconds = box, source, seconds, call_seconds
        self._stack = AsyncExitStack()
        self._program: Program | None = None

    async def call(self, name: str, arguments: str) -> dict[str, str]:
        """What a function of the candidate returns, as text that says a literal, or how it failed."""
        try:
            async with asyncio.timeout(self._call_seconds):
                if self._program is None or self._program.result is not None:
                    failure = await self._start()
                    if failure is not None:
                        return failure
                await self._send({"name": name, "arguments": arguments})
                return await self._hear()
        except TimeoutError:
            await self.stop()
            return {"raised": "TimeoutError", "text": f"the call took more than {self._call_seconds:g} s"}

    async def stop(self) -> None:
        self._program = None
        await self._stack.aclose()

    async def _start(self) -> dict[str, str] | None:
        """None when the program has been loaded, else how that failed."""
        await self.stop()
        command = ["python3", "-I", "-B", "candidate_program.py"]
        self._program = await self._stack.enter_async_context(self._box.start(command, seconds=self._seconds))
        await self._send(self._source)
        said = await self._hear()
        if "raised" in said:
            await self.stop()
            return said
        return None

    async def _send(self, content: Any) -> None:
        assert self._program is not None
        await _say(self._program, content)

    async def _hear(self) -> dict[str, str]:
        """One line of the candidate's: checked to be an answer, and believed no further."""
        assert self._program is not None
        line = await self._program.read_line()
        if line is None:
            return {"raised": "RuntimeError", "text": "the candidate's program ended"}
        try:
            said = json.loads(line) if len(line) <= MAX_VALUE else None
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or not all(isinstance(value, str | bool) for value in said.values()):
            return {"raised": "RuntimeError", "text": "the candidate's program answered with no value"}
        return {key: str(value) for key, value in said.items()}


async def _say(program: Program, content: Any) -> None:
    await program.write(json.dumps(content).encode() + b"\n")


@cache
def _program(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")
