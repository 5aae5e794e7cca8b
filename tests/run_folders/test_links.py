"""A run folder may be a stranger's: no command follows its links to other places. The links of a run itself work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import load_config
from sparring.errors import DataError
from sparring.run_folders import RunFolder
from sparring.run_folders.family_folder import FamilyFolder, Origin
from sparring.run_folders.links import refuse_foreign_files

TINY = Path(__file__).parents[1] / "faults" / "recipe" / "recipe.toml"
COMMANDS = [
    ["report", "run"],
    ["runs", "show", "run"],
    ["runs", "copy", "run", "run.copy_to=file:///nowhere"],
    ["runs", "branch", "run"],
    ["export", "run", "out", "--push", "a/b"],
    ["export", "run@1", "out"],
    ["eval", "run"],
    ["serve", "run"],
    ["review", "run"],
    ["replay", "run"],
    ["diagnose", "run"],
    ["verify", "run"],
    ["train", "--resume", "run"],
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.json").write_text('{"my": "secret"}')
    return RunFolder.create(load_config(TINY), TINY, name="run").path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_refuse_a_run_with_a_link_to_another_place(run: Path, command: list[str]) -> None:
    (run / "evaluations").mkdir()
    (run / "evaluations" / "held_out-001.json").symlink_to(run.parent.parent / "secret.json")
    unsupervised = ["--no-supervise"] if command[0] == "train" else []
    done = CliRunner().invoke(app, [*command, *unsupervised])
    assert done.exit_code == 3, done.output
    assert "held_out-001.json is a link to" in done.output
    assert "outside of the run" in done.output
    assert '"my"' not in done.output


def test_links_to_folders_and_to_nothing_are_refused_and_links_within_a_run_work(run: Path, tmp_path: Path) -> None:
    (run / "wandb").mkdir()
    (run / "wandb" / "latest").symlink_to("../recipe")
    refuse_foreign_files(run)
    links = {"trajectories": tmp_path, "report.html": tmp_path / "absent", "up": Path(".."), "me": Path("me")}
    for name, target in links.items():
        (run / name).symlink_to(target)
        with pytest.raises(DataError, match=f"{name} is a link"):
            refuse_foreign_files(run)
        (run / name).unlink()


def test_a_run_may_be_reached_over_a_link(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "large disk"
    run.rename(moved)
    run.symlink_to(moved)
    done = CliRunner().invoke(app, ["runs", "show", "run"])
    assert done.exit_code == 0, done.output


def test_links_of_the_run_to_large_files_and_folders_work_and_others_of_this_name_do_not(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.run_folders.links.LARGE_BYTES", 10)
    (tmp_path / "large.bin").write_bytes(b"x" * 20)
    (tmp_path / "many").mkdir()
    linked = {"large.bin": {"path": "elsewhere", "bytes": 20}, "many": {"path": str(tmp_path / "many")}}
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "linked": linked}))
    (run / "recipe" / "large.bin").symlink_to(tmp_path / "large.bin")
    (run / "recipe" / "many").symlink_to(tmp_path / "many")
    refuse_foreign_files(run)
    (run / "recipe" / "large.bin").unlink()
    (run / "recipe" / "large.bin").symlink_to(tmp_path / "secret.json")  # it is smaller
    with pytest.raises(DataError, match=r"large\.bin is a link"):
        refuse_foreign_files(run)
    (run / "recipe" / "large.bin").unlink()
    (run / "recipe" / "large.bin").symlink_to(tmp_path / "missing.bin")  # reported where the file is needed
    refuse_foreign_files(run)


def test_a_pipe_does_not_make_a_command_wait(run: Path) -> None:
    os.mkfifo(run / "metrics.jsonl")
    done = CliRunner().invoke(app, ["runs", "show", "run"])
    assert done.exit_code == 3
    assert "metrics.jsonl is a pipe or a device" in done.output


def test_the_runs_of_a_family_are_checked_too(run: Path, tmp_path: Path) -> None:
    family = FamilyFolder.create(run.parent / "family", Origin.of_recipe(TINY, load_config(TINY)))
    family.add([0])
    run.rename(family.run_path(0))
    (family.run_path(0) / "trajectories").symlink_to(tmp_path)
    done = CliRunner().invoke(app, ["report", "family"])
    assert done.exit_code == 3, done.output
    assert "trajectories is a link" in done.output
