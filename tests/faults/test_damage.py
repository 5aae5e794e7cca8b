"""A run whose files were damaged, lost or mixed up goes on exactly, or is refused with the reason and left as it was."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.errors import DataError
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.runtime.faults import Fault
from sparring.training_run.resuming import find_start
from tests.faults.test_crashes import fingerprint
from tests.faults.training import Training

IS_LONG = int(os.environ.get("FAULT_SEEDS", "1")) > 1
SETTINGS = ("schedule.save_every=1", "schedule.keep_checkpoints=2", "schedule.max_steps=4", "schedule.val_every=4")


def killed_at(folder: Path, step: int, *overrides: str) -> Path:
    """A run that was killed when it had claimed the episodes of a step; the checkpoint of the one before is there."""
    training = Training(folder, (*SETTINGS, *overrides))
    # The delay is longer than a checkpoint takes.
    faults = (Fault("step.claiming", "delay", at=step, seconds=2.0), Fault("step.claimed", "kill", at=step))
    assert training.over(*faults) == -signal.SIGKILL
    assert (training.run / "checkpoints" / f"{step - 1:06d}").is_dir()
    return training.run


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_at(tmp_path_factory.mktemp("killed"), 4)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, a step before: what a backup would hold."""
    return killed_at(tmp_path_factory.mktemp("earlier"), 3)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_at(tmp_path_factory.mktemp("other"), 4, "run.seed=9")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(tmp_path_factory.mktemp("uninterrupted"), SETTINGS)
    assert training.over() == 0
    return training


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    """A copy of the killed run, to damage."""
    return Path(shutil.copytree(killed, tmp_path / "run"))


