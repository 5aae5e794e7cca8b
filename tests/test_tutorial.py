"""The tutorial: its files fit each other, and its commands exist. `make tutorials` runs all of it."""

from pathlib import Path

from typer.testing import CliRunner

from sparring.cli import app
from tests.tutorials import read_commands, read_files, write_files


def test_the_files_of_the_tutorial_fit_each_other(tmp_path: Path) -> None:
    assert list(read_files()) == ["environment.py", "model.py", "recipe.toml"]
    write_files(tmp_path)
    ran = CliRunner().invoke(app, ["check", str(tmp_path / "lockers"), "--only", "policies", "--only", "data"])
    assert ran.exit_code == 0, ran.output
    assert "0 errors, 0 warnings" in ran.output


def test_every_command_of_the_tutorial_exists() -> None:
    commands = [command.split() for command in read_commands()]
    assert [words[0] for words in commands] == ["sparring"] * len(commands)
    names = [words[1] for words in commands]
    assert names == ["check", "train", "control", "eval", "report", "diagnose", "export"]
    for name in names:
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0
