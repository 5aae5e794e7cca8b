"""A run needs nothing but its folder: code that reads files next to itself finds them in every command, and after a crash."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sparring.checks.running.run import Options, check_recipe
from sparring.cli import app
from sparring.errors import UsageError
from sparring.run_folders import RunFolder
from sparring.runtime.faults import Fault
from sparring.serving.serve import load_served
from sparring.trainer import MultiTurnRLTrainer
from tests.faults.training import RECIPE, Training

READING = """
import importlib.resources
from pathlib import Path

import words
from tiny import Echo
from tiny import reward as tiny_reward

HERE = Path(__file__).parent
AT_IMPORT = (HERE / "prompts" / "x.txt").read_text()


class Reading(Echo):
    def reset(self, task):
        word = importlib.resources.files(words).joinpath("word.txt").read_text()
        text = (HERE / "prompts" / "deep" / "y.txt").read_text()
        return [{"role": "user", "content": f"{AT_IMPORT}{word}{text}" + task.messages[0]["content"]}]


def reward(trajectory):
    assert (HERE / "prompts" / "z.txt").read_text() == "z"
    return tiny_reward(trajectory)
"""


def make_recipe(folder: Path) -> Path:
    for name, content in {
        "prompts/x.txt": "x",
        "prompts/deep/y.txt": "y",
        "words/__init__.py": "",
        "words/word.txt": "w",
        "held_out.jsonl": '{"id": "h", "prompt": "h?"}\n',
        "reading.py": READING,
        "tiny.py": RECIPE.with_name("tiny.py").read_text(),
        "recipe.toml": RECIPE.read_text()
        .replace("tiny:Echo", "reading:Reading")
        .replace("tiny:reward", "reading:reward"),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "z.txt").write_text("z")
    (folder / "prompts" / "z.txt").symlink_to(folder / "z.txt")
    return folder / "recipe.toml"


def sparring(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result


def test_every_command_on_a_run_works_without_the_recipes_folder_also_after_a_kill(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path / "toy")
    # Replaying plays in this process, all else in a worker.
    overrides = ("environment.workers=1", "data.held_out=held_out.jsonl", "schedule.max_steps=3")
    training = Training(tmp_path / "runs", overrides, recipe)
    assert training.over(Fault("step.claimed", "kill", at=3)) == -signal.SIGKILL
    shutil.rmtree(recipe.parent)
    run = training.run

    assert training.over(resume=True) == 0
    assert RunFolder(run).status()["status"] == "completed"
    moved = Path(shutil.move(run, tmp_path / "moved"))
    evaluations = json.loads(sparring("eval", str(moved), "--policy", "tuned", "--json").stdout)["evaluations"]
    assert [row["tasks"][0]["id"] for row in evaluations] == ["h", "h"]
    sparring("replay", str(moved))
    sparring("replay", str(moved), "--training")
    sparring("report", str(moved))
    sparring("export", str(moved), str(tmp_path / "exported"), "--merge")
    policy, name, _ = load_served(str(moved))
    assert name == "moved"
    assert policy.snapshot().fingerprint


def test_a_changed_prompt_is_reported_at_a_resume_and_changed_code_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path / "toy")
    training = Training(tmp_path / "runs", ("schedule.max_steps=1",), recipe)
    assert training.over() == 0
    run = training.run
    (run / "recipe" / "prompts" / "x.txt").write_text("another")
    training.over(resume=True)
    assert RunFolder(run).manifest()["resumed"][-1]["changes"].keys() >= {"other_files.prompts/x.txt"}
    with (run / "recipe" / "words" / "__init__.py").open("a") as file:
        file.write("MORE = 1\n")
    with MultiTurnRLTrainer.attach(run) as trainer, pytest.raises(UsageError, match=r"words/__init__\.py was"):
        trainer.train(resume=True)


def test_the_check_names_files_that_a_run_would_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path / "toy")
    monkeypatch.chdir(recipe.parent)
    (recipe.parent / ".secret").write_text("s")
    (tmp_path / "outside.txt").write_text("o")
    code = READING + (
        '\nSECRET = (HERE / ".secret").read_text()\nwith open("prompts/x.txt") as file:\n    RELATIVE = file.read()\n'
        'with open("../outside.txt") as file:\n    OUTSIDE = file.read()\n'
    )
    (recipe.parent / "reading.py").write_text(code)
    found = check_recipe(recipe, Options(families=("files",))).findings
    assert [one.symptom for one in found] == [
        "the recipe's code reads .secret, which a run folder does not contain.",
        "the recipe's code reads x.txt, outside.txt by a path relative to the working folder.",
    ]
    line = len(READING.splitlines()) + 2
    assert [file["line"] for one in found for file in one.evidence["files"]] == [
        f"{recipe.with_name('reading.py')}:{line}",
        f"{recipe.with_name('reading.py')}:{line + 1}",
        f"{recipe.with_name('reading.py')}:{line + 3}",
    ]