def files(folder: Path) -> dict[str, str]:
    """Content of every file in a folder by its path, what SQLite keeps next to the ledger included."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def resumed(run: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["train", "--resume", str(run), "--no-supervise", *options])


def commands(message: str) -> list[list[str]]:
    return [shlex.split(found)[1:] for found in re.findall(r"sparring (?:runs|train) .*", message)]


def ledger_files(run: Path) -> list[Path]:
    return sorted(run.glob("ledger.sqlite*"))


def merged(run: Path) -> Path:
    """The ledger as one file, as a clean end leaves it."""
    Ledger(run / "ledger.sqlite").close()
    assert [path.name for path in ledger_files(run)] == ["ledger.sqlite"]
    return run / "ledger.sqlite"


def changed(statement: str) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
            assert db.execute(statement).rowcount

    return change


def delete_ledger(run: Path) -> None:
    for path in ledger_files(run):
        path.unlink()


def empty_ledger(run: Path) -> None:
    delete_ledger(run)
    (run / "ledger.sqlite").touch()


def begin_a_new_ledger(run: Path) -> None:
    delete_ledger(run)
    Ledger(run / "ledger.sqlite").close()


def cut_in_half(run: Path) -> None:
    os.truncate(merged(run), (run / "ledger.sqlite").stat().st_size // 2)


def zero_a_page(run: Path) -> None:
    content = bytearray(merged(run).read_bytes())
    content[3 * 4096 : 4 * 4096] = bytes(4096)
    (run / "ledger.sqlite").write_bytes(content)


def flip_a_byte_of_a_task(run: Path) -> None:
    content = merged(run).read_bytes()
    at = content.rindex(b"train/0/t")
    (run / "ledger.sqlite").write_bytes(content[:at] + b"TRAIN" + content[at + 5 :])


def write_text(run: Path) -> None:
    delete_ledger(run)
    (run / "ledger.sqlite").write_text("no database, though long enough to be read as the header of one\n" * 3)


def delete_the_write_ahead_log(run: Path) -> None:
    (run / "ledger.sqlite-wal").unlink()


def delete_all_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def damage_all_checkpoints(run: Path) -> None:
    for path in (run / "checkpoints").glob("*/weights.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "ledger deleted": (delete_ledger, "is missing, but the run has been trained"),
    "ledger deleted, its log left": (lambda run: (run / "ledger.sqlite").unlink(), "is missing"),
    "ledger emptied": (empty_ledger, "is empty, but the run has been trained"),
    "a new ledger": (begin_a_new_ledger, "ends before step 3"),
    "cut in half": (cut_in_half, "is damaged"),
    "a page of zeros": (zero_a_page, "is damaged"),
    "flipped bytes": (flip_a_byte_of_a_task, "is damaged"),
    "text": (write_text, "file is not a database"),
    "write-ahead log deleted": (delete_the_write_ahead_log, "ledger.sqlite"),
    "trained row deleted": (
        changed("DELETE FROM rollouts WHERE id = (SELECT id FROM rollouts WHERE state = 'trained' LIMIT 1)"),
        "it has a history and was never planned",
    ),
    "trained rollout deleted with its history": (
        changed("DELETE FROM events WHERE rollout_id = (SELECT id FROM rollouts WHERE state = 'trained' LIMIT 1)"),
        "are missing",
    ),
    "turn deleted": (
        changed("DELETE FROM turns WHERE rollout_id = (SELECT id FROM rollouts WHERE state = 'trained' LIMIT 1)"),
        "not all of its 1 turns are stored",
    ),
    "token flipped": (
        changed("UPDATE turns SET token_ids = zeroblob(length(token_ids)) WHERE rollout_id LIKE 'train/0/%'"),
        "the checksum of its row is wrong",
    ),
    "result flipped": (
        changed("UPDATE rollouts SET result = replace(result, '1.0', '0.0') WHERE state = 'trained'"),
        "the checksum of its row is wrong",
    ),
    "lineage deleted": (changed("DELETE FROM lineage"), "but the run has no checkpoint"),
    "a later format": (changed("INSERT INTO rollouts SELECT * FROM rollouts WHERE 0; "), ""),
    "all checkpoints deleted": (delete_all_checkpoints, "contains no checkpoint"),
    "all checkpoints damaged": (damage_all_checkpoints, "does not have the hash that its manifest lists"),
}
del DAMAGES["a later format"]


def refused(run: Path, reason: str) -> str:
    """Resume it: the refusal, which changed nothing."""
    before = files(run)
    result = resumed(run)
    assert result.exit_code == DataError.exit_code, result.output
    assert reason in result.output
    assert "nothing was changed" in result.output
    assert files(run) == before
    return result.output


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_run_that_does_not_fit_its_ledger_is_refused_and_left_as_it_was(
    run: Path, damage: Callable[[Path], object], reason: str
) -> None:
    damage(run)
    error = refused(run, reason)
    (command,) = commands(error)
    # The way on works: a new run with a ledger of its own, or the recipe trained anew.
    last = ["--no-train", "--name", "new"] if command[0] == "runs" else ["--dry-run"]
    result = CliRunner().invoke(app, [*command, *last])
    assert result.exit_code == 0, result.output
    if command[0] == "runs":
        assert find_start(RunFolder(run.with_name("new"))) == run.with_name("new") / "checkpoints" / "000003"


def test_a_ledger_or_a_checkpoint_of_another_run_or_time_is_refused(
    run: Path, earlier: Path, other: Path, tmp_path: Path
) -> None:
    def swapped(name: str, source: Path) -> Path:
        copy = Path(shutil.copytree(run, tmp_path / name))
        delete_ledger(copy)
        for path in ledger_files(source):
            shutil.copy(path, copy)
        return copy

    refused(swapped("of another run", other), "is not in")
    refused(swapped("of a backup", earlier), "ends before step 3")
    newer = Path(shutil.copytree(run, tmp_path / "newer checkpoint"))
    shutil.copytree(other / "checkpoints" / "000003", newer / "checkpoints" / "000007")
    error = refused(newer, "000007 is not in")
    assert "--from 3" in error
    # The other way on that it names.
    (newer / "checkpoints" / "000007").rename(tmp_path / "elsewhere")
    assert find_start(RunFolder(newer)) == newer / "checkpoints" / "000003"
    replaced = Path(shutil.copytree(run, tmp_path / "replaced checkpoint"))
    shutil.rmtree(replaced / "checkpoints" / "000003")
    shutil.copytree(other / "checkpoints" / "000003", replaced / "checkpoints" / "000003")
    refused(replaced, "000003 is not in")
    assert CliRunner().invoke(app, ["verify", str(replaced)]).exit_code == DataError.exit_code


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("manifest.json", None, "manifest.json is missing or empty"),
        (
            "manifest.json",
            '{"format": 3}',
            "reads formats 1 to 2. A newer version wrote it: update Sparring",
        ),
        ("status.json", '{"status": "running", "step": "x"}', "status.json is not the status of a run"),
    ],
)
def test_a_run_whose_manifest_or_status_is_not_to_be_read_is_refused(
    run: Path, name: str, content: str | None, reason: str
) -> None:
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    before = files(run)
    result = resumed(run)
    assert result.exit_code == DataError.exit_code, result.output
    assert reason in result.output
    assert files(run) == before


@pytest.mark.parametrize("options", [["--training"], []])
def test_a_replay_without_the_manifest_names_it(run: Path, options: list[str]) -> None:
    (run / "manifest.json").unlink()
    result = CliRunner().invoke(app, ["replay", str(run), *options])
    assert result.exit_code == DataError.exit_code, result.output
    assert "manifest.json is missing or empty" in result.output


def test_an_evaluation_begins_no_new_ledger_in_place_of_a_lost_one(run: Path) -> None:
    delete_ledger(run)
    before = files(run)
    result = CliRunner().invoke(app, ["eval", str(run), "--policy", "constant:no"])
    assert result.exit_code == DataError.exit_code, result.output
    assert "ledger.sqlite is missing" in result.output
    assert files(run) == before


def test_a_folder_in_place_of_the_lock_is_named(run: Path) -> None:
    (run / "lock").unlink()
    (run / "lock").mkdir()
    result = resumed(run)
    assert result.exit_code == 4, result.output
    assert "lock" in result.output
    assert "This path must be a file but is a folder" in result.output


def test_an_export_below_a_file_is_refused(run: Path) -> None:
    (run / "file").touch()
    result = CliRunner().invoke(app, ["export", str(run), str(run / "file" / "exported"), "--merge"])
    assert result.exit_code == DataError.exit_code, result.output
    assert f"{run / 'file'} is a file" in result.output


def test_a_ledger_that_cannot_be_read_is_not_called_damaged(run: Path) -> None:
    delete_ledger(run)
    (run / "ledger.sqlite").mkdir()
    result = resumed(run)
    assert result.exit_code == 4, result.output
    assert "It is probably intact" in result.output


@pytest.mark.skipif(not IS_LONG, reason="waits half a minute for the other process; `make faults` runs it")
def test_a_ledger_that_another_process_keeps_to_itself_is_not_called_damaged(run: Path) -> None:
    merged(run)
    before = files(run)
    with closing(sqlite3.connect(run / "ledger.sqlite", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        result = resumed(run)
        holder.execute("ROLLBACK")
    assert result.exit_code == 4, result.output
    assert "locked" in result.output
    assert "It is probably intact" in result.output
    assert files(run) == before


@pytest.mark.skipif(
    not IS_LONG or shutil.which("strace") is None,
    reason="needs strace, which has the kernel refuse system calls, and is slow under it; `make faults` runs it",
)
def test_a_ledger_on_a_disk_that_fails_is_not_called_damaged(run: Path) -> None:
    merged(run)
    before = files(run)
    command = [sys.executable, "-m", "sparring", "train", "--resume", str(run), "--no-supervise"]
    options = ["-f", "-qq", "-o", "/dev/null", "-P", str(run / "ledger.sqlite"), "-e", "inject=pread64:error=EIO"]
    done = subprocess.run(["strace", *options, *command], capture_output=True, text=True, timeout=120)
    if "ptrace" in done.stderr.lower() and done.returncode == 1:
        pytest.skip(f"strace may not watch processes here: {done.stderr.strip()}")
    assert done.returncode == 4, done.stderr
    assert "disk I/O error. It is probably intact" in done.stderr
    assert files(run) == before


def cut_the_log(run: Path) -> None:
    """As when the power fails: the last changes are half written."""
    log = run / "ledger.sqlite-wal"
    os.truncate(log, log.stat().st_size - 1000)


SURVIVED: dict[str, Callable[[Path], object]] = {
    "nothing": lambda run: None,
    "index of the log deleted": lambda run: (run / "ledger.sqlite-shm").unlink(),
    "newest checkpoint deleted": lambda run: shutil.rmtree(run / "checkpoints" / "000003"),
    "newest checkpoint damaged": lambda run: os.truncate(run / "checkpoints" / "000003" / "weights.safetensors", 99),
    "end of the log cut off": cut_the_log,
    "status deleted": lambda run: (run / "status.json").unlink(),
}


@pytest.mark.parametrize("name", SURVIVED if IS_LONG else list(SURVIVED)[1:3])
def test_a_run_that_lost_what_it_can_do_without_goes_on_exactly(run: Path, uninterrupted: Training, name: str) -> None:
    SURVIVED[name](run)
    training = Training(run.parent, SETTINGS)
    assert training.over(resume=True) == 0
    assert fingerprint(training) == fingerprint(uninterrupted)
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify(max_steps_off_policy=0) == []


def random_damage(run: Path, drawn: random.Random) -> str:
    """What was done to which file."""
    if drawn.random() < 0.5:
        merged(run)
    path = drawn.choice([*ledger_files(run), *sorted((run / "checkpoints" / "000003").iterdir())])
    content = bytearray(path.read_bytes())
    at, length = drawn.randrange(max(1, len(content))), drawn.choice((1, 16, 512, 4096))
    kind = drawn.choice(("flip", "zero", "cut", "delete"))
    if kind == "flip":
        content[at : at + length] = drawn.randbytes(len(content[at : at + length]))
    elif kind == "zero":
        content[at : at + length] = bytes(len(content[at : at + length]))
    else:
        del content[at:]
    path.unlink()
    if kind != "delete":
        path.write_bytes(content)
    return f"{kind} {path.name} at {at}, {length} bytes"


@pytest.mark.parametrize("seed", range(400 if IS_LONG else 30))
def test_random_damage_is_refused_or_the_run_goes_on_exactly(
    run: Path, uninterrupted: Training, seed: int, tmp_path: Path
) -> None:
    done = random_damage(run, random.Random(seed))
    before = files(run)
    is_refused = False
    try:
        find_start(RunFolder(run))
    except DataError:
        is_refused = True
    assert files(run) == before, done
    if IS_LONG and seed % 8 == 0 and not is_refused:
        training = Training(run.parent, SETTINGS)
        assert training.over(resume=True) == 0, done
        assert fingerprint(training) == fingerprint(uninterrupted), done


@pytest.mark.skipif(not IS_LONG, reason="trains twice; `make faults` runs it")
@pytest.mark.parametrize("way", ["branch", "train anew"])
def test_the_command_of_a_refusal_ends_with_a_run_that_is_sound(
    run: Path, uninterrupted: Training, tmp_path: Path, way: str
) -> None:
    delete_ledger(run)
    if way == "train anew":
        delete_all_checkpoints(run)
    (command,) = commands(resumed(run, f"run.runs_dir={tmp_path}").output)
    done = subprocess.run([sys.executable, "-m", "sparring", *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    new = next(path.parent for path in tmp_path.glob("*/run.toml") if path.parent != run)
    verified = CliRunner().invoke(app, ["verify", str(new)])
    assert verified.exit_code == 0, verified.output
    # What came before the checkpoint is in it, so the end is the same.
    assert checkpoint_of(new) == checkpoint_of(uninterrupted.run)


def checkpoint_of(run: Path) -> str:
    return (run / "checkpoints" / "000004" / "manifest.json").read_text()
