"""The execution pattern: real programs and queries in an episode, closed with it, and graded in another sandbox."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import (
    Environment,
    PythonTool,
    SqlTool,
    answer,
    execute,
    graded,
    opened,
    record_demonstration,
    tool_call,
)
from sparring.environments.execution import ExecutionEnvironment, as_text
from sparring.errors import UsageError
from sparring.sandbox import Execution, Limits, SqlDatabase, open_sandbox
from sparring.types import Message, Task

TASK = Task(id="t", messages=({"role": "user", "content": "How many?"},), fields={"rows": "a\nb\nc\n"})


@pytest.fixture(scope="module", autouse=True)
def _needs_a_sandbox() -> None:
    try:
        open_sandbox()
    except UsageError as error:
        pytest.skip(f"no sandbox works on this machine: {error}")


class Desk(PythonTool, SqlTool):
    limits = Limits(seconds=20.0)

    def reset(self, task: Task) -> None:
        self.rows = task.fields["rows"]

    def files(self) -> Mapping[str, str]:
        return {"rows.txt": self.rows}

    def database(self) -> SqlDatabase:
        return SqlDatabase({"rows": [{"name": name} for name in self.rows.split()]})

    def demonstrate(self, task: Task) -> list[Message]:
        return [tool_call("run_python", code="print(len(open('rows.txt').readlines()))"), answer("3")]


def test_tools_run_and_keep_files_for_the_episode() -> None:
    calls = [
        tool_call("run_python", code="open('n', 'w').write('7')\nprint(open('rows.txt').read().split())"),
        tool_call("run_python", code="print(open('n').read(), 'x' in dir())"),
        tool_call("run_python", code="1/0"),
        tool_call("query", sql="SELECT count(*) AS n FROM rows"),
        tool_call("query", sql="DROP TABLE rows"),
        answer("3"),
    ]
    result = asyncio.run(EnvironmentAgent(Desk, max_turns=6).play(TASK, ScriptedSession(*calls)))
    results = [entry["result"] for entry in result.transitions]
    assert results[:2] == ["['a', 'b', 'c']", "7 False"]
    assert "ZeroDivisionError" in results[2]
    assert results[2].endswith("exit code 1")
    assert json.loads(results[3]) == [{"n": 3}]
    assert results[4].startswith("error: query failed: SqlError: not authorized")
    assert [entry["error"] for entry in result.transitions] == [None, None, None, None, "tool_raised"]


def test_the_box_is_opened_by_the_first_program_and_closed_with_the_episode() -> None:
    async def played() -> tuple[bool, bool]:
        environment = Desk()
        async with opened(environment, TASK):
            environment.reset(TASK)
            before = environment._box is None
            await execute(environment, "run_python", {"code": "print(1)"})
            box = environment._box
        assert box is not None
        return before, box._started is None

    assert asyncio.run(played()) == (True, True)


def test_an_episode_that_fails_closes_its_box_too() -> None:
    async def played(environment: Desk) -> None:
        async with opened(environment, TASK):
            environment.reset(TASK)
            await execute(environment, "run_python", {"code": "print(1)"})
            raise ValueError("the agent")

    environment = Desk()
    with pytest.raises(ValueError, match="the agent"):
        asyncio.run(played(environment))
    assert environment._box is not None
    assert environment._box._started is None


def test_demonstrations_are_played_for_real() -> None:
    messages = record_demonstration(Desk, TASK)
    assert messages[-2]["content"] == "3"


def test_an_environment_that_runs_nothing_opens_nothing() -> None:
    class Quiet(ExecutionEnvironment):
        backend = "unsafe-local"  # which would be refused

    async def played() -> None:
        async with opened(Quiet(), TASK):
            pass

    asyncio.run(played())


def test_a_database_that_is_not_declared_is_named() -> None:
    class Bare(SqlTool):
        pass

    async def played() -> None:
        async with opened(Bare(), TASK) as environment:
            assert isinstance(environment, Bare)
            await environment.sql("SELECT 1")

    with pytest.raises(UsageError, match="Bare has no database"):
        asyncio.run(played())


@pytest.mark.parametrize(
    ("ended", "code", "stdout", "stderr", "lost", "text"),
    [
        ("exit", 0, "", "", False, "(no output)"),
        ("exit", 0, "7\n", "", False, "7"),
        ("exit", 2, "7\n", "bad\n", False, "7\nbad\nexit code 2"),
        ("deadline", None, "7\n", "", False, "7\nstopped: it took too long"),
        ("memory", None, "", "", True, "stopped: it used too much memory\nfiles written before are gone"),
    ],
)
def test_an_execution_reads_as_text(ended, code, stdout, stderr, lost, text) -> None:
    run = Execution(
        exit_code=code, stdout=stdout, stderr=stderr, ended=ended, seconds=1.0, backend="b", scratch_lost=lost
    )
    assert as_text(run) == text


def test_tools_are_described_as_any_others() -> None:
    names = [schema["function"]["name"] for schema in Desk.tool_schemas()]
    assert sorted(names) == ["query", "run_python"]
    assert issubclass(Desk, Environment)


def test_the_example_of_the_documentation_plays() -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text("utf-8")
    found = re.search(r"## Execution\n.*?```python\n(.*?)```", page, flags=re.DOTALL)
    assert found is not None
    space: dict[str, Any] = {}
    exec(found[1], space)
    sales = [{"title": "Emma", "copies": 3}, {"title": "Ivanhoe", "copies": 4}]
    task = Task(id="t", messages=TASK.messages, fields={"sales": sales})
    messages = record_demonstration(space["Books"], task)
    assert [message["content"] for message in messages if message["role"] == "tool"] == ['[{"total":7}]', "7"]
    assert messages[-1]["content"] == "7"


def test_a_grader_sees_artefacts_as_data_and_returns_its_verdict() -> None:
    grader = (
        "rows = open('artefacts/out.csv').read().split()\nright = open('pristine/right').read()\n"
        "verdict({'share': rows.count(right) / len(rows)})"
    )
    sandbox = open_sandbox(limits=Limits(seconds=20.0))

    def grade(grader: str, artefacts: Mapping[str, str], **options: float):
        return asyncio.run(graded(sandbox, grader, artefacts, pristine={"right": "a"}, **options))

    assert grade(grader, {"out.csv": "a b a a"}).value == {"share": 0.75}
    # What an episode left is the reason here: no verdict, and how the grader ended.
    empty = grade(grader, {"out.csv": ""})
    assert (empty.value, empty.run.exit_code) == (None, 1)
    slow = grade("while True: pass", {}, seconds=0.3)
    assert (slow.value, slow.run.ended) == (None, "deadline")
    assert grade("print('true')", {}).value is None
    assert grade("verdict(1)\nverdict(2)", {}).value is None
