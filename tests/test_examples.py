"""The Python of the documentation runs: each block of a page, in order and in one namespace, as a reader would type it.

A block that cannot run has the reason in the line before it, `<!-- not run: reason -->`; then it is compiled, and what
it imports is there. Blocks with `from:`, `worker:`, `example:` and `tutorial:` are parts of programs that other tests run.
"""

import ast
import asyncio
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import pytest

from sparring.errors import UsageError
from sparring.sandbox import open_sandbox

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = ("from: ", "worker: ", "example: ", "tutorial: ")

GIVEN = {
    "commands.md": """
        from tests.report.stored_run import StoredRun, episode
        stored = StoredRun(Path.cwd(), name="quickstart-001")
        numbers = {"rollout/reward/mean": 0.5, "rollout/score/mean": 0.25, "rollout/reward/components/right": 0.5}
        played = {f"train-{step}": [episode(f"train/{step}/a/0.0", reward=1.0, score=0.0)] for step in (1, 2)}
        stored.log({1: numbers, 2: numbers}, played)
        """,
    "agents.md": """
        from tests.sessions.test_session import make_session
        session = make_session(["hello"])
        """,
    "gateway.md": """
        from tests.sessions.test_session import make_session
        session = make_session(["hello"])
        """,
    "foreign-engines.md": """
        from sparring.tracking import LocalTracker
        from tests.report.stored_run import episode, groups
        Path("runs/teacher").mkdir(parents=True)
        recorded = groups([episode("recorded/1/a/0.0", reward=1.0, score=None)])
        tracker = LocalTracker(Path("runs/teacher"))
        tracker.log_groups(1, recorded, split="recorded")
        tracker.close()
        scorer = lambda trajectory: trajectory.reward.total
        """,
    "rewards-and-scorers.md": """
        from sparring.rewards import example
        from sparring.types import Outcome, Task
        task = Task(id="a", messages=({"role": "user", "content": "?"},), fields={"answer": "7"})
        fast = example(task, {"role": "assistant", "content": "7"})
        slow = example(task, {"role": "assistant", "content": "hm"}, {"role": "assistant", "content": "7"})
        loss = example(task, {"role": "assistant", "content": "8"}, {"role": "assistant", "content": "9"})
        solved = lambda trajectory: float(trajectory.messages[-1]["content"] == "7")
        share_of_turns_left = lambda trajectory: 1 - len(trajectory.messages) / 8
        is_well_formed = lambda trajectory: float(trajectory.messages[-1]["role"] == "assistant")
        labelled = [(fast, True), (loss, False)]
        """,
}
"""What the text of a page supposes to be there."""


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    marker: str
    code: str

    def compiled(self) -> CodeType:
        """With the line numbers of its page, and `await` allowed outside of functions."""
        source = "\n" * self.line + textwrap.dedent(self.code)
        return compile(source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("code")), found["marker"] or "", found["code"])
        for found in BLOCK.finditer(text)
    ]


def with_python() -> Iterator[Path]:
    return (page for page in PAGES if blocks(page))


def run(code: CodeType, names: dict[str, object]) -> None:
    waiting = eval(code, names)
    if inspect.iscoroutine(waiting):
        asyncio.run(waiting)


@pytest.mark.parametrize("page", with_python(), ids=lambda page: page.name)
def test_examples_run_and_what_they_assert_is_so(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name == "sandbox.md":
        try:
            open_sandbox()
        except UsageError as error:
            pytest.skip(f"no sandbox works on this machine: {error}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example", "Path": Path}
    exec(textwrap.dedent(GIVEN.get(page.name, "")), names)
    for block in blocks(page):
        if not block.marker:
            run(block.compiled(), names)


@pytest.mark.parametrize("page", with_python(), ids=lambda page: page.name)
def test_an_example_that_is_not_run_gives_a_reason_and_imports_what_is_there(page: Path) -> None:
    for block in blocks(page):
        if not block.marker or block.marker.startswith(ELSEWHERE):
            continue
        assert re.match(r"not run: \w+", block.marker), f"{page.name}, line {block.line}: {block.marker}"
        block.compiled()
        for node in ast.walk(ast.parse(textwrap.dedent(block.code))):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert [one.name for one in node.names if not hasattr(module, one.name)] == []
            elif isinstance(node, ast.Import):
                for one in node.names:
                    importlib.import_module(one.name)
