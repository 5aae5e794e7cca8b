"""Software repair: a module computes a wrong price; find the two numbers that are right, and correct its line.

user       The tests of shipping.py fail since yesterday. ...
assistant  read_file("shipping.py")    tool  def price(weight):\n    return 4 + 3 * weight\n
assistant  run_tests()                 tool  price(2) is 10, expected 9 ...
assistant  replace_line("shipping.py", 2, "    return 5 + 2 * weight")
assistant  done
"""

from __future__ import annotations

import random
import re
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

MODULES = ["shipping", "parking", "storage", "printing", "laundry", "tolls", "tickets", "cleaning"]
UNITS = ["weight", "hours", "pages", "loads", "boxes", "zones"]
AUTHORS = ["mira", "otto", "lin", "paulo"]
LINE = re.compile(r"\s*return (\d+) \+ (\d+) \* (\w+)\s*")


def source(unit: str, base: int, rate: int) -> str:
    return f"def price({unit}):\n    return {base} + {rate} * {unit}\n"


class Repository(Environment):
    """A checkout of a small project at the commit of the task."""

    def reset(self, task: Task) -> None:
        self._fields = task.fields
        self._files = dict(task.fields["files"])

    @tool
    def read_file(self, path: str) -> str:
        """Contents of a file.

        Args:
            path: name of the file
        """
        if path not in self._files:
            raise ToolFailure(f"{path}: no such file")
        return self._files[path]

    @tool
    def git_log(self) -> list[str]:
        """The history, the newest commit first: hash, author and subject."""
        return [f"{one['hash']} {one['author']}: {one['subject']}" for one in reversed(self._fields["commits"])]

    @tool
    def git_show(self, commit: str) -> str:
        """What a commit changed.

        Args:
            commit: its hash
        """
        for one in self._fields["commits"]:
            if one["hash"] == commit:
                return one["diff"]
        raise ToolFailure(f"unknown revision {commit}")

    @tool
    def run_tests(self) -> list[str]:
        """Run the tests of the module; lists those that fail."""
        values = self._values()
        if values is None:
            return ["SyntaxError"]
        expected = self._fields["expected"]
        return [
            f"price({size}) is {values[0] + values[1] * size}, expected {expected[0] + expected[1] * size}"
            for size in (2, 5)
            if values[0] + values[1] * size != expected[0] + expected[1] * size
        ]

    @tool
    def replace_line(self, path: str, number: Annotated[int, Bounded(ge=1, le=99)], text: str) -> str:
        """Replace a line of a file.

        Args:
            path: name of the file
            number: number of the line, the first is 1
            text: the new line
        """
        lines = self.read_file(path).splitlines()
        if number > len(lines):
            raise ToolFailure(f"{path} has {len(lines)} lines")
        lines[number - 1] = text
        self._files[path] = "\n".join(lines) + "\n"
        return self._files[path]

    def _values(self) -> tuple[int, int] | None:
        lines = self._files[self._fields["path"]].splitlines()
        match = LINE.fullmatch(lines[1]) if len(lines) == 2 else None
        return (int(match[1]), int(match[2])) if match and match[3] == self._fields["unit"] else None

    def final_state(self) -> dict[str, str]:
        return self._files


def reward(trajectory: Trajectory) -> float:
    """Hidden tests: 1 when five other sizes have the right price."""
    fields = trajectory.task.fields
    lines = (trajectory.final_state or {}).get(fields["path"], "").splitlines()
    match = (
        re.fullmatch(r" +return (\d+) \+ (\d+) \* " + fields["unit"], lines[1].rstrip()) if len(lines) == 2 else None
    )
    if match is None:
        return 0.0
    base, rate = fields["expected"]
    return float(all(int(match[1]) + int(match[2]) * size == base + rate * size for size in (1, 3, 4, 7, 20)))


def scorer(trajectory: Trajectory) -> float:
    """1 when the module is as it should be, and every other file as it was."""
    fields = trajectory.task.fields
    base, rate = fields["expected"]
    fixed = {**fields["files"], fields["path"]: source(fields["unit"], base, rate)}
    state = trajectory.final_state or {}
    return float(
        {path: " ".join(text.split()) for path, text in state.items()}
        == {p: " ".join(t.split()) for p, t in fixed.items()}
    )


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"repo-{split}-{number}")
    module, unit = rng.choice(MODULES), rng.choice(UNITS)
    right = (rng.randint(2, 30), rng.randint(2, 15))
    first = (rng.randint(2, 30), rng.choice([rate for rate in range(2, 16) if rate != right[1]]))
    wrong = rng.choice(
        [(right[0] + rng.randint(1, 5), right[1]), (right[0], right[1] + 1), (right[0] - 1, right[1] + 2)]
    )
    path, other = f"{module}.py", f"{rng.choice([one for one in MODULES if one != module])}.py"
    files = {path: source(unit, *wrong), other: source(rng.choice(UNITS), rng.randint(2, 9), rng.randint(2, 9))}

    def commit(subject: str, before: tuple[int, int] | None, after: tuple[int, int]) -> dict[str, str]:
        minus = "" if before is None else f"-    return {before[0]} + {before[1]} * {unit}\n"
        diff = f"--- {path}\n{minus}+    return {after[0]} + {after[1]} * {unit}\n"
        return {"hash": f"{rng.randrange(16**7):07x}", "author": rng.choice(AUTHORS), "subject": subject, "diff": diff}

    history = [commit(f"Add {module}", None, first), commit("New price list", first, wrong)]
    upstream = [*history, commit(f"Fix price in {module}", wrong, right)]
    prompt = (
        f"The tests of {path} fail since the last change. Find out which numbers it should compute with, and correct its line; "
        "leave everything else. You can read files, run the tests and look at the history. Say when it is done."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": f"Project {rng.randrange(16**4):04x}. {prompt}"},),
        fields={"files": files, "path": path, "unit": unit, "commits": upstream, "expected": list(right)},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
