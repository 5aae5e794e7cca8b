"""Scores a program by unit tests in clean sandboxes. The candidate runs in one sandbox and the tests in another, and
the two exchange only values.

The grading process does not contain any of the candidate's code. Patched comparisons, edited tests, early exits and
forged output therefore change nothing except the candidate's own return values.
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
"""A function that returns the program in a trajectory, or None if there is no program."""

LIMITS = Limits(seconds=20.0, output_kib=4096)
CALL_SECONDS = 2.0
MAX_VALUE = 1 << 20
"""The maximum size of one return value, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """The results of a candidate. The reasons for failed tests are keyed by the name of the test."""

    __test__ = False  # not a test itself

    num_tests: int
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of tests that passed."""
        return 1 - len(self.failures) / self.num_tests


def unit_tests(
    candidate: Candidate | None = None,
    *,
    tests: str = "tests",
    partial: bool = False,
    limits: Limits = LIMITS,
    sandbox: Callable[[Limits], Sandbox] = lambda limits: open_sandbox(limits=limits),
) -> Scorer:
    """Return a scorer that gives 1.0 if a program passes all tests, else 0.0. If `partial` is true, it gives the share
    of tests that pass.

    `candidate` finds the program. By default, the program is the only fenced block of the last message. `tests` is the
    name of the task field that contains the tests: functions `test_*` that `import solution`, call its functions with
    plain values, and assert on the results. Parts: `format` (a program was found), `tests` (the share of tests that
    passed), and the conduct of the episode.

    The scorer raises DataError when the tests themselves cannot be read.
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
    """Return a function that finds the only fenced block of the last message, if the assistant wrote that message."""
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
    """Return a function that finds an argument of the last successful call of a tool."""

    def find(trajectory: Trajectory) -> str | None:
        calls = [entry for entry in trajectory.transitions if entry["tool"] == tool and entry["error"] is None]
        value = calls[-1]["arguments"].get(argument) if calls else None
        return value if isinstance(value, str) else None

    return find


async def run_tests(
    sandbox: Sandbox, candidate: str, tests: str, *, seconds: float | None = None, call_seconds: float = CALL_SECONDS
) -> TestReport:
    """Run tests against a candidate. Tests that do not end within `seconds` seconds fail, and a call fails if it takes
    longer than `call_seconds` seconds.

    Raises DataError if the tests cannot be read or contain no test function, and InfrastructureError if a sandbox
    cannot be started or does not begin to read the tests.
    """
    try:
        ast.parse(tests)
    except (SyntaxError, ValueError) as error:
        raise DataError(f"The tests cannot be read: {error}; correct the task.") from error
    seconds = seconds or sandbox.limits.seconds
    grading = {"tests_program.py": _program("tests_program.py")}
    played = {"candidate_program.py": _program("candidate_program.py")}
    async with (
        sandbox.session(grading) as grader_box,
        sandbox.session(played) as candidate_box,
        AsyncExitStack() as stack,
    ):
        # The deadline applies only to the candidate. It must not keep the grader from reading the tests.
        with programs_end(None):
            grader = await stack.enter_async_context(
                grader_box.start(["python3", "-I", "-B", "tests_program.py"], seconds=seconds)
            )
        player = _Player(candidate_box, candidate, seconds, call_seconds)
        try:
            return await _run_tests(grader, player, tests)
        finally:
            await player.stop()


async def _run_tests(grader: Program, player: _Player, tests: str) -> TestReport:
    await _say(grader, tests)
    listing = await grader.read_line()
    if listing is None:
        run = await grader.wait()
        if run.ended != "exit":
            # No code of the candidate has run yet: loading the tests does not end, or this machine is too busy to start
            # the grader.
            raise InfrastructureError(
                f"The tests could not be read: their sandbox ended after {run.seconds:.1f} s (reason: {run.ended})."
            )
        raise DataError(f"The tests cannot be read ({run.ended}): {run.stderr[-300:]} Correct the task.")
    names = json.loads(listing)["tests"]
    if not names:
        raise DataError(
            "The tests contain no function whose name begins with test_, so nothing can be graded; add one."
        )
    failures = dict.fromkeys(names, "did not end in time")
    name = None
    while (line := await grader.read_line()) is not None:
        message = json.loads(line)
        if "begin" in message:
            name = message["begin"]
            await _say(grader, True)
        elif "call" in message:
            await _say(grader, await player.call(message["call"], message["arguments"]))
        elif message["passed"]:
            del failures[name]
        else:
            failures[name] = message["text"]
    return TestReport(num_tests=len(names), failures=failures)


class _Player:
    """The candidate's program. It is started at its first call, and restarted at the next call after it has ended."""

    def __init__(self, box: Box, source: str, seconds: float, call_seconds: float) -> None:
        self._box, self._source, self._seconds, self._call_seconds = box, source, seconds, call_seconds
        self._stack = AsyncExitStack()
        self._program: Program | None = None

    async def call(self, name: str, arguments: str) -> dict[str, str]:
        """Return the result of a candidate's function as the text of a literal, or its failure."""
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
        """End the candidate's program."""
        self._program = None
        await self._stack.aclose()

    async def _start(self) -> dict[str, str] | None:
        """Load the program. Return None on success, otherwise the failure."""
        await self.stop()
        command = ["python3", "-I", "-B", "candidate_program.py"]
        self._program = await self._stack.enter_async_context(self._box.start(command, seconds=self._seconds))
        await self._send(self._source)
        message = await self._hear()
        if "raised" in message:
            await self.stop()
            return message
        return None

    async def _send(self, content: Any) -> None:
        assert self._program is not None
        await _say(self._program, content)

    async def _hear(self) -> dict[str, str]:
        """Read one line from the candidate. Only its format is checked; the content is not trusted."""
        assert self._program is not None
        line = await self._program.read_line()
        if line is None:
            return {"raised": "RuntimeError", "text": "the candidate's program ended"}
        try:
            message = json.loads(line) if len(line) <= MAX_VALUE else None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not all(isinstance(value, str | bool) for value in message.values()):
            return {"raised": "RuntimeError", "text": "the candidate's program did not answer with a value"}
        return {key: str(value) for key, value in message.items()}


async def _say(program: Program, content: Any) -> None:
    await program.write(json.dumps(content).encode() + b"\n")


@cache
def _program(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")
