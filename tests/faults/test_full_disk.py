"""A run on a disk that gets full ends with that reason and goes on exactly when there is room again."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparring.ledger import Ledger
from tests.faults.test_crashes import fingerprint
from tests.faults.training import RECIPE, Training

IS_LONG = int(os.environ.get("FAULT_SEEDS", "1")) > 1
SETTINGS = ("schedule.save_every=1", "schedule.keep_checkpoints=1", "schedule.max_steps=4")
KILOBYTES = (150, 300, 450, 600, 750, 900, 1050, 1200, 1500, 1800) if IS_LONG else (600,)
"""What the disk has left when the run begins. It would take about 2 MB."""
FILE_KILOBYTES = (20, 60, 120, 200, 300) if IS_LONG else (120,)
"""What no file may be larger than, where file systems cannot be mounted. The ledger grows to about 350 kB."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount a tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(tmp_path_factory.mktemp("uninterrupted"), SETTINGS)
    assert training.over() == 0
    return training


def train(*arguments: str, prepare: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparring", "train", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
        preexec_fn=prepare,
    )


def start(runs: Path, prepare: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return train(str(RECIPE), "--name", "run", "--no-check", f"run.runs_dir={runs}", *SETTINGS, prepare=prepare)


def assert_goes_on_exactly(runs: Path, done: subprocess.CompletedProcess[str], uninterrupted: Training) -> None:
    """Assert that a run with too little room reported it, and goes on now that there is enough."""
    run = Training(runs, SETTINGS)
    if done.returncode:
        assert done.returncode == 4, done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("error: ")
        assert "Free up space" in last or "Make room" in last or "Check the disk" in last, done.stderr
        if not (run.run / "status.json").exists():
            return  # there was no room for the run's own files
        status = json.loads((run.run / "status.json").read_text())
        assert status["status"] in ("failed", "created"), done.stderr
        again = train("--resume", str(run.run))
        assert again.returncode == 0, again.stderr
    assert fingerprint(run) == fingerprint(uninterrupted)
    with Ledger(run.run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []


@pytest.mark.parametrize("kilobytes", KILOBYTES)
def test_a_run_on_a_full_disk_reports_it_and_goes_on_exactly_when_there_is_room(
    disk: Path, uninterrupted: Training, kilobytes: int
) -> None:
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - 1000 * kilobytes))
    done = start(disk)
    (disk / "filler").unlink()
    assert_goes_on_exactly(disk, done, uninterrupted)


@pytest.mark.parametrize("kilobytes", FILE_KILOBYTES)
def test_a_run_whose_files_may_not_grow_reports_it_and_goes_on_exactly_when_they_may(
    tmp_path: Path, uninterrupted: Training, kilobytes: int
) -> None:
    allowed = (1000 * kilobytes, resource.RLIM_INFINITY)
    done = start(tmp_path, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, allowed))
    assert_goes_on_exactly(tmp_path, done, uninterrupted)
