"""A process that saves dies or fails at each system call that changes the disk: what is read afterwards is whole.

The shim of `tests/training/test_checkpoint_files.py` stands in Python; here strace stands at the kernel's interface, so that what
safetensors and SQLite write by themselves is struck, too.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from sparring.config import ScheduleSection
from sparring.errors import DataError, ServiceError
from sparring.ledger import Ledger, RolloutState
from sparring.run_folders import RunFolder
from sparring.training import checkpoints
from sparring.training.state import AdamWState
from sparring.training_run.checkpoint_writer import Saver
from sparring.types import Weights
from tests.faults.training import processes
from tests.ledger.test_ledger import turn

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("strace") is None,
    reason="needs strace, which has the kernel refuse system calls (apt install strace)",
)

OPENS = ("openat", "creat", "mkdir", "mkdirat")
WRITES = ("write", "writev", "pwrite64", "ftruncate", "fallocate", "fsync", "fdatasync", "msync")
NAMES = ("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir")
REPORTED = 7
"""Exit code of a process whose work failed with the system's name of the error in its message."""
EVERY = 1 if int(os.environ.get("FAULT_SEEDS", "1")) > 1 else 16
"""Which share of the calls is struck: all of them, or one of so many."""
Work = Callable[[Path], None]


def under_strace(work: Work, folder: Path, *options: str) -> tuple[int | None, str]:
    """Have a process do `work`, watched from before it begins: its exit code, and the calls that strace wrote down."""
    ready, theirs = processes.Pipe()
    process = processes.Process(target=_work, args=(work, folder, theirs))
    process.start()
    ready.recv()
    log = folder.parent / "calls"
    traced = ",".join(f"?{name}" for name in (*OPENS, *WRITES, *NAMES))
    command = ["strace", "-f", "-o", str(log), "-e", f"trace={traced}", *options, "-p", str(process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        output = strace.stderr.readline()
        if "attached" in output:
            ready.send("go on")
            process.join(60)
        else:
            process.kill()
        strace.communicate(timeout=60)
    if "attached" not in output:
        pytest.skip(f"strace may not watch processes here: {output.strip()}")
    assert process.exitcode is not None, "the process does not end"
    return process.exitcode, log.read_text()


def _work(work: Work, folder: Path, ready: Connection) -> NoReturn:
    rehearsal = folder.parent / "rehearsal"
    shutil.rmtree(rehearsal, ignore_errors=True)
    rehearsal.mkdir()
    work(rehearsal)  # what is imported on the way is
    ready.send("ready")
    ready.recv()
    try:
        work(folder)
    except (DataError, ServiceError) as error:
        os._exit(REPORTED if re.search("Input/output error|disk I/O error|unable to open database", str(error)) else 1)
    except BaseException:  # noqa: BLE001 - the exit code shows it
        (folder.parent / "unexpected").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def calls_of(work: Work, folder: Path) -> list[tuple[str, int]]:
    """Name and number of each call that `work` makes, numbers as strace counts: for each name and thread."""
    exit_code, log = under_strace(work, folder)
    assert exit_code == 0
    seen = Counter(re.findall(r"^(\d+) +(\w+)\(", log, re.MULTILINE))
    most: dict[str, int] = {}
    for (_, name), count in seen.items():
        most[name] = max(count, most.get(name, 0))
    calls = [(name, number) for name, count in most.items() for number in range(1, count + 1)]
    assert len(calls) > 20
    struck = calls[::EVERY]
    print(f"{len(struck)} of {len(calls)} system calls: {most}")  # noqa: T201 - pytest -rP shows it
    return struck


def tensors(seed: int) -> AdamWState:
    weights = {f"layer.{index}": torch.full((8, 8), float(seed + index)) for index in range(3)}
    return AdamWState(weights=weights, moments={f"{name}/exp_avg": 2 * tensor for name, tensor in weights.items()})


@dataclass(frozen=True)
class Learned:
    """Stands for a learner after a step."""

    step: int

    def export_weights(self) -> Weights:
        return Weights(tensors=tensors(self.step).weights, fingerprint="")

    def export_state(self) -> AdamWState:
        return tensors(self.step)


async def save(run: Path, step: int) -> None:
    """What a training does for the checkpoint of a step, of which the one before is deleted then."""
    # One thread, so that the numbers of its calls are always the same.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    (run / "run.toml").touch()
    with Ledger(run / "ledger.sqlite") as ledger:
        schedule = ScheduleSection(keep_checkpoints=1)
        async with Saver(Learned(step), ledger, RunFolder(run), schedule=schedule, say=pytest.fail) as saver:  # type: ignore[arg-type]
            await saver.save(step, {"step": step})


def save_second(run: Path) -> None:
    asyncio.run(save(run, 2))


def step_found(run: Path) -> int:
    """Of the newest checkpoint, which is that of one save from end to end."""
    newest = checkpoints.find_newest(run / "checkpoints")
    step = int(newest.name)
    for file, expected in (("weights", tensors(step).weights), ("optimizer", tensors(step).moments)):
        found = checkpoints.read_tensors(newest / f"{file}.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    return step


@pytest.mark.parametrize("strike", ["signal=KILL", "error=EIO"])
def test_a_save_that_dies_or_fails_at_any_system_call_leaves_a_whole_checkpoint(tmp_path: Path, strike: str) -> None:
    run, first = tmp_path / "run", tmp_path / "first"
    first.mkdir()
    asyncio.run(save(first, 1))
    shutil.copytree(first, run)
    found: Counter[tuple[int | None, int]] = Counter()
    for name, number in calls_of(save_second, run):
        shutil.rmtree(run)
        shutil.copytree(first, run)
        exit_code, _ = under_strace(save_second, run, "-e", f"inject={name}:{strike}:when={number}")
        assert not (tmp_path / "unexpected").exists(), (name, number, (tmp_path / "unexpected").read_text())
        step = step_found(run)
        found[exit_code, step] += 1
        # What was reported as saved is there; and the run that goes on can save again.
        assert exit_code != 0 or step == 2, (name, number)
        save_second(run)
        assert step_found(run) == 2
        assert [path.name for path in (run / "checkpoints").iterdir()] == ["000002"]
        with Ledger(run / "ledger.sqlite") as ledger:
            assert ledger.verify() == []
            assert ledger.last_published == 2
    if strike == "signal=KILL":
        assert {exit_code for exit_code, _ in found} == {-signal.SIGKILL}
    else:
        # Some strike what only tidies up, which is done again by the next save.
        assert {exit_code for exit_code, _ in found} <= {REPORTED, 0}
        assert found[REPORTED, 1] > found.total() / 2
    assert {step for _, step in found} == {1, 2}


def commit(folder: Path) -> None:
    """Play four rollouts of one turn each; the file `answered` names those whose turn was answered for."""
    answered = os.open(folder / "answered", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Ledger(folder / "ledger.sqlite") as ledger:
        for number in range(4):
            rollout = f"r{number}"
            ledger.plan_nowait(rollout, task_id="t", attempt=0)
            ledger.advance_nowait(rollout, RolloutState.LEASED)
            ledger.advance_nowait(rollout, RolloutState.RUNNING)
            ledger.record_turn_nowait(rollout, turn(0)).result()
            os.write(answered, f"{rollout}\n".encode())


@pytest.mark.parametrize("strike", ["signal=KILL", "error=EIO"])
def test_a_ledger_that_dies_or_fails_at_any_system_call_holds_what_was_answered_for(
    tmp_path: Path, strike: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    num_lost = 0
    for name, number in calls_of(commit, folder):
        if name == "write" or (name, number) == ("openat", 1):
            continue  # of `answered`
        shutil.rmtree(folder)
        folder.mkdir()
        exit_code, _ = under_strace(commit, folder, "-e", f"inject={name}:{strike}:when={number}")
        assert exit_code in ({-signal.SIGKILL} if strike == "signal=KILL" else {REPORTED, 0}), (name, number)
        answered = (folder / "answered").read_text().split() if (folder / "answered").exists() else []
        assert exit_code != 0 or len(answered) == 4
        with Ledger(folder / "ledger.sqlite") as ledger:
            assert ledger.verify() == []
            assert all(len(ledger.load_turns(rollout)) == 1 for rollout in answered), (name, number)
            # And it goes on.
            ledger.plan_nowait("next", task_id="t", attempt=0).result()
        num_lost += len(answered) < 4
    assert num_lost > 0
