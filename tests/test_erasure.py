"""After `sparring runs erase`, nothing of an episode's content is in the run's folder, its copy or a recording, and the run
can still be read, verified and continued."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import read_rows
from tests.run_folders.test_formats import READERS
from tests.serving.test_record import client_of, recorded

STORED = Path(__file__).parent / "run_folders" / "stored" / "format-2.tar.xz"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with tarfile.open(STORED) as archive:
        archive.extractall("runs", filter="data")
    return Path("runs/stored")


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def erased(*options: str, run: str = "stored") -> Any:
    result = sparring("runs", "erase", run, "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def episodes(run: Path) -> dict[str, Any]:
    return {row["id"]: row for file in sorted((run / "trajectories").glob("*.jsonl")) for _, row in read_rows(file)}


def turns(run: Path, task: str) -> list[Any]:
    with Ledger(run / "ledger.sqlite") as ledger:
        return [turn for one in ledger.rollouts() if one.task_id == task for turn in ledger.load_turns(one.id)]


def holding(folder: Path, text: str) -> set[str]:
    """Return the files that contain a text."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    }


def plant(run: Path, text: str, task: str = "t1") -> list[str]:
    """Let each episode of a task contain a text, as if the user and the policy had written it, and likewise the logs, which
    quote an episode. Return the ids of the episodes."""
    ids = [id for id, row in episodes(run).items() if row["task"]["id"] == task]
    for file in (run / "trajectories").glob("*.jsonl"):
        rows = [row for _, row in read_rows(file)]
        for row in rows:
            if row["id"] in ids:
                row["messages"][0]["content"] += f' I am {text}. "quoted"'
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with sqlite3.connect(run / "ledger.sqlite") as db:
        for id in ids:
            message = json.dumps({"role": "assistant", "content": f"hello {text}"})
            db.execute("UPDATE turns SET message = ?, digest = NULL WHERE rollout_id = ?", (message, id))
    (run / "log.jsonl").write_text(json.dumps({"level": "WARNING", "message": f"{ids[0]}: odd"}) + "\n")
    with (run / "findings.jsonl").open("a") as findings:
        findings.write(json.dumps({"rule": "a", "evidence": [f"for example {text}", ids[0], "kept"]}) + "\n")
    for folder in ("tensorboard", "wandb", "mlflow_artifacts"):
        (run / folder).mkdir()
        (run / folder / "file").write_text(text)
    for name in ("mlflow.json", "tensorboard.json", "report.html"):
        (run / name).write_text(text)
    with sqlite3.connect(run / "mlflow.sqlite") as db:
        db.execute("CREATE TABLE traces (text TEXT)")
        db.execute("INSERT INTO traces VALUES (?)", (text,))
    return ids


