"""Whatever happens while a checkpoint is written, what is loaded afterwards is whole: the one before, or the new one."""

from __future__ import annotations

import builtins
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import DataError
from sparring.training import checkpoint_files
from sparring.training.checkpoint_files import find_best, find_newest, prune, verify, write

CONTENT = {"weights.safetensors": 900, "optimizer.safetensors": 1800, "optimizer.json": 20, "state.json": 60}


def fill(seed: int) -> Callable[[Path], None]:
    def filled(folder: Path) -> None:
        for name, size in CONTENT.items():
            with (folder / name).open("wb") as file:
                file.write(random.Random(f"{seed} {name}").randbytes(size))

    return filled


def seed_of(checkpoint: Path) -> int:
    """Which `fill` wrote it, after it was found whole."""
    verify(checkpoint)
    for seed in range(10):
        if (checkpoint / "state.json").read_bytes() == random.Random(f"{seed} state.json").randbytes(60):
            return seed
    raise AssertionError("of no fill")


class Killed(BaseException):
    """Nothing after it runs, as after kill -9: what catches Exception does not see it."""


class Operations:
    """Stands between the code and the disk: counts what reaches it, and fails at one of them."""

    NAMES = ("fsync", "rename", "replace", "mkdir", "unlink", "remove", "rmdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder = monkeypatch, folder
        self.synced: set[str] = set()
        """Files whose content has reached the disk, by what they are called now."""

    @contextmanager
    def failing(self, at: int, failure: BaseException) -> Iterator[list[str]]:
        """The names of the operations, of which number `at` (from 0) fails before it does anything."""
        seen: list[str] = []

        def passed(name: str, real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            seen.append(name)
            if len(seen) - 1 == at:
                raise failure
            if name == "fsync":
                self.synced.add(os.readlink(f"/proc/self/fd/{arguments[0]}"))
            result = real(*arguments, **options)
            if name in ("rename", "replace"):
                before, after = map(str, arguments[:2])
                self.synced = {after + path[len(before) :] if path.startswith(before) else path for path in self.synced}
            return result

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            is_ours = "w" in mode and str(file).startswith(str(self._folder))
            return (
                passed("open", real_open, file, mode, *arguments, **options)
                if is_ours
                else real_open(file, mode, *arguments, **options)
            )

        real_open = builtins.open
        with self._patch.context() as patch:
            for name in self.NAMES:
                real = getattr(os, name)
                patch.setattr(os, name, lambda *a, _name=name, _real=real, **o: passed(_name, _real, *a, **o))
            patch.setattr("io.open", opened)
            yield seen

    def lose_what_was_not_synced(self) -> None:
        """As after a power cut: of a file that was not forced to the disk, half is there."""
        for path in self._folder.rglob("*"):
            if path.is_file() and str(path) not in self.synced:
                content = path.read_bytes()
                path.write_bytes(content[: len(content) // 2])


@pytest.fixture
def operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operations:
    return Operations(monkeypatch, tmp_path / "checkpoints")


def save_and_prune(folder: Path, step: int) -> None:
    write(folder, step, fill(step))
    prune(folder, step, keep=1)


def num_operations(operations: Operations, folder: Path) -> int:
    with operations.failing(-1, Killed()) as seen:
        save_and_prune(folder, 2)
    assert {"open", "fsync", "rename", "mkdir", "unlink", "rmdir"} <= set(seen)
    return len(seen)


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["killed", "power cut"])
def test_a_crash_at_any_operation_of_a_save_leaves_a_whole_checkpoint(
    tmp_path: Path, operations: Operations, is_power_cut: bool
) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, 1, fill(1))
    shutil.copytree(folder, tmp_path / "before")
    found = []
    for at in range(num_operations(operations, folder)):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "before", folder)
        operations.synced = {str(path) for path in folder.rglob("*")}
        with pytest.raises(Killed), operations.failing(at, Killed()):
            save_and_prune(folder, 2)
        if is_power_cut:
            operations.lose_what_was_not_synced()
        found.append(seed_of(find_newest(folder)))
        # And the run that goes on can save again.
        save_and_prune(folder, 2)
        assert seed_of(find_newest(folder)) == 2
        assert [path.name for path in folder.iterdir()] == ["000002"]
    # First the old one, from some operation on the new one, and never back.
    assert found == sorted(found)
    assert set(found) == {1, 2}


def test_a_crash_while_the_same_step_is_saved_again_leaves_one_of_the_two(
    tmp_path: Path, operations: Operations
) -> None:
    folder = tmp_path / "checkpoints"
    for at in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, 5, fill(1))
        with operations.failing(at, Killed()) as seen:
            try:
                write(folder, 5, fill(2))
            except Killed:
                assert seed_of(find_newest(folder)) in (1, 2)
            else:
                break
    assert at == len(seen) > 10


