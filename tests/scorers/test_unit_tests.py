"""Unit tests in clean sandboxes: right programs pass, wrong ones fail by name, and mistakes of the task are its own."""

import asyncio

import pytest

from sparring.errors import DataError, InfrastructureError, UsageError
from sparring.sandbox import Sandbox, SqlDatabase, open_sandbox
from sparring.scorers import evaluate_score, fenced_code, sql_result, submitted, unit_tests
from sparring.scorers.unit_tests import LIMITS, TestReport, run_tests
from sparring.types import Message, Outcome, Task, Trajectory

TESTS = """
from solution import add
import solution

def test_numbers(): assert add(2, 3) == 5
def test_lists(): assert add([1], [2]) == [1, 2]
def test_options(): assert add(a=1, b=1) == 2
def test_kinds(): assert solution.kinds() == ((1, None), {2}, {"k": (b"x",)}, True)
def test_error():
    try:
        add(1, "x")
    except TypeError:
        return
    assert False, "no error"
"""
RIGHT = """
print("noise on standard output")
def add(a, b): return a + b
def kinds(): return ((1, None), {2}, {"k": (b"x",)}, True)
"""


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return open_sandbox(limits=LIMITS)
    except UsageError as error:
        pytest.skip(f"no sandbox works on this machine: {error}")


def report_of(sandbox: Sandbox, candidate: str, tests: str = TESTS, **options: float) -> TestReport:
    return asyncio.run(run_tests(sandbox, candidate, tests, **options))


def trajectory(*messages: Message, fields: dict | None = None, transitions: tuple = ()) -> Trajectory:
    task = Task(id="t", messages=({"role": "user", "content": "Write add."},), fields=fields or {"tests": TESTS})
    return Trajectory(
        id="e",
        task=task,
        attempt=0,
        turns=(),
        messages=(*task.messages, *messages),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
        transitions=transitions,
    )


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_a_right_program_passes_and_a_wrong_one_fails_by_name(sandbox: Sandbox) -> None:
    assert report_of(sandbox, RIGHT) == TestReport(num_tests=5)
    report = report_of(sandbox, RIGHT.replace("a + b", "a + b if a != 2 else 0"))
    assert report == TestReport(num_tests=5, failures={"test_numbers": "AssertionError: "})
    assert report.share == 0.8


def test_a_program_that_cannot_be_loaded_fails_every_test(sandbox: Sandbox) -> None:
    report = report_of(sandbox, "def add(a, b) return")
    assert report.num_tests == 5
    assert {reason.partition(":")[0] for name, reason in report.failures.items() if name != "test_error"} == {
        "SyntaxError"
    }


def test_a_call_that_hangs_fails_its_test_alone(sandbox: Sandbox) -> None:
    slow = RIGHT.replace("return a + b", "\n    while a == 2: pass\n    return a + b")
    report = report_of(sandbox, slow, call_seconds=1.0)
    assert set(report.failures) == {"test_numbers"}
    assert "more than 1 s" in report.failures["test_numbers"]


def test_tests_that_are_not_over_in_time_fail(sandbox: Sandbox) -> None:
    tests = "import time\ndef test_a(): pass\ndef test_b(): time.sleep(60)\ndef test_c(): pass"
    assert set(report_of(sandbox, RIGHT, tests, seconds=3.0).failures) == {"test_b", "test_c"}


def test_tests_that_are_not_read_in_time_are_no_failure_of_the_candidate(sandbox: Sandbox) -> None:
    with pytest.raises(InfrastructureError, match="reason: deadline"):
        report_of(sandbox, RIGHT, "while True: pass\ndef test_a(): pass", seconds=1.0)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("def test_a(:", "cannot be read"),
        ("import nowhere\ndef test_a(): pass", "No module named 'nowhere'"),
        ("def check(): pass", "begins with test_"),
        ("import solution\nsolution.add(1, 2)\ndef test_a(): pass", "call it inside a test"),
    ],
)
def test_mistakes_in_the_tests_are_errors_and_no_score(sandbox: Sandbox, tests: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        report_of(sandbox, RIGHT, tests)


def test_results_that_are_no_plain_values_fail(sandbox: Sandbox) -> None:
    report = report_of(
        sandbox, "class A: pass\ndef add(a, b): return A()", "import solution\ndef test_a(): solution.add(1, 2)"
    )
    assert report.failures == {
        "test_a": "TypeError: the result is a A; return numbers, strings, lists, tuples, sets or dicts"
    }


def test_the_scorer_is_strict_or_gives_the_share(sandbox: Sandbox) -> None:
    def score(text: str, **options: bool) -> float:
        return asyncio.run(evaluate_score(unit_tests(**options), trajectory(answer(text)))).value

    half = RIGHT.replace("def kinds(): return", "def kinds(): return 0,")
    assert score(f"Here:\n```python\n{RIGHT}\n```") == 1.0
    assert score(f"```\n{half}\n```") == 0.0
    assert score(f"```\n{half}\n```", partial=True) == 0.8
    assert score(RIGHT) == 0.0


def test_where_a_program_is_found() -> None:
    find = fenced_code()
    assert find(trajectory(answer("a\n```python\nx = 1\n```\nb"))) == "x = 1\n"
    assert find(trajectory(answer("```\nx = 1\n```"))) == "x = 1\n"
    for text in ("x = 1", "```python\nx\n```\n```python\ny\n```", "```sql\nx\n```", "```python x```"):
        assert find(trajectory(answer(text))) is None
    assert find(trajectory(answer("```\nx\n```"), {"role": "user", "content": "thanks"})) is None
    log = [
        {"tool": "submit", "arguments": {"code": "a"}, "result": "ok", "error": None},
        {"tool": "submit", "arguments": {"code": "b"}, "result": "ok", "error": None},
        {"tool": "submit", "arguments": {"code": 1}, "result": "no", "error": "wrong_type"},
    ]
    assert submitted()(trajectory(transitions=tuple(log))) == "b"
    assert submitted("send")(trajectory(transitions=tuple(log))) is None


def test_a_query_is_scored_by_the_rows_it_returns() -> None:
    rows = [{"id": 1, "name": "bolt"}, {"id": 2, "name": "nut"}, {"id": 3, "name": "bolt"}]

    def score(query: str, *, ordered: bool = False, reference: str = "SELECT name FROM parts") -> float:
        scorer = sql_result(lambda task: SqlDatabase({"parts": rows}), ordered=ordered)
        return float(asyncio.run(scorer(trajectory(answer(f"```sql\n{query}\n```"), fields={"query": reference}))))  # type: ignore[arg-type]

    assert score("SELECT name AS n FROM parts ORDER BY id DESC") == 1.0
    assert score("SELECT name FROM parts ORDER BY name DESC", ordered=True) == 0.0
    # Two bolts are not one.
    assert score("SELECT DISTINCT name FROM parts") == 0.0
    assert score("SELECT name, id FROM parts") == 0.0
    assert score("SELECT nothing") == 0.0
    assert score("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c LIMIT 999") == 0.0
    with pytest.raises(DataError, match="the reference query fails"):
        score("SELECT 1", reference="SELECT nothing")
