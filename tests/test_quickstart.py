"""What `sparring quickstart` refuses before it trains. tests/installs/test_wheel.py runs it."""

import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sparring.cli import app
from sparring.cli.quickstart import FILES

CHASE = Path(__file__).parents[1] / "recipes" / "pointer_chase"


def quickstart(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quickstart", *arguments], terminal_width=200)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_setting_without_a_folder_changes_the_recipe_of_the_default_folder() -> None:
    refused = quickstart("schedule.max_step=1")
    assert refused.exit_code == 2
    assert "schedule.max_steps" in refused.output
    assert sorted(path.name for path in Path("quickstart").iterdir()) == sorted(FILES)


def test_a_folder_with_other_files_is_left_alone() -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    refused = quickstart("mine")
    assert refused.exit_code == 2
    assert "mine contains files but no recipe.toml" in refused.output
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]


def test_a_recipe_that_is_there_is_used_as_it_is() -> None:
    shutil.copytree(CHASE, "mine", ignore=shutil.ignore_patterns("__pycache__"))
    text = Path("mine/recipe.toml").read_text().replace("[run]", "[run]\nnonsense = 1")
    Path("mine/recipe.toml").write_text(text)
    refused = quickstart("mine")
    assert refused.exit_code == 2
    assert "run.nonsense" in refused.output
    assert Path("mine/recipe.toml").read_text() == text


def test_a_recipe_without_a_warm_start_has_no_control_and_is_refused() -> None:
    shutil.copytree(CHASE, "mine", ignore=shutil.ignore_patterns("__pycache__"))
    text = Path("mine/recipe.toml").read_text()
    head, _, rest = text.partition("[warm_start]")
    Path("mine/recipe.toml").write_text(head + "[batch]" + rest.partition("[batch]")[2])
    refused = quickstart("mine")
    assert refused.exit_code == 2
    assert "has no [warm_start]" in refused.output
    assert not Path("runs").exists()
