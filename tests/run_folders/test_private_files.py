"""Run folders, families and copies can be read by their owner only, whatever the umask is. Exports follow the umask."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import load_config
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.run_folders.family_folder import FamilyFolder, Origin
from sparring.runtime.private_files import create_folder, open_private
from sparring.serving.record import Recording
from sparring.trainer import MultiTurnRLTrainer

TINY = Path(__file__).parents[1] / "faults" / "recipe"


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Each file gets the mode that its writer asks for."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def modes(path: Path) -> dict[str, str]:
    """Return the permissions of a path and of everything below it, except for links."""
    return {
        str(one.relative_to(path.parent)): stat.filemode(one.lstat().st_mode)
        for one in (path, *path.rglob("*"))
        if not one.is_symlink()
    }


def shared(path: Path) -> dict[str, str]:
    return {name: mode for name, mode in modes(path).items() if mode[4:] != "------"}


@pytest.mark.usefixtures("no_umask")
def test_a_run_and_its_copy_can_be_read_by_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [f"run.copy_to=file://{tmp_path}/store", "schedule.save_every=1", "schedule.val_every=1"]
    with MultiTurnRLTrainer(TINY, overrides=overrides, name="run", quiet=True, check=False) as trainer:
        trainer.train()
        inside = shared(Path("runs/run"))  # the ledger is open, and has files next to it
    for command in (["eval", "run"], ["report", "run"], ["runs", "show", "run"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    found = modes(Path("runs/run"))
    assert {"run/ledger.sqlite", "run/report.html", "run/metrics.jsonl", "run/run.toml"} <= found.keys()
    assert inside == shared(Path("runs/run")) == {}
    assert len(modes(Path("store"))) > 3
    assert shared(Path("store")) == {}
    done = CliRunner().invoke(app, ["runs", "fetch", f"file://{tmp_path}/store/run", "--runs-dir", "fetched"])
    assert done.exit_code == 0, done.output
    assert shared(Path("fetched/run")) == {}


@pytest.mark.usefixtures("no_umask")
def test_exports_and_reports_in_a_chosen_place_follow_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with MultiTurnRLTrainer(TINY, overrides=["schedule.max_steps=1"], name="run", quiet=True, check=False) as trainer:
        trainer.train()
    for command in (["export", "run", "out", "--merge"], ["report", "run", "--out", "page.html"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    exported = modes(Path("out"))
    assert exported["out"] == "drwxrwxrwx"
    assert set(exported.values()) == {"drwxrwxrwx", "-rw-rw-rw-"}
    assert modes(Path("page.html"))["page.html"] == "-rw-rw-rw-"


@pytest.mark.usefixtures("no_umask")
def test_a_family_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    recipe = TINY / "recipe.toml"
    FamilyFolder.create(tmp_path / "family", Origin.of_recipe(recipe, load_config(recipe)))
    assert shared(tmp_path / "family") == {}
    assert stat.filemode((tmp_path / "family").stat().st_mode) == "drwx------"


@pytest.mark.usefixtures("no_umask")
def test_a_recording_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    async def open_and_close() -> None:
        async with Recording(tmp_path / "new" / "out", ScriptedMessages(["a"], name="a"), model="a"):
            pass

    asyncio.run(open_and_close())
    assert {"new/out/ledger.sqlite", "new/out/manifest.json"} <= modes(tmp_path / "new").keys()
    assert shared(tmp_path / "new") == {}


def test_the_umask_of_the_process_stays_while_private_files_are_written(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        create_folder(tmp_path / "a" / "b", parents=True)
        with open_private(tmp_path / "a" / "b" / "file", "w") as file:
            other = threading.Thread(target=lambda: (tmp_path / "other").write_text(""))
            other.start()
            other.join()
            file.write("é")
    finally:
        kept = os.umask(before)
    assert kept == 0o022
    assert modes(tmp_path / "a") == {"a": "drwx------", "a/b": "drwx------", "a/b/file": "-rw-------"}
    assert modes(tmp_path / "other") == {"other": "-rw-r--r--"}
