"""The reward guide, step by step as it stands, on a recipe small enough to do so."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from tests.foreign import EXPERT, ExpertEndpoint, serving

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "reward-guide.md").read_text("utf-8")
SMALL = {
    "num_demonstrations = 4096": "num_demonstrations = 8",
    "steps = 120": "steps = 1",
    "batch_size = 32": "batch_size = 8",
    "global_batch_size = 16": "global_batch_size = 2",
    "group_size = 8": "group_size = 2",
    "val_every = 10": "val_every = 0",
    "[evaluation]": "[evaluation]\nallow_zero_baseline = true\neval_num_tasks = 4\nval_num_tasks = 2",
}
"""What of pointer chase is made smaller, since the guide is about the order of steps."""


def commands() -> list[list[str]]:
    found = re.findall(r"^    sparring (.+)$", GUIDE, flags=re.MULTILINE)
    assert len(found) >= 15
    return [shlex.split(line) for line in found]


def put_a_small_recipe_in_its_place(folder: Path) -> None:
    """The guide's recipe is the reader's own; what `init` writes has a model that takes minutes."""
    shutil.rmtree(folder)
    shutil.copytree(ROOT / "recipes" / "pointer_chase", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "expert.py").write_text(EXPERT, "utf-8")
    recipe = (folder / "recipe.toml").read_text("utf-8")
    for old, new in SMALL.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (folder / "recipe.toml").write_text(recipe, "utf-8")


def test_each_command_of_the_guide_does_its_step_on_the_run_that_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEY", "none")
    with serving(ExpertEndpoint(tmp_path / "upstream").start) as endpoint:
        for command in commands():
            stands_for = {
                "openai:MODEL@URL": f"openai:expert@{endpoint.base_url}",
                "schedule.max_steps=50": "schedule.max_steps=1",
            }
            arguments = [stands_for.get(one, one) for one in command]
            if arguments[0] == "train":
                arguments.append("--no-supervise")
            result = CliRunner().invoke(app, arguments)
            # 5 is a verdict: a tiny model that learned nothing may fail a check.
            assert result.exit_code in ((0, 5) if arguments[0] in ("check", "review") else (0,)), (
                command,
                result.output,
            )
            if arguments[0] == "init":
                put_a_small_recipe_in_its_place(Path(arguments[1]))
    made = {path.name for path in Path("runs").iterdir()}
    assert made == {"desk-scorer", "desk-baseline", "desk-reference", "desk-first"}
    # What steps 7 and 8 read is what step 6 trained.
    assert (Path("runs") / "desk-first" / "evaluations" / "held_out-001.json").exists()


def test_every_run_that_a_step_reads_was_named_by_a_step_before() -> None:
    named: set[str] = set()
    for command in commands():
        assert {one.removeprefix("runs/") for one in command if one.startswith("runs/")} <= named, command
        if "--name" in command:
            named.add(command[command.index("--name") + 1])
