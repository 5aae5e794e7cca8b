"""What a copy of a run contains, at every moment, and whose copy it is."""

from __future__ import annotations

import json
import random
import resource
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import load_config
from sparring.copies.fetch import fetch
from sparring.copies.manifest import BLOCK_BYTES, CopyManifest, list_manifests, name_manifest, parse_name, read_newest
from sparring.copies.ownership import OWNER, read_owner
from sparring.copies.store import Store, StoreError
from sparring.errors import ConfigError, DataError, ServiceError, UsageError
from sparring.ledger.verification import read_account
from sparring.run_folders import RunFolder
from sparring.runtime.faults import Fault, arm_for_block
from sparring.training_run.resuming import find_start
from tests.copies.builders import Run, contents
from tests.copies.s3 import BUCKET, serve_s3
from tests.faults.training import RECIPE


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with serve_s3():
        yield f"s3://{BUCKET}"


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    return f"{request.getfixturevalue('s3') if request.param == 's3' else 'memory:/'}/{uuid.uuid4().hex}"


def fetched(url: str, into: Path, name: str = "run") -> RunFolder:
    into.mkdir()
    return fetch(f"{url}/{name}", into, say=print)


def wait_for_copy(url: str, *, after: int = 0) -> None:
    """Wait until more than `after` copies are complete."""
    deadline = time.monotonic() + 20
    while (newest := read_newest(Store(f"{url}/run"))) is None or parse_name(newest[0])[1] <= after:
        assert time.monotonic() < deadline, "there is no new copy"
        time.sleep(0.01)


def objects(url: str) -> set[str]:
    return set(Store(f"{url}/run").list())


