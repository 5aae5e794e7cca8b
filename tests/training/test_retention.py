"""What `sparring runs prune` removes, what it keeps, and what other commands report afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sparring.cli import app
from sparring.run_folders import RunFolder
from sparring.training import retention

STORED = Path(__file__).parents[1] / "run_folders" / "stored" / "format-2.tar.xz"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stored run with a checkpoint before its own one, another that was set aside, and a local store of MLflow."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open(STORED) as archive:
        archive.extractall("runs", filter="data")
    run = tmp_path / "runs" / "stored"
    for name in ("checkpoints/000001", "set_aside/000003"):
        shutil.copytree(run / "checkpoints" / "000002", run / name)
    (run / "mlflow.sqlite").write_bytes(bytes(2**20))
    (run / "mlflow.json").write_text("{}")
    set_status(run, "completed")
    return run


def set_status(run: Path, status: str) -> None:
    content = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**content, "status": status}))


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def pruned(*options: str) -> dict[tuple[str, str], int]:
    result = sparring("runs", "prune", "stored", "--json", *options)
    assert result.exit_code == 0, result.output
    return {(one["kind"], one["name"]): one["bytes"] for one in json.loads(result.stdout)["items"]}


def files(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_listing_removes_nothing_and_shows_sizes(run: Path) -> None:
    before = files(run)
    result = sparring("runs", "prune", "stored")
    assert result.exit_code == 0, result.output
    assert re.search(r"traces +mlflow +1\.0 MiB", result.stdout.replace("│", ""))
    assert "nothing was removed: add --yes" in result.stdout
    assert files(run) == before


def test_a_pruned_run_is_verified_shown_and_reported(run: Path) -> None:
    kept = {name for name in files(run) if name.startswith(("ledger", "metrics", "evaluations", "recipe", "run.toml"))}
    found = pruned("--yes")
    assert {kind for kind, _ in found} == set(retention.KINDS)
    left = files(run)
    assert kept <= left
    assert not any(name.startswith(("trajectories", "environment", "digests", "mlflow.sqlite")) for name in left)
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"000002", "warm_start"}
    for command in (["verify"], ["runs", "show"], ["diagnose"], ["report"]):
        result = sparring(*command, "stored")
        assert result.exit_code == 0, (command, result.output)
        if command[0] in ("verify", "runs"):
            assert "`sparring runs prune` has removed the episodes of" in " ".join(result.stdout.split())
    assert "`sparring runs prune` has removed" in (run / "report.html").read_text("utf-8").replace("&#x60;", "`")
    assert pruned() == {}


def set_scores(run: Path, scores: Mapping[int, float]) -> None:
    for path in (run / "evaluations").glob("validation-*.json"):
        path.unlink()
    for step, mean in scores.items():
        (run / "evaluations" / f"validation-{step}.json").write_text(json.dumps({"score": {"mean": mean}}))


def test_the_best_and_the_newest_checkpoints_stay(run: Path) -> None:
    def names() -> set[str]:
        return {name for _, name in pruned("--what", "checkpoints")}

    shutil.copytree(run / "checkpoints" / "000002", run / "checkpoints" / "000000")
    set_scores(run, {})
    assert names() == {"000000", "000001", "set_aside/000003"}
    assert pruned("--what", "checkpoints", "--keep", "2").keys() == {
        ("checkpoints", name) for name in ("000000", "set_aside/000003")
    }
    set_scores(run, {0: 1.0, 2: 0.5})
    assert names() == {"000001", "set_aside/000003"}
    pruned("--what", "checkpoints", "--yes")
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"000000", "000002", "warm_start"}


def test_an_age_and_a_number_limit_what_is_removed(run: Path) -> None:
    everything = pruned("--what", "episodes")
    old = run / "trajectories" / "train-1.jsonl"
    for path in run.rglob("train-1.jsonl"):
        os.utime(path, (time.time() - 40 * 86400,) * 2)
    assert old.is_file()
    assert set(pruned("--older-than", "30d")) == {("episodes", "train-1")}
    assert pruned("--older-than", "8w") == {}
    newest = max(int(name.partition("-")[2]) for _, name in everything if name.startswith("train-"))
    assert ("episodes", f"train-{newest}") not in pruned("--what", "episodes", "--keep", "1")


def test_a_run_that_can_continue_keeps_the_episodes_that_detectors_read(run: Path) -> None:
    everything = {name for _, name in pruned("--what", "episodes")}
    set_status(run, "stopped")
    left = {name for _, name in pruned("--what", "episodes")}
    assert any(name.startswith("train-") for name in everything)
    assert left == {name for name in everything if not name.startswith(("train-", "validation-"))}


def test_a_removal_that_was_interrupted_is_finished_by_the_next(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention.shutil, "rmtree", dies)
        assert sparring("runs", "prune", "stored", "--yes").exit_code != 0
    assert sparring("verify", "stored").exit_code == 0
    assert pruned("--yes") != {}
    assert pruned() == {}
    assert sparring("verify", "stored").exit_code == 0


def test_a_running_run_is_refused(run: Path) -> None:
    RunFolder(run).set_status("running")
    result = sparring("runs", "prune", "stored", "--yes")
    assert result.exit_code == 2
    assert "is running; stop it first" in result.output


@pytest.mark.parametrize(("option", "value"), [("--older-than", "soon"), ("--what", "everything")])
def test_a_wrong_option_is_refused(run: Path, option: str, value: str) -> None:
    del run
    result = sparring("runs", "prune", "stored", option, value)
    assert result.exit_code == 2
    assert value in result.output
