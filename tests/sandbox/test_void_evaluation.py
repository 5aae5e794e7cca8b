"""A whole evaluation of a policy that breaks the boxes of its wrong programs: it scores as if it had not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.errors import UsageError
from sparring.sandbox import open_sandbox

RECIPE = """
[model]
name = "unused"

[data]
train = "environment:other_tasks"
held_out = "environment:tasks"

[environment]
target = "environment:Coding"
max_turns = 1

[reward]
reward = "environment:reward"
scorer = "environment:scorer"
"""
ENVIRONMENT = '''
from sparring.environments import Environment, graded
from sparring.sandbox import Limits, open_sandbox
from sparring.scorers.unit_tests import fenced_code, unit_tests
from sparring.types import Task

TESTS = "import solution\\ndef test_4(): assert solution.twice(4) == 8\\ndef test_1(): assert solution.twice(1) == 2"
RIGHT = "def twice(n): return 2 * n\\nopen('answer', 'w').write('8')"
BREAKING = {
    "honest": "import os; os._exit(0)",
    "limits": "import os, resource; resource.prlimit(1, resource.RLIMIT_NPROC, (0, 0)); os._exit(0)",
    "names": "import os; os.makedirs('d/' * 15); open('d/' * 15 + 'f', 'w').close(); os.chmod('d', 0); os._exit(0)",
}

def tasks(prefix=""):
    messages = [({"role": "user", "content": f"Task {n}"},) for n in range(10)]
    return [Task(id=f"{prefix}{n}", messages=messages[n], fields={"tests": TESTS}) for n in range(10)]

def other_tasks():
    return tasks("other-")

class Coding(Environment):
    pass

scorer = unit_tests()

async def reward(trajectory):
    """The grade of the files that the program leaves."""
    sandbox = open_sandbox(limits=Limits(seconds=20.0))
    async with sandbox.session() as box:
        await box.run(["python3", "-"], stdin=fenced_code()(trajectory) or "")
        await box.write({"report.txt": "seen"})
        await box.run(["cat", "report.txt"])
        collected = await box.collect()
    verdict = await graded(sandbox, "verdict(open('artefacts/answer').read() == '8')", collected.files)
    return float(verdict.value is True)

def program(breaking):
    """Eight of ten tasks are solved; the other two break their box."""
    def act(messages):
        number = int(messages[-1]["content"].split()[-1])
        return f"```python\\n{RIGHT if number < 8 else BREAKING[breaking]}\\n```"
    return act

honest, limits, names = map(program, BREAKING)
'''


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        open_sandbox()
    except UsageError as error:
        pytest.skip(f"no sandbox works on this machine: {error}")
    monkeypatch.chdir(tmp_path)
    Path("coding").mkdir()
    Path("coding/recipe.toml").write_text(RECIPE, "utf-8")
    Path("coding/environment.py").write_text(ENVIRONMENT, "utf-8")


def evaluated(policy: str) -> tuple[float, list[float], int]:
    """Success, the reward of each task, and how many tasks were scored."""
    arguments = ["eval", "coding", "engine.type=scripted", f"engine.script=environment:{policy}", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (evaluation,) = json.loads(result.stdout)["evaluations"]
    rewards = [task["reward"] for task in evaluation["tasks"]]
    return evaluation["success"]["mean"], rewards, len(evaluation["tasks"])


@pytest.mark.usefixtures("workplace")
def test_wrong_programs_that_break_their_box_score_what_honest_wrong_programs_score() -> None:
    honest = evaluated("honest")
    assert honest == (0.8, [1.0] * 8 + [0.0] * 2, 10)
    assert evaluated("limits") == honest
    assert evaluated("names") == honest
