"""Data sets of the hub are read with the real library: from folders, from the cache, and from a hub on this machine that
refuses or does not answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from sparring.assembly.tasks import load_tasks
from sparring.config import load_config
from sparring.data import hub, read_hub_tasks
from sparring.data.hub import HubAddress, parse_address
from sparring.errors import ConfigError, DataError, ServiceError, SparringError, UsageError
from sparring.run_folders import RunFolder
from sparring.run_folders.inputs import recorded_revisions
from sparring.trainer import MultiTurnRLTrainer
from sparring.types import Task

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RECIPE = Path(__file__).parents[1] / "faults" / "recipe"


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))


def write_set(folder: Path, *, rows: int = 3, extra: str = "") -> Path:
    """A data set of two splits in the layout of the hub."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        lines = [{"question": f"{split} {n}?", "answer": str(n), "number": n} for n in range(rows)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + extra)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: train.jsonl\n"
        "  - split: test\n    path: test.jsonl\n---\n"
    )
    return folder


def read(source: str, folder: Path, **columns: str) -> list[Task]:
    return read_hub_tasks(source, folder, columns)


def test_an_address_has_a_revision_a_split_a_configuration_and_a_limit() -> None:
    assert parse_address("hf://openai/gsm8k") == HubAddress(name="openai/gsm8k")
    assert parse_address("hf://openai/gsm8k@v1.0?split=test&config=main&limit=20") == HubAddress(
        name="openai/gsm8k", revision="v1.0", split="test", config="main", limit=20
    )
    assert parse_address("hf://./data@home").name == "./data@home"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("hf://gsm8k", "hf://OWNER/NAME"),
        ("hf://a/b?splt=test", "write split instead"),
        ("hf://a/b?split=", "no value for 'split'"),
        ("hf://a/b?limit=0", "at least 1"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_with_the_part(source: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        parse_address(source)


def test_a_folder_is_read_with_columns_renamed_and_ids_per_split(tmp_path: Path) -> None:
    write_set(tmp_path / "set")
    tasks = read("hf://./set?split=test&config=main", tmp_path, prompt="question", target="answer")
    assert [task.id for task in tasks] == ["test-1", "test-2", "test-3"]
    assert tasks[1].messages == ({"role": "user", "content": "test 1?"},)
    assert tasks[1].fields == {"target": "1", "number": 1}
    assert [task.id for task in read("hf://./set", tmp_path, id="number")] == ["0", "1", "2"]


def test_a_folder_that_changed_is_read_again_and_not_from_the_cache(tmp_path: Path) -> None:
    write_set(tmp_path / "set", rows=3)
    assert len(read("hf://./set", tmp_path)) == 3
    write_set(tmp_path / "set", rows=4)
    assert len(read("hf://./set", tmp_path)) == 4


def test_a_column_that_does_not_exist_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    write_set(tmp_path / "set")
    with pytest.raises(DataError, match=r"data\.columns\.prompt names the column 'questions'.*columns: question\."):
        read("hf://./set", tmp_path, prompt="questions")
    with pytest.raises(DataError, match="there is already a column 'answer'"):
        read("hf://./set", tmp_path, answer="question")


def test_with_a_limit_the_rest_of_a_split_is_not_read(tmp_path: Path) -> None:
    write_set(tmp_path / "set", extra="this is not JSON\n")
    # The reader of the library takes blocks of 10 MiB, so the damage is behind the first block.
    (tmp_path / "set" / "train.jsonl").write_text(
        "".join(json.dumps({"question": "q" * 1000}) + "\n" for _ in range(30_000)) + "this is not JSON\n"
    )
    assert len(read("hf://./set?limit=5", tmp_path)) == 5
    with pytest.raises(SparringError, match=r"set cannot be read|cannot be fetched"):
        read("hf://./set", tmp_path)


@pytest.mark.parametrize(
    ("query", "named"), [("split=validation", "validation"), ("config=socratic", "socratic"), ("split=tset", "tset")]
)
def test_a_split_or_configuration_that_does_not_exist_is_refused_by_name(
    query: str, named: str, tmp_path: Path
) -> None:
    write_set(tmp_path / "set")
    with pytest.raises(DataError, match=named):
        read(f"hf://./set?{query}", tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read("hf://./other", tmp_path)


def test_columns_that_no_task_can_have_are_refused_by_name(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict(
        {"prompt": ["a"], "scan": [None]},
        features=datasets.Features({"prompt": datasets.Value("string"), "scan": datasets.Image()}),
    )
    (tmp_path / "set").mkdir()
    table.to_parquet(tmp_path / "set" / "train.parquet")
    with pytest.raises(DataError, match="'scan' is of type Image"):
        read("hf://./set", tmp_path)


def test_the_library_is_named_when_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ServiceError, match=r"pip install 'sparring\[datasets\]'"):
        read("hf://a/b", tmp_path)


def cache_set(hub_cache: Path, name: str, *, commit: str = COMMIT, rows: int = 3) -> None:
    """Put a data set into the cache of the hub, in the layout of huggingface_hub."""
    repository = hub_cache / f"datasets--{name.replace('/', '--')}"
    write_set(repository / "snapshots" / commit, rows=rows)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)


def test_without_a_network_the_cache_is_read_and_its_commit_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache_set(tmp_path / "hub-cache", "owner/sums")
    source = "hf://owner/sums?split=test"
    assert [task.fields["answer"] for task in read(source, tmp_path)] == ["0", "1", "2"]
    assert recorded_revisions()[source] == COMMIT
    assert len(read(f"hf://owner/sums@{COMMIT}", tmp_path)) == 3
    with pytest.raises(ServiceError, match=r"HF_HUB_OFFLINE is set.*hf download"):
        read("hf://owner/other", tmp_path)


class Refusing(BaseHTTPRequestHandler):
    """Answers as the hub does for a data set that is missing or private, or never."""

    def do_GET(self) -> None:
        if "silent" in self.path:
            time.sleep(3)
            return
        missing = "no-revision" in self.path
        self.send_response(404 if missing else 401)
        self.send_header("X-Error-Code", "RevisionNotFound" if missing else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "TIMEOUT", 1.0)
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("hf://owner/private", r"no such data set, or it is private.*HF_TOKEN"),
        ("hf://owner/no-revision@v9", "no such revision"),
        ("hf://owner/silent", r"cannot be fetched from the hub.*check the network"),
    ],
)
def test_a_hub_that_refuses_or_does_not_answer_is_an_error_within_the_deadline(
    source: str, reason: str, tmp_path: Path
) -> None:
    start = time.monotonic()
    with pytest.raises(ServiceError, match=reason):
        read(source, tmp_path)
    assert time.monotonic() - start < 2.5


