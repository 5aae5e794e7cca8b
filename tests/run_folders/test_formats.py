"""Runs that earlier versions stored can be read, shown and continued. Runs of a later version are refused."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring import Run
from sparring.cli import app
from sparring.copies import manifest
from sparring.errors import DataError, ServiceError
from sparring.evaluation import job, report
from sparring.ledger import rows
from sparring.models import export_files
from sparring.run_folders import RunFolder, digests, family_folder
from sparring.run_folders.formats import require_format
from sparring.run_folders.run_folder import MANIFEST_FORMAT
from sparring.run_folders.stored import TRAJECTORY_FORMAT
from sparring.runtime import remote
from sparring.training import checkpoint_files
from sparring.workers import handshake

STORED = sorted((Path(__file__).parent / "stored").glob("*.tar.xz"))
READERS = (
    ("runs", "list"),
    ("runs", "show", "stored"),
    ("report", "stored"),
    ("diagnose", "stored"),
    ("verify", "stored"),
    ("replay", "stored"),
    ("review", "stored"),
    ("eval", "--compare", "stored"),
    ("export", "stored", "exported", "--merge"),
    ("runs", "branch", "stored", "optimizer.learning_rate=1e-3", "schedule.max_steps=4", "--no-train"),
    ("eval", "stored", "--temperature", "1"),
    ("train", "--resume", "stored", "--no-supervise", "schedule.max_steps=3"),
)


@pytest.fixture(params=STORED, ids=lambda path: path.name.partition(".")[0])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with tarfile.open(request.param) as archive:
        archive.extractall("runs", filter="data")
    return Path("runs/stored")


def test_there_is_a_stored_run_of_each_format() -> None:
    assert [path.name for path in STORED] == [f"format-{number + 1}.tar.xz" for number in range(MANIFEST_FORMAT)]


def test_everything_that_reads_runs_opens_a_stored_run(run: Path) -> None:
    for arguments in READERS:
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 0, (arguments, done.output)
    folder = RunFolder(run)
    assert folder.manifest()["format"] == MANIFEST_FORMAT
    assert "tiny.py" in folder.files()
    assert (folder.status()["status"], folder.status()["step"]) == ("completed", 3)
    frames = Run(run)
    assert sorted(set(frames.episodes()["split"])) == ["held_out", "train", "validation"]
    assert list(frames.metrics().index)[-1] == 3


def test_a_run_of_a_later_format_is_refused_by_everything_but_the_list(run: Path) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": MANIFEST_FORMAT + 1}))
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    for arguments in READERS:
        done = CliRunner().invoke(app, list(arguments))
        if arguments == ("runs", "list"):
            assert done.exit_code == 0
            continue
        assert done.exit_code == DataError.exit_code, (arguments, done.output)
        assert f"has format {MANIFEST_FORMAT + 1}" in done.output, arguments
        assert "update Sparring" in done.output
    with pytest.raises(DataError, match="has format"):
        Run(run).metrics()
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    assert [one.name for one in Path("runs").iterdir()] == ["stored"]


def test_a_damaged_or_unknown_format_asks_for_the_version_that_wrote_it() -> None:
    require_format("a.json", 1, 2, oldest=1)
    with pytest.raises(
        DataError, match=r"a\.json has format 1, .* reads format 2\. Use the version .*, or restore it\."
    ):
        require_format("a.json", 1, 2)
    with pytest.raises(ServiceError, match=r"has format 'x', .* reads formats 2 to 3\. Use the version"):
        require_format("a.json", "x", 3, oldest=2, error=ServiceError)


def test_an_episode_of_a_later_format_is_not_misread(run: Path) -> None:
    file = run / "trajectories" / "train-1.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "format": 2}) + "\n" for line in lines))
    shutil.rmtree(run / "digests", ignore_errors=True)
    done = CliRunner().invoke(app, ["report", "stored"])
    assert done.exit_code == DataError.exit_code
    assert "line 1 has format 2" in done.output


def test_the_documented_numbers_are_those_of_the_code() -> None:
    numbers = {
        "run folder": MANIFEST_FORMAT,
        "`ledger.sqlite`": rows.FORMAT,
        "episodes in": TRAJECTORY_FORMAT,
        "`evaluations/*.json`": report.FORMAT,
        "`evaluations/*.part/job.json`": job.FORMAT,
        "checkpoint": checkpoint_files.FORMAT,
        "`family.json`": family_folder.FORMAT,
        "copy in": manifest.FORMAT,
        "export": export_files.FORMAT,
        "digests": digests.FORMAT,
        "engines and learners": remote.PROTOCOL,
        "workers": handshake.PROTOCOL,
    }
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text("utf-8")
    section = page.partition("## Formats and versions")[2].partition("\n## ")[0]
    table = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    for name, number in numbers.items():
        assert [int(row[1]) for row in table if row[0].startswith(f"| {name}")] == [number], name
    assert len(table) == len(numbers)
