"""A warning comes before a disk is full, and a checkpoint that cannot fit is not begun."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.errors import DiskError
from sparring.trainer import MultiTurnRLTrainer
from sparring.training.disk_space import Room, count_remaining

TINY = Path(__file__).parents[1] / "faults" / "recipe"


@pytest.mark.parametrize(
    ("num_there", "num_saves", "expected"),
    [
        (0, 100, 4),  # two that are kept, the best, and the next before the oldest goes
        (1, 100, 3),
        (3, 100, 1),
        (4, 100, 1),  # one goes as each comes, and the next comes first
        (9, 100, 1),
        (0, 2, 2),  # no more than are written
    ],
)
def test_as_many_checkpoints_are_to_come_as_are_kept_and_not_there(
    num_there: int, num_saves: int, expected: int
) -> None:
    assert count_remaining(keep=2, num_saves=num_saves, num_there=num_there) == expected


@pytest.mark.parametrize(
    ("free", "to_come", "fits", "is_reported"),
    [
        (400, 4, True, False),
        (399, 4, True, True),
        (199, 1, True, True),  # episodes and ledger grow too: twice the next one is wanted always
        (200, 1, True, False),
        (100, 1, True, True),
        (99, 1, False, True),
    ],
)
def test_a_shortage_is_reported_before_it_is_one(free: int, to_come: int, fits: bool, is_reported: bool) -> None:
    room = Room(path=Path("runs/a"), free_bytes=free, checkpoint_bytes=100, num_to_come=to_come)
    found = room.finding(step=3)
    assert (found is not None) == is_reported
    if fits:
        room.check()
    else:
        with pytest.raises(
            DiskError, match=r"runs/a has 99 bytes free, but a checkpoint takes 100 bytes: .* Free up space"
        ):
            room.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill_up(disk: Path, *, leaving: int) -> Path:
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - leaving))
    return filler


def resumed(run: Path) -> int:
    with MultiTurnRLTrainer.attach(run, overrides=["schedule.max_steps=2"]) as trainer:
        result = trainer.train(resume=True)
        assert result is not None
        return result.step


def test_a_run_without_room_for_one_checkpoint_does_not_begin_and_one_that_will_be_short_reports_it(
    small_disk: Path, tmp_path: Path
) -> None:
    overrides = [f"run.runs_dir={tmp_path}", "schedule.max_steps=1"]
    with MultiTurnRLTrainer(TINY, overrides=overrides, name="run", quiet=True, check=False) as trainer:
        trainer.train()
    run = tmp_path / "run"
    shutil.move(run / "checkpoints", small_disk / "checkpoints")
    (run / "checkpoints").symlink_to(small_disk / "checkpoints")
    # Some 6,000 weights: 24 kB, three times that and 64 KiB around them are 137 kB.
    filler = fill_up(small_disk, leaving=120_000)
    with pytest.raises(
        DiskError, match=r"checkpoints has 1\d\d kB free, but a checkpoint takes 137 kB: it cannot be written"
    ):
        resumed(run)
    filler.unlink()
    fill_up(small_disk, leaving=200_000)
    assert resumed(run) == 2
    found = [json.loads(line) for line in (run / "findings.jsonl").read_text().splitlines()]
    (shortage,) = [one for one in found if one["rule"] == "disk.space"]
    # Of two that are wanted at any time.
    assert (
        shortage["evidence"]["checkpoint_bytes"]
        < shortage["evidence"]["free_bytes"]
        <= 2 * shortage["evidence"]["checkpoint_bytes"]
    )