def write_recipe(folder: Path, data: str) -> Path:
    recipe = folder / "recipe"
    recipe.mkdir()
    for file in RECIPE.glob("*.py"):
        (recipe / file.name).write_text(file.read_text())
    settings = (RECIPE / "recipe.toml").read_text()
    before, _, rest = settings.partition("[data]\n")
    after = "\n[" + rest.partition("\n[")[2]
    (recipe / "recipe.toml").write_text(f"{before}[data]\n{data}{after}")
    return recipe


def test_a_run_keeps_the_commits_of_its_data_when_the_branch_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache_set(tmp_path / "hub-cache", "owner/sums")
    source = "hf://owner/sums@main"
    recipe = write_recipe(
        tmp_path,
        f'train = "{source}?split=train"\nvalidation = "hf://owner/sums?split=test&limit=2"\n'
        'columns = {prompt = "question"}\n',
    )
    tasks = load_tasks(load_config(recipe), recipe)
    assert [len(tasks.train) + len(tasks.held_out), len(tasks.validation)] == [3, 2]

    overrides = [f"run.runs_dir={tmp_path / 'runs'}", "schedule.max_steps=1", "data.held_out_fraction=0.0"]
    with MultiTurnRLTrainer(recipe, overrides=overrides, name="run", check=False, quiet=True) as trainer:
        trainer.train()
    assert f"{source}?split=train is read at commit {COMMIT}" in capsys.readouterr().err
    run = RunFolder(tmp_path / "runs" / "run")
    assert run.config().data.train == f"hf://owner/sums@{COMMIT}?split=train"
    assert run.config().data.validation == f"hf://owner/sums@{COMMIT}?split=test&limit=2"
    manifest = run.manifest()
    assert manifest["data_revisions"] == {
        f"{source}?split=train": COMMIT,
        "hf://owner/sums?split=test&limit=2": COMMIT,
    }
    assert manifest["contents"]["data"]["train"]["tasks"] == 3

    cache_set(tmp_path / "hub-cache", "owner/sums", commit=COMMIT[::-1], rows=4)
    with MultiTurnRLTrainer.attach(run.path, overrides=["schedule.max_steps=2"], quiet=True) as again:
        assert again.train(resume=True).step == 2
    cache_set(tmp_path / "hub-cache", "owner/sums", rows=4)
    with (
        MultiTurnRLTrainer.attach(run.path, overrides=["schedule.max_steps=3"], quiet=True) as again,
        pytest.raises(UsageError, match=r"different parts than it was trained with: .*data"),
    ):
        again.train(resume=True)


