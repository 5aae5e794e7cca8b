"""docs/strangers-recipes.md states which commands run code of a recipe or a run folder. Each is run here, with code that leaves a
mark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.report.test_live import watched

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "faults" / "recipe"
PAGE = ROOT / "docs" / "strangers-recipes.md"
SECONDS = 120.0

RUNS_NOTHING = [
    "config batch",
    "diagnose runs/run",
    "doctor",
    "eval --compare runs/run runs/run",
    "plan recipe model.name=qwen3-0.6b --gpu H100",
    "report runs/run",
    "runs branch runs/run --from 2 --name branch --no-train schedule.max_steps=4",
    "runs copy runs/run run.copy_to=file://{folder}/others",
    "runs erase runs/run --task t0 --yes",
    "runs fetch file://{folder}/copies/run --runs-dir fetched",
    "runs list",
    "runs prune runs/run --yes",
    "runs show runs/run --all",
    "runs stop runs/run",
    "verify runs/run",
]
RUNS_CODE = [
    "bootstrap recipe --teacher expert --out demonstrations",
    "check recipe --only environment",
    "control runs/run",
    "engine recipe --port 0",
    "eval runs/run",
    "export runs/run exported --merge",
    "learner recipe --port 0",
    "replay runs/run",
    "replay runs/run --training",
    "review runs/run",
    "serve runs/run --port 0",
    "train recipe --name second --no-check",
    "train recipe --dry-run",
    "train --resume runs/run schedule.max_steps=3",
]


@dataclass(frozen=True)
class Stranger:
    """A folder with a recipe and a run of it, whose code writes to `mark` wherever Python could import it."""

    folder: Path
    mark: Path

    def run(self, command: str) -> tuple[str, int, bool]:
        """Run `sparring` in the folder, and end it once code of the folder has run. Return its output, its exit code, and
        whether code ran."""
        self.mark.unlink(missing_ok=True)
        words = command.format(folder=self.folder).split()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparring", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and not (self.mark.exists() and "--name run " not in command):
            assert time.monotonic() < deadline, f"sparring {command} does not end"
            time.sleep(0.05)
        process.terminate()
        output, _ = process.communicate(timeout=SECONDS)
        return output, process.returncode, self.mark.exists()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    folder = tmp_path_factory.mktemp("stranger")
    mark = tmp_path_factory.mktemp("mark") / "ran"
    trap = f"\nopen({str(mark)!r}, 'a').write('ran ')\n"
    shutil.copytree(TINY, folder / "recipe", ignore=shutil.ignore_patterns("__pycache__", "owner.py"))
    with (folder / "recipe" / "tiny.py").open("a") as file:
        file.write(f"\n\ndef scorer(trajectory):\n    return reward(trajectory)\n{trap}")
    recipe = folder / "recipe" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("[reward]", '[reward]\nscorer = "tiny:scorer"'))
    made = Stranger(folder, mark)
    output, _, has_run = made.run("train recipe --name run --no-check schedule.max_steps=2 schedule.save_every=1")
    assert has_run, output
    made.run("runs copy runs/run run.copy_to=file://{folder}/copies")
    # Names that Python or a library imports by itself, where a command works and in the folders that it reads.
    for place in (folder, folder / "recipe", folder / "runs" / "run", folder / "runs" / "run" / "recipe"):
        for name in ("sitecustomize", "usercustomize", "conftest", "json", "orjson", "numpy", "rich"):
            (place / f"{name}.py").write_text(trap)
    return made


@pytest.mark.parametrize("command", RUNS_NOTHING)
def test_a_command_that_only_reads_runs_no_code_of_the_folder(stranger: Stranger, command: str) -> None:
    output, code, has_run = stranger.run(command)
    assert not has_run, output
    assert code == (2 if command.startswith("runs stop") else 0), output  # it has read what it shows


def test_watching_runs_no_code_of_the_folder(stranger: Stranger) -> None:
    stranger.mark.unlink(missing_ok=True)
    with watched(stranger.folder / "runs" / "run"):
        pass
    assert not stranger.mark.exists()


@pytest.mark.parametrize("command", RUNS_CODE)
def test_the_other_commands_run_code_of_the_folder(stranger: Stranger, command: str, tmp_path: Path) -> None:
    # In a copy, because the command is ended when the code has run.
    shutil.copytree(stranger.folder, tmp_path / "stranger")
    output, _, has_run = Stranger(tmp_path / "stranger", stranger.mark).run(command)
    assert has_run, output


def test_the_page_lists_exactly_these_commands() -> None:
    text = PAGE.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `sparring ")]
    listed = {
        command: row.rsplit("|", 2)[1].strip()
        for row in rows
        for command in re.findall(r"`sparring ([a-z -]+?)(?= [A-Z]|`)", row.split("|")[1])
    }
    tested = {"watch"}
    for commands, answer in ((RUNS_NOTHING, "no"), (RUNS_CODE, "yes")):
        for command in commands:
            names = [one for one in listed if command == one or command.startswith(f"{one} ")]
            assert names, f"{command} is not on the page"
            name = max(names, key=len)
            assert listed[name].startswith(answer), command
            tested.add(name)
    assert tested == set(listed)
