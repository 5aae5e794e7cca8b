"""The execution pattern: programs written by the policy run in a sandbox that exists for one episode."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sparring.environments.base import Environment
from sparring.environments.tools import tool
from sparring.errors import UsageError
from sparring.sandbox import Box, Execution, Limits, Sandbox, SqlDatabase, open_sandbox
from sparring.sandbox.box import Content
from sparring.sandbox.sandbox import Choice
from sparring.types import Json


class ExecutionEnvironment(Environment):
    """The base class of `PythonTool`, `SqlTool` and any other environment that runs programs.

        class Desk(PythonTool):
            def files(self):
                return {"sales.csv": self.task_rows}

    The sandbox is opened when the first program runs and closed when the episode ends, on every exit path. If you
    override `close`, your method must call `await super().close()`.
    """

    limits: ClassVar[Limits] = Limits()
    backend: ClassVar[Choice] = "auto"
    _box: Box | None = None
    _database: SqlDatabase | None = None

    def files(self) -> Mapping[str, Content]:
        """Return the files that the scratch folder contains when the first program starts."""
        return {}

    def database(self) -> SqlDatabase:
        """Return the episode's database. This method is called at the first query."""
        raise UsageError(f"{type(self).__name__} has no database; define `database(self)` and return a SqlDatabase.")

    def sandbox(self) -> Sandbox:
        """Return the sandbox in which programs run. Raises UsageError with instructions if no back end works on this
        machine."""
        return open_sandbox(limits=self.limits, backend=self.backend)

    async def box(self) -> Box:
        """Return the episode's `Box`, which is its open sandbox. Raises InfrastructureError if the sandbox cannot be
        opened."""
        if self._box is None:
            # This runs in a thread, because the first sandbox of a process tries the back ends.
            sandbox = await asyncio.to_thread(self.sandbox)
            self._box = Box(sandbox, self.files())
        return self._box

    async def python(self, code: str, *, seconds: float | None = None) -> Execution:
        """Run a Python program in the scratch folder."""
        box = await self.box()
        return await box.run(["python3", "-B", "-"], stdin=code, seconds=seconds)

    async def sql(self, query: str) -> list[dict[str, Json]]:
        """Return the rows of a query. Raises SqlError."""
        if self._database is None:
            self._database = self.database()
        return await asyncio.to_thread(self._database.query, query)

    async def close(self) -> None:
        if self._database is not None:
            self._database.close()
        if self._box is not None:
            await self._box.close()


class PythonTool(ExecutionEnvironment):
    """An environment with the tool `run_python`."""

    @tool
    async def run_python(self, code: str) -> str:
        """Run a Python program in the working folder; returns what it prints. Files stay, variables do not.

        Args:
            code: the whole program
        """
        return as_text(await self.python(code))


class SqlTool(ExecutionEnvironment):
    """An environment with the tool `query`."""

    @tool
    async def query(self, sql: str) -> list[dict[str, Json]]:
        """Rows of the database that answer a query in SQLite's SQL.

        Args:
            sql: one SELECT statement
        """
        return await self.sql(sql)


def as_text(run: Execution) -> str:
    """Return an execution as the text that the model sees: the output and, unless the program succeeded, how it
    ended."""
    parts = [run.stdout]
    if run.stderr:
        parts.append(run.stderr)
    if run.ended != "exit":
        parts.append(_ENDS[run.ended])
    elif run.exit_code:
        parts.append(f"exit code {run.exit_code}")
    if run.scratch_lost:
        parts.append("files written before are gone")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "(no output)"


_ENDS = {
    "deadline": "stopped: it took too long",
    "memory": "stopped: it used too much memory",
    "output": "stopped: it printed too much",
    "files": "stopped: it made too many files",
    "processes": "stopped: it started too many processes",
    "killed": "stopped: it broke the box that it ran in",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The value that a grader returned (None if it returned none), and the grader's execution."""

    value: Json
    run: Execution
    refused: Mapping[str, str] = field(default_factory=dict)
    """The artifacts that could not be passed to the grader, each with the reason."""


async def graded(
    sandbox: Sandbox,
    grader: str,
    artefacts: Mapping[str, Content],
    *,
    pristine: Mapping[str, Content] | None = None,
    seconds: float | None = None,
) -> Verdict:
    """Run a grader on the files that an episode left, in a second, clean sandbox, and return its verdict.

    `grader` is a Python program that you write. It finds the episode's files in the folder `artefacts` and your files
    in `pristine`, and calls `verdict(value)` once with a JSON value. No module is imported from either folder. Treat
    artifacts as data: anything that a grader imports or executes from them becomes part of the grader. For programs,
    use `sparring.scorers.unit_tests`.

    A grader that fails or does not end gives no verdict, because the artifacts may be the cause. An artifact with an
    invalid name or size is left out, and listed in `refused`. Raises InfrastructureError if the sandbox cannot be
    started.
    """
    nonce = secrets.token_hex(16)
    files: dict[str, Content] = {f"pristine/{name}": content for name, content in (pristine or {}).items()}
    files |= {"grader/grader.py": grader, "grader/main.py": _GRADER}
    async with sandbox.session(files) as box:
        refused = await box.try_write({f"artefacts/{name}": content for name, content in artefacts.items()})
        run = await box.run(["python3", "-I", "-B", "grader/main.py"], stdin=nonce, seconds=seconds)
    return Verdict(
        value=_value(run, nonce),
        run=run,
        refused={name.removeprefix("artefacts/"): reason for name, reason in refused.items()},
    )


def _value(run: Execution, nonce: str) -> Json:
    verdicts = [line for line in run.stdout.splitlines() if line.startswith(nonce)]
    if not run.is_success or len(verdicts) != 1:
        return None
    try:
        return json.loads(verdicts[0][len(nonce) :])
    except (ValueError, RecursionError):  # a number with too many digits for this Python, or nested too deeply
        return None


_GRADER = """
import json, sys
nonce, stdout = sys.stdin.read(), sys.stdout
def verdict(value, write=stdout.write, dumps=json.dumps):
    write("\\n" + nonce + dumps(value) + "\\n")
with open("grader/grader.py") as file:
    program = compile(file.read(), "grader.py", "exec")
exec(program, {"__name__": "__main__", "verdict": verdict})
"""