@pytest.mark.usefixtures("refusing")
def test_a_commit_in_the_cache_needs_no_hub_and_a_branch_does(tmp_path: Path) -> None:
    cache_set(tmp_path / "hub-cache", "owner/silent")
    assert len(read(f"hf://owner/silent@{COMMIT}?split=test", tmp_path)) == 3
    with pytest.raises(ServiceError, match="cannot be fetched from the hub"):
        read("hf://owner/silent@main", tmp_path)


def test_a_check_reports_the_commit_of_the_data(tmp_path: Path) -> None:
    cache_set(tmp_path / "hub-cache", "owner/sums")
    recipe = write_recipe(tmp_path, 'train = "hf://owner/sums"\ncolumns = {prompt = "question"}\n')
    command = [sys.executable, "-m", "sparring", "check", str(recipe), "--only", "files"]
    place = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub-cache")}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **place}, timeout=120)
    assert f"data: hf://owner/sums was read at commit {COMMIT}" in done.stdout.splitlines(), done.stderr


def test_a_run_finds_folders_of_data_sets_inside_and_outside_of_its_recipe(tmp_path: Path) -> None:
    data = 'train = "hf://./inside?split=train"\nvalidation = "hf://../outside?split=test&limit=2"\n'
    recipe = write_recipe(tmp_path, data + 'columns = {prompt = "question"}\n')
    write_set(recipe / "inside")
    write_set(tmp_path / "outside")
    overrides = [f"run.runs_dir={tmp_path / 'runs'}", "schedule.max_steps=1", "data.held_out_fraction=0.0"]
    with MultiTurnRLTrainer(recipe, overrides=overrides, name="run", check=False, quiet=True) as trainer:
        trainer.train()
    shutil.rmtree(recipe)
    run = RunFolder(tmp_path / "runs" / "run")
    assert run.config().data.train == "hf://./inside?split=train"
    assert run.config().data.validation == f"hf://{tmp_path / 'outside'}?split=test&limit=2"
    tasks = load_tasks(run.config(), run.code)
    assert (len(tasks.train), len(tasks.validation)) == (3, 2)


def test_columns_are_refused_where_they_do_nothing(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, 'train = "tiny:train_tasks"\ncolumns = {prompt = "question"}\n')
    with pytest.raises(ConfigError, match=r"data\.columns.*no split is read from a file"):
        load_config(recipe)