def test_what_is_fetched_is_what_was_there(url: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs", keep=2)
    for size in (0, 1000, BLOCK_BYTES, 2 * BLOCK_BYTES + 17):
        run.advance(size=size)
    (run.folder.path / "recipe" / "play.sh").write_text("#!/bin/sh\n")
    (run.folder.path / "recipe" / "play.sh").chmod(0o755)
    (tmp_path / "large").write_bytes(b"large")
    (run.folder.path / "recipe" / "large").symlink_to(tmp_path / "large")
    run.copy(url)
    folder = fetched(url, tmp_path / "elsewhere")
    assert contents(folder.path) == contents(run.folder.path)
    assert not (folder.path / "recipe" / "large").is_symlink()
    assert read_account(folder.ledger) == read_account(run.folder.ledger)
    start = find_start(folder)
    assert start is not None
    assert start.name == "000004"


def test_a_copy_follows_its_run_and_contains_nothing_else(url: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    numbers = random.Random(0)
    for round_ in range(8):
        for _ in range(numbers.randrange(3)):
            run.advance()
        run.copy(url, is_resumed=round_ > 0)
    store = Store(f"{url}/run")
    newest = read_newest(store)
    assert newest is not None
    names = {path for path in newest[1].files if path.startswith("checkpoints/")}
    assert {path.split("/")[1] for path in names} == {f"{run.step:06d}"}
    # Two lists of files and their blocks: checkpoints that the run has deleted are gone.
    manifests = list_manifests(store)
    assert len(manifests) <= 2
    num_blocks = len([name for name in store.list() if "/blocks/" in name])
    assert num_blocks <= 2 * len(newest[1].blocks)


def test_unchanged_blocks_are_not_sent_again(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    run = Run(tmp_path / "runs")
    run.advance(size=3 * BLOCK_BYTES)
    copier = run.claim_in(url)
    assert copier.close()
    assert copier.metrics()["copy/sent_bytes"] > 3 * BLOCK_BYTES
    with (run.folder.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, "time": 0.0, "metrics": {}}) + "\n")
    copier = run.claim_in(url, is_resumed=True)
    assert copier.close()
    # The new line's block, and nothing of the checkpoint. The ledger has not changed.
    assert 0 < copier.metrics()["copy/sent_bytes"] < 10_000


@pytest.mark.parametrize("point", ["copy.staged", "copy.sending", "copy.publishing"])
def test_a_copy_that_ends_halfway_is_not_visible(url: str, tmp_path: Path, point: str) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    before = read_newest(Store(f"{url}/run"))
    run.advance()
    with arm_for_block(Fault(point, "error", at=2 if point == "copy.sending" else 1, times=1000)):
        copier = run.claim_in(url, is_resumed=True)
        assert not copier.close()
        assert copier._ended.wait(60)  # on a busy machine, its thread tries again after `close`, and must fail again
    assert read_newest(Store(f"{url}/run")) == before
    folder = fetched(url, tmp_path / "elsewhere")
    assert (folder.checkpoints / "000001").is_dir()
    assert find_start(folder) is not None
    run.copy(url, is_resumed=True)
    assert (fetched(url, tmp_path / "later").checkpoints / "000002").is_dir()


def test_the_ledger_of_a_copy_knows_its_checkpoints_and_its_step(tmp_path: Path) -> None:
    """Between the files and the ledger of each snapshot, the run takes more steps and deletes checkpoints."""
    url = f"file://{tmp_path}/store"
    run = Run(tmp_path / "runs")
    run.advance()
    is_over = threading.Event()

    def train() -> None:
        while not is_over.wait(0.02):
            run.advance()

    training = threading.Thread(target=train)
    training.start()
    try:
        with arm_for_block(Fault("copy.staged", "delay", seconds=0.1, times=1000)):
            copier = run.claim_in(url)
            for number in range(6):
                wait_for_copy(url, after=number)
                folder = fetched(url, tmp_path / f"at-{number}")
                start = find_start(folder)  # refuses an older ledger
                assert start is not None
                assert int(start.name) > 0
    finally:
        is_over.set()
        training.join()
    assert copier.close()
    start = find_start(fetched(url, tmp_path / "end"))
    assert start is not None
    assert int(start.name) == run.step


def test_a_torn_list_of_files_is_skipped(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    run.advance()
    run.copy(url, is_resumed=True)
    store = Store(f"{url}/run")
    newest = list_manifests(store)[-1]
    store.write(newest, (store.read(newest) or b"")[:-20])
    assert (fetched(url, tmp_path / "elsewhere").checkpoints / "000001").is_dir()


@pytest.mark.parametrize("damage", ["deleted", "changed", "cut"])
def test_a_damaged_block_is_refused_and_no_folder_appears(tmp_path: Path, damage: str) -> None:
    url = f"file://{tmp_path}/store"
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    store = Store(f"{url}/run")
    newest = read_newest(store)
    assert newest is not None
    block = newest[1].files["checkpoints/000001/weights.safetensors"].blocks[0]
    (name,) = [one for one in store.list() if one.endswith(block)]
    content = store.read(name) or b""
    if damage == "deleted":
        store.delete(name)
    else:
        store.write(name, content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="weights"):
        fetched(url, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere" / "run").exists()
    # What was already fetched is used once the block is back.
    store.write(name, content)
    folder = fetch(f"{url}/run", tmp_path / "elsewhere", say=print)
    assert contents(folder.path) == contents(run.folder.path)


def test_a_run_is_never_overwritten(url: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    with pytest.raises(DataError, match="never overwritten"):
        fetch(f"{url}/run", tmp_path / "runs", say=print)
    with pytest.raises(DataError, match="no complete copy"):
        fetch(f"{url}/other", tmp_path / "runs", say=print)
    other = Run(tmp_path / "other")
    with pytest.raises(UsageError, match="another run"):
        other.copy(url)
    with pytest.raises(UsageError, match="another run"):
        other.copy(url, is_resumed=True)


def test_a_fetched_run_takes_the_copy_over_and_the_first_machine_notices(url: str, tmp_path: Path) -> None:
    first = Run(tmp_path / "runs")
    first.advance()
    copier = first.claim_in(url)
    wait_for_copy(url)
    second = Run.__new__(Run)
    second.folder = fetched(url, tmp_path / "elsewhere")
    # The first machine is alive, so it renews the copy.
    is_refused = threading.Event()

    def renew() -> None:
        while not is_refused.wait(0.2):
            copier._ownership.renew()

    renewing = threading.Thread(target=renew)
    renewing.start()
    with pytest.raises(UsageError, match="being written"):
        second.copy(url, is_resumed=True)
    is_refused.set()
    renewing.join()
    # Now it is silent for longer than the lease, which is 1 s here.
    second.copy(url, is_resumed=True)
    deadline = time.monotonic() + 5
    rules: list[str] = []
    while "copy.taken" not in rules and time.monotonic() < deadline:
        finding = copier.finding(1)
        rules += [finding.rule] if finding is not None else []
        time.sleep(0.05)
    assert rules[-1] == "copy.taken"
    assert copier.finding(2) is None
    assert not copier.close()
    # The copy has the files of the second machine alone.
    owner = read_owner(Store(f"{url}/run"))
    assert owner is not None
    assert {name.split("/")[0] for name in objects(url)} == {owner.generation, OWNER}
    with pytest.raises(UsageError, match="was continued on"):
        first.claim_in(url, is_resumed=True)


def test_a_folder_that_is_behind_does_not_replace_a_newer_copy(url: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    old = Run.__new__(Run)
    old.folder = fetched(url, tmp_path / "elsewhere")
    run.advance()
    run.copy(url, is_resumed=True)
    with pytest.raises(UsageError, match=r"has step 2 .* only step 1"):
        old.copy(url, is_resumed=True)


def test_a_copy_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    copier = run.claim_in(url := f"file://{tmp_path}/store")
    wait_for_copy(url)
    with arm_for_block(Fault("copy.staged", "delay", seconds=0.3, times=1)):
        time.sleep(0.1)
        shutil.rmtree(tmp_path / "store")
    run.advance()
    assert copier.close()
    assert contents(fetched(url, tmp_path / "elsewhere").path) == contents(run.folder.path)


def test_a_store_that_fails_is_reported_and_caught_up_with(tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    copier = run.claim_in(url := f"file://{tmp_path}/store")
    with arm_for_block(Fault("copy.sending", "error", times=1000)):
        run.advance()
        time.sleep(1.0)
        finding = copier.finding(1)
        assert copier.finding(2) is None
    assert finding is not None
    assert finding.rule == "copy.behind"
    assert copier.metrics()["copy/age_seconds"] > 0.5
    assert copier.close()
    assert contents(fetched(url, tmp_path / "elsewhere").path) == contents(run.folder.path)
    assert copier.finding(3) is None


def test_a_store_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match="cannot be written"):
        Store(f"file://{tmp_path}/file/below").probe()
    with pytest.raises(ServiceError, match="Protocol not known"):
        Store("nothing://there")
    with pytest.raises(ServiceError, match="dropbox"):
        Store("dropbox://there")


FOREIGN = (".git/config", "0000data/f", "0000-12345678/notes.txt", "0001-12345678/blocks/readme", "readme")


def test_foreign_objects_are_never_deleted(url: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    store = Store(f"{url}/run")
    for name in FOREIGN:
        store.write(name, b"mine")
    second = Run.__new__(Run)
    second.folder = fetched(url, tmp_path / "elsewhere")
    second.copy(url, is_resumed=True)
    owner = read_owner(store)
    assert owner is not None
    assert {name for name in objects(url) if not name.startswith((owner.generation, OWNER))} == {*FOREIGN}


def test_an_address_with_other_objects_is_refused(url: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    store = Store(f"{url}/run")
    store.write(".git/config", b"mine")
    for is_resumed in (False, True):
        with pytest.raises(UsageError, match=r"objects that are not of a copy, such as \.git/config"):
            run.copy(url, is_resumed=is_resumed)
    assert objects(url) == {".git/config"}
    store.delete(".git/config")
    # What a copy left that never had a list of files is no obstacle.
    store.write(f"0001-12345678/blocks/{'0' * 64}", b"part")
    run.copy(url)
    assert f"0001-12345678/blocks/{'0' * 64}" not in objects(url)


def test_lists_of_files_are_in_the_order_of_their_numbers(url: str) -> None:
    store, generation = Store(f"{url}/run"), "0001-12345678"
    for number in (999_999, 1_000_000, 1_000_001):
        store.write(name_manifest(generation, number), CopyManifest(time=0.0, step=number, files={}).encode())
    assert [parse_name(name)[1] for name in list_manifests(store)] == [999_999, 1_000_000, 1_000_001]
    newest = read_newest(store)
    assert newest is not None
    assert newest[1].step == 1_000_001


@pytest.mark.parametrize("damaged", [b"", b'{"generation": "0001-', b"[]"])
def test_a_damaged_owner_is_written_again_by_its_owner(url: str, tmp_path: Path, damaged: bytes) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    store = Store(f"{url}/run")
    copier = run.claim_in(url)
    wait_for_copy(url)
    store.write(OWNER, damaged)
    run.advance()
    assert copier.close()
    assert contents(fetched(url, tmp_path / "elsewhere").path) == contents(run.folder.path)
    # A process that resumes the run is not refused, and the blocks are not sent again.
    store.write(OWNER, damaged)
    copier = run.claim_in(url, is_resumed=True)
    assert copier.close()
    assert copier.metrics()["copy/sent_bytes"] == 0
    owner = read_owner(store)
    assert owner is not None
    assert owner.is_released


def test_a_damaged_owner_of_another_run_folder_is_left_to_it(url: str, tmp_path: Path) -> None:
    first = Run(tmp_path / "runs")
    first.advance()
    first.copy(url)
    second = Run.__new__(Run)
    second.folder = fetched(url, tmp_path / "elsewhere")
    second.copy(url, is_resumed=True)
    Store(f"{url}/run").write(OWNER, b"")
    with pytest.raises(DataError, match="damaged"):
        first.claim_in(url, is_resumed=True)
    second.copy(url, is_resumed=True)
    with pytest.raises(UsageError, match="was continued on"):
        first.claim_in(url, is_resumed=True)


def test_a_write_that_fails_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    store.write(OWNER, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreError, match="too large"):
            store.write(OWNER, b"new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.read(OWNER) == b"old"
    assert store.list() == [OWNER]


def test_files_of_writes_that_never_ended_are_no_obstacle_and_are_deleted(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    store = Store(f"{url}/run")
    block = f"0001-12345678/blocks/{'0' * 64}.12345678.part"
    for name in (f"{OWNER}.12345678.part", block):
        store.write(name, b"part")
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    assert not [name for name in objects(url) if name.endswith(".part")]
    assert OWNER in objects(url)


def test_a_copy_is_fetched_once_at_a_time(tmp_path: Path) -> None:
    url, into = f"file://{tmp_path}/store", tmp_path / "elsewhere"
    run = Run(tmp_path / "runs")
    run.advance()
    run.copy(url)
    into.mkdir()
    with arm_for_block(Fault("copy.fetching", "delay", at=2, seconds=1.0)), ThreadPoolExecutor() as pool:
        first = pool.submit(fetch, f"{url}/run", into, say=print)
        deadline = time.monotonic() + 10
        while not (into / ".run.fetch").is_dir() or len([*(into / ".run.fetch").rglob("*")]) < 2:
            assert time.monotonic() < deadline, "the first fetch does not start"
            time.sleep(0.05)
        with pytest.raises(DataError, match=r"another `sparring runs fetch` writes .*\.run\.fetch"):
            fetch(f"{url}/run", into, say=print)
        first.result(10)
    assert contents(into / "run") == contents(run.folder.path)
    with RunFolder(into / "run").lock_for_training():  # the lock of the fetch is released
        pass


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("file:///my disk/a\tb", r"not allowed: '\\t', space;"),
        ("file:///disk/a\u200bb\u00a0", r"not allowed: U\+00A0, U\+200B;"),
        ("backup", "use an address with a protocol"),
        ("memory://runs", "lost with it"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_its_reason(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(RECIPE, [f"run.copy_to={json.dumps(address)}"])


def test_the_commands_copy_and_fetch(tmp_path: Path) -> None:
    run = Run(tmp_path / "runs")
    run.advance()
    arguments = [str(run.folder.path), f"run.copy_to=file://{tmp_path}/store"]
    assert "has no copy" in CliRunner().invoke(app, ["runs", "copy", arguments[0]]).output
    assert CliRunner().invoke(app, ["runs", "copy", *arguments]).exit_code == 0
    command = ["runs", "fetch", f"file://{tmp_path}/store/run", "--runs-dir", str(tmp_path / "elsewhere"), "--json"]
    result = CliRunner().invoke(app, command)
    assert json.loads(result.stdout) == {"path": str(tmp_path / "elsewhere" / "run"), "step": 1}
    assert contents(tmp_path / "elsewhere" / "run") == contents(run.folder.path)
    assert CliRunner().invoke(app, command).exit_code == DataError.exit_code
