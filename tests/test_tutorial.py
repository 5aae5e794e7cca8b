"""The tutorials: their files pass the check, and their commands run up to a step of training. `make tutorials` runs all of it."""

import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from tests.tutorials import BLOCK, PAGES, Command, File, read_steps

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def steps_before(page: Path, name: str) -> Iterator[File | Command]:
    return takewhile(lambda step: isinstance(step, File) or step.name != name, read_steps(page))


@pages
def test_the_files_of_a_tutorial_fit_each_other(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a reader does before the check, and the quick part of the check."""
    monkeypatch.chdir(tmp_path)
    for step in steps_before(page, "check"):
        if isinstance(step, File):
            step.write(tmp_path)
        elif step.words[0] == "sparring":
            ran = CliRunner().invoke(app, step.words[1:])
            assert ran.exit_code == 0, ran.output
        else:
            assert step.run(tmp_path).returncode == 0
    (check,) = (step for step in read_steps(page) if isinstance(step, Command) and step.name == "check")
    ran = CliRunner().invoke(app, [*check.words[1:], "--only", "policies", "--only", "data"])
    assert ran.exit_code == 0, ran.output
    assert "0 errors, 0 warnings" in ran.output


@pages
def test_a_tutorial_runs_up_to_a_step_of_training(page: Path, tmp_path: Path) -> None:
    for step in [*steps_before(page, "train"), one_command(page, "train")]:
        if isinstance(step, File):
            step.write(tmp_path)
            continue
        ran: subprocess.CompletedProcess[str] = step.run(tmp_path, is_small=True)
        assert ran.returncode == 0, f"{step.text}\n{ran.stdout}\n{ran.stderr}"
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints").is_dir()


@pages
def test_every_command_of_a_tutorial_exists(page: Path) -> None:
    commands = [step for step in read_steps(page) if isinstance(step, Command)]
    names = [step.name for step in commands if step.words[0] == "sparring"]
    order = ["check", "train", "control", "eval", "report", "export"]
    assert [name for name in names if name in order] == order
    for name in names:
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


@pages
def test_each_file_of_a_tutorial_is_marked_and_no_other_block_is_left(page: Path) -> None:
    blocks = [(found["path"], found["language"]) for found in BLOCK.finditer(page.read_text("utf-8"))]
    assert {language for path, language in blocks if path is None} <= {"sh", "text"}
    assert [path for path, language in blocks if path and language not in ("python", "toml")] == []


def one_command(page: Path, name: str) -> Command:
    (found,) = (step for step in read_steps(page) if isinstance(step, Command) and step.name == name)
    return found
