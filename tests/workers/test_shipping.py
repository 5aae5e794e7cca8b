"""The recipe's files on other machines: with their mode, and with a clear error on the side where something fails."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from sparring.errors import UsageError
from sparring.workers import Code
from sparring.workers.shipping import KEPT_FOLDERS, note_use, store
from tests.workers.machine import Announced, connected_pool, listening_pool, machine
from tests.workers.test_machines import copied_recipe, listening
from tests.workers.test_workers import CODE


def is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)


def test_an_executable_file_is_executable_on_the_worker(tmp_path: Path) -> None:
    folder = copied_recipe(tmp_path / "recipe")
    script = folder / "run.sh"
    script.write_text("#!/bin/sh\n")
    stored = tmp_path / "cache" / "sparring" / "recipes"
    code: Code = {**CODE, "folder": str(folder)}
    with connected_pool(code, "--processes", "1", cache=tmp_path / "cache"):
        (first,) = stored.iterdir()
    assert not is_executable(first / "run.sh")
    # The content is the same, so that only the mode differs.
    script.chmod(0o755)
    own = shutil.copytree(first, tmp_path / "own")
    with connected_pool(code, "--processes", "1", "--recipe", str(own), cache=tmp_path / "cache") as (_, one):
        one.wait_for(f"{own} is not used, because its files differ")
    (second,) = set(stored.iterdir()) - {first}
    assert is_executable(second / "run.sh")
    assert not is_executable(second / "shop.py")
    with connected_pool(code, "--processes", "1", cache=tmp_path / "cache") as (_, one):
        assert "has the files of the run" in one.output


def test_the_cache_keeps_the_folders_that_were_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def stored(number: int, *, days_ago: float) -> Path:
        content = str(number).encode()
        entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "executable": False}
        folder = store({"a.py": entry}, {"a.py": content})
        when = time.time() - days_ago * 24 * 3600
        os.utime(folder, (when, when))
        return folder

    folders = [stored(number, days_ago=40 - number) for number in range(KEPT_FOLDERS)]
    note_use(folders[0])
    newest = stored(100, days_ago=0)
    assert {folder for folder in folders if not folder.exists()} == {folders[1]}
    assert newest.exists()

    recent = [stored(200 + number, days_ago=0.5) for number in range(KEPT_FOLDERS + 2)]
    stored(300, days_ago=0)
    assert [folder for folder in (*recent, folders[0]) if not folder.exists()] == []
    assert [folder for folder in folders[1:] if folder.exists()] == []


def test_a_worker_that_cannot_store_the_files_ends_with_what_to_do(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("not a folder")
    announced = Announced()
    with (
        listening(listening_pool(CODE, announced), announced) as address,
        machine(address, "--processes", "1", "--wait", "2", cache=cache) as one,
    ):
        assert one.wait() == 4
    stored = cache / "sparring" / "recipes"
    assert f"the recipe's files cannot be stored in {stored}: [Errno 20] Not a directory" in one.output
    assert "Free space, or set XDG_CACHE_HOME" in one.output
    assert "no run" not in one.output


def test_a_file_that_was_deleted_from_the_runs_folder_is_named_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied_recipe(tmp_path / "recipe")
    note = folder / "z.txt"
    note.write_text("content")
    announced = Announced()
    with listening(listening_pool({**CODE, "folder": str(folder)}, announced), announced) as address:
        note.unlink()
        with machine(address, "--processes", "1", "--wait", "2", cache=tmp_path / "cache") as one:
            assert one.wait() == 4
    cause = f"cannot be sent to workers: {note}: No such file or directory. Restore it"
    assert cause in one.output
    assert cause in caplog.text
    assert not (tmp_path / "cache").exists()


def test_a_name_with_a_backslash_is_an_error_of_the_run(tmp_path: Path) -> None:
    folder = copied_recipe(tmp_path / "recipe")
    (folder / "a\\b.txt").write_text("")
    pool = listening_pool({**CODE, "folder": str(folder)}, Announced())
    with pytest.raises(UsageError, match=r"contains 'a\\\\b.txt'. A file with a backslash in its path cannot be sent"):
        asyncio.run(asyncio.wait_for(pool.wait_until_ready(), 20))
    asyncio.run(pool.aclose())