@pytest.mark.parametrize("number", [5, 28, 24, 30], ids=["EIO", "ENOSPC", "EMFILE", "EROFS"])
def test_an_error_at_any_operation_of_a_save_is_raised_and_costs_nothing_else(
    tmp_path: Path, operations: Operations, number: int
) -> None:
    folder = tmp_path / "checkpoints"
    write(folder, 1, fill(1))
    num = num_operations(operations, folder)
    num_raised = 0
    for at in range(num):
        shutil.rmtree(folder)
        write(folder, 1, fill(1))
        with operations.failing(at, OSError(number, os.strerror(number))):
            try:
                save_and_prune(folder, 2)
            except OSError:
                num_raised += 1
        assert seed_of(find_newest(folder)) in (1, 2)
        save_and_prune(folder, 2)
        assert seed_of(find_newest(folder)) == 2
    # The rest are of tidying up, which the next save does again.
    assert num_raised >= num // 2


def test_five_hundred_flipped_bits_and_truncations_are_found_and_the_one_before_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1, fill(1))
    checkpoint = write(tmp_path, 2, fill(2))
    rng = random.Random(8)
    files = sorted(checkpoint.iterdir())
    for number in range(500):
        path = rng.choice(files)
        content = path.read_bytes()
        if number % 5 == 0:
            damaged = content[: rng.randrange(len(content))]
        else:
            place = rng.randrange(len(content))
            damaged = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        path.write_bytes(damaged)
        # White space in the manifest means nothing; whatever it is, what is loaded is whole.
        if not (path.name == "manifest.json" and _means_the_same(content, damaged)):
            with pytest.raises(DataError):
                verify(checkpoint)
            assert seed_of(find_newest(tmp_path)) == 1
        path.write_bytes(content)
    assert "is skipped" in caplog.text
    assert seed_of(find_newest(tmp_path)) == 2


def _means_the_same(content: bytes, damaged: bytes) -> bool:
    try:
        return checkpoint_files.json.loads(content) == checkpoint_files.json.loads(damaged)
    except ValueError:
        return False


def test_swapped_files_and_files_of_another_step_are_found(tmp_path: Path) -> None:
    first, second = write(tmp_path, 1, fill(1)), write(tmp_path, 2, fill(2))
    (second / "weights.safetensors").write_bytes((first / "weights.safetensors").read_bytes())
    with pytest.raises(DataError, match=r"weights.safetensors does not have the hash"):
        verify(second)


def test_keeping_one_always_leaves_a_whole_one(tmp_path: Path) -> None:
    for step in range(1, 6):
        save_and_prune(tmp_path, step)
        assert seed_of(find_newest(tmp_path)) == step
        assert len(list(tmp_path.iterdir())) == 1


LIMITED = """
import resource, sys
from pathlib import Path
from tests.training.test_checkpoint_files import fill, find_newest, seed_of, write
folder = Path(sys.argv[1])
which, limit = getattr(resource, sys.argv[2]), int(sys.argv[3])
soft, hard = resource.getrlimit(which)
resource.setrlimit(which, (limit, hard))
try:
    write(folder, 2, fill(2))
except OSError as error:
    print(error.errno)
resource.setrlimit(which, (soft, hard))
assert seed_of(find_newest(folder)) == 1
write(folder, 2, fill(2))
assert seed_of(find_newest(folder)) == 2
"""


@pytest.mark.parametrize(("limit", "value", "number"), [("RLIMIT_FSIZE", 1000, 27), ("RLIMIT_NOFILE", 3, 24)])
def test_the_system_itself_refuses_to_write_and_allows_it_again(
    tmp_path: Path, limit: str, value: int, number: int
) -> None:
    assert hasattr(resource, limit)
    write(tmp_path, 1, fill(1))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", LIMITED, str(tmp_path), limit, str(value)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(number)]


def test_the_best_by_validation_stays_next_to_the_newest(tmp_path: Path) -> None:
    # Two are kept. Of equals the earlier is the best: 2 until 4 scores more, then 4, although 6 is as good.
    scores: dict[int, float] = {}
    kept = []
    for step, score in ((1, 0.1), (2, 0.5), (3, 0.5), (4, 0.9), (5, None), (6, 0.9), (7, 0.2), (8, 0.0)):
        write(tmp_path, step, fill(step))
        prune(tmp_path, step, keep=2, pinned=find_best(tmp_path, scores))
        kept.append(sorted(int(path.name) for path in tmp_path.iterdir()))
        if score is not None:  # a checkpoint is validated after it was saved
            scores[step] = score
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [4, 5, 6], [4, 6, 7], [4, 7, 8]]
    assert find_best(tmp_path, scores) == tmp_path / "000004"
    # One of which nothing is left but files is none.
    (tmp_path / "000004" / "manifest.json").unlink()
    assert find_best(tmp_path, scores) == tmp_path / "000007"
    assert find_best(tmp_path, {5: 1.0}) is None