def test_a_listing_changes_nothing(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = sparring("runs", "erase", "stored", "--task", "t1")
    assert result.exit_code == 0, result.output
    assert "3 episodes of 1 task in runs/stored; nothing was erased: add --yes" in result.stdout
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"} == before
    for options in ((), ("--containing", " ")):
        assert sparring("runs", "erase", "stored", *options).exit_code == 2


def test_a_text_is_in_no_file_afterwards_and_everything_else_stays(run: Path) -> None:
    others = {id: row for id, row in episodes(run).items() if row["task"]["id"] != "t1"}
    ids = plant(run, "Ada Lovelace")
    assert len(ids) == 3
    evaluations = {path: path.read_bytes() for path in (run / "evaluations").iterdir()}
    metrics = (run / "metrics.jsonl").read_bytes()
    sizes = [(len(one.prompt_ids), len(one.token_ids), one.versions) for one in turns(run, "t1")]
    found = erased("--containing", "ADA lovelace", "--yes")
    assert (found["episodes"], found["tasks"], found["remaining"]) == (sorted(ids), ["t1"], [])
    assert holding(run, "Ada Lovelace") == set()
    assert episodes(run) == others
    assert {path: path.read_bytes() for path in (run / "evaluations").iterdir()} == evaluations
    assert (run / "metrics.jsonl").read_bytes() == metrics
    assert json.loads((run / "findings.jsonl").read_text().splitlines()[-1])["evidence"] == ["[erased]", ids[0], "kept"]
    assert json.loads((run / "log.jsonl").read_text())["message"] == "[erased]"
    assert not any((run / name).exists() for name in ("tensorboard", "wandb", "mlflow.sqlite", "report.html"))
    # The ledger still counts the same tokens.
    assert [(len(one.prompt_ids), len(one.token_ids), one.versions) for one in turns(run, "t1")] == sizes
    assert all(not any(one.prompt_ids + one.token_ids) for one in turns(run, "t1"))
    assert erased("--containing", "Ada Lovelace")["episodes"] == []
    assert erased("--task", "t1")["episodes"] == []


def test_an_erased_run_can_be_read_verified_and_continued(run: Path) -> None:
    erased("--task", "t1", "--yes")
    for arguments in READERS:
        done = sparring(*arguments)
        assert done.exit_code == 0, (arguments, done.output)
    assert "`sparring runs erase` has erased the content of 3 of them" in " ".join(
        sparring("verify", "stored").output.split()
    )
    refused = sparring("replay", "stored", "--training")
    assert refused.exit_code == 3
    assert "The episodes of step 1 of runs/stored were erased" in refused.output


def test_a_run_whose_episodes_were_pruned_is_searched_by_its_tokens(run: Path) -> None:
    for name in ("trajectories", "environment", "digests"):
        for file in (run / name).glob("*.jsonl"):
            file.unlink()
    task = next(one for _, one in read_rows_of_data() if one["id"] == "t1")["messages"][0]["content"]
    found = erased("--containing", task)
    assert "t1" in found["tasks"]


def read_rows_of_data() -> list[tuple[str, Any]]:
    """Return the tasks as stored in the archive."""
    with tarfile.open(STORED) as archive:
        file = archive.extractfile("stored/trajectories/train-1.jsonl")
        assert file is not None
        return [("", json.loads(line)["task"]) for line in file]


def test_what_cannot_be_erased_is_named(run: Path) -> None:
    (run / "recipe" / "tasks.jsonl").write_text(json.dumps({"id": "t1", "prompt": "1?"}) + "\n")
    found = erased("--task", "t1", "--yes")
    assert found["remaining"] == ["runs/stored/recipe/tasks.jsonl"]
    assert any("weights" in one for one in found["elsewhere"])


def test_a_run_in_use_is_refused(run: Path) -> None:
    before = episodes(run)
    with RunFolder(run).lock_for_training():
        assert sparring("runs", "erase", "stored", "--task", "t1", "--yes").exit_code == 2
    with Ledger(run / "ledger.sqlite"):
        refused = sparring("runs", "erase", "stored", "--task", "t1", "--yes")
        assert refused.exit_code == 2
        assert "in use by another process" in " ".join(refused.output.split())
    (run / "evaluations" / "held_out-002.part").mkdir()
    assert sparring("runs", "erase", "stored", "--task", "t1", "--yes").exit_code == 2
    assert episodes(run) == before


def test_an_erasure_that_was_interrupted_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(run, "Ada Lovelace")

    def fail(*_: Any) -> None:
        raise OSError("disk")

    with monkeypatch.context() as broken:
        broken.setattr("sparring.erasure._replace", fail)
        assert sparring("runs", "erase", "stored", "--containing", "Ada Lovelace", "--yes").exit_code != 0
    assert len(erased("--containing", "Ada Lovelace", "--yes")["episodes"]) == 3
    assert holding(run, "Ada Lovelace") == set()


def test_the_copy_is_erased_too(run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    text = (run / "run.toml").read_text()
    (run / "run.toml").write_text(text.replace("[run]", f'[run]\ncopy_to = "file://{store}"', 1))
    assert "copy_to" in (run / "run.toml").read_text()
    plant(run, "Ada Lovelace")
    copied = sparring("runs", "copy", "stored")
    assert copied.exit_code == 0, copied.output
    assert holding(store, "Ada Lovelace")
    erased("--containing", "Ada Lovelace", "--yes")
    assert holding(store, "Ada Lovelace") == set()
    fetched = sparring("runs", "fetch", f"file://{store}/stored", "--runs-dir", "back")
    assert fetched.exit_code == 0, fetched.output
    assert len(episodes(tmp_path / "back" / "stored")) == len(episodes(run))


def test_a_recording_is_erased(tmp_path: Path) -> None:
    async def play(base_url: str) -> None:
        async with client_of(base_url) as client:
            for name in ("Ada-Lovelace", "Alan-Turing"):
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": f"find {name} 1?"}]
                )

    recorded(tmp_path / "recording", play)
    assert holding(tmp_path / "recording", "Ada-Lovelace")
    found = erased("--containing", "ada-lovelace", "--yes", run=str(tmp_path / "recording"))
    assert len(found["episodes"]) == 1
    assert holding(tmp_path / "recording", "Ada-Lovelace") == set()
    assert holding(tmp_path / "recording", "Alan-Turing")
