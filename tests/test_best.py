"""The checkpoint with the best validation stays, is shown, and can be named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.errors import DataError, UsageError
from sparring.evaluation.policies import checkpoint_of, find_checkpoint, read_policy
from sparring.run_folders import RunFolder
from sparring.trainer import MultiTurnRLTrainer

TINY = Path(__file__).parent / "faults" / "recipe"


def trained(runs: Path, *overrides: str) -> RunFolder:
    """For four steps, each of them saved and validated."""
    every = ("schedule.save_every=1", "schedule.val_every=1")
    with MultiTurnRLTrainer(
        TINY, overrides=[f"run.runs_dir={runs}", *every, *overrides], name="run", quiet=True, check=False
    ) as trainer:
        trainer.train()
    return RunFolder(runs / "run")


def steps(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.checkpoints.glob("[!.]*") if path.name.isdigit())


def test_the_best_of_those_that_were_validated_outlives_newer_ones(tmp_path: Path) -> None:
    folder = trained(tmp_path, "schedule.keep_checkpoints=1")
    scores = folder.validation_scores()
    assert sorted(scores) == [0, 1, 2, 3, 4]
    # When the fourth was saved, three had been validated.
    best = max((1, 2, 3), key=lambda step: (scores[step], -step))
    assert steps(folder) == [f"{best:06}", "000004"]


def test_the_best_is_shown_and_exported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(tmp_path / "runs", "schedule.keep_checkpoints=9")
    for step in range(5):
        path = folder.evaluations / f"validation-{step}.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "score": {**content["score"], "mean": 0.9 if step == 2 else 0.3}}))
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["runs", "show", "run", "--json"])
    assert json.loads(shown.stdout)["checkpoints"] == [
        {"step": step, "score": 0.9 if step == 2 else 0.3, "is_best": step == 2} for step in (4, 3, 2, 1)
    ]
    assert checkpoint_of(folder, "best") == folder.checkpoints / "000002"
    assert read_policy("run@best").source == "run@best"
    for name in ("run@best", "run@2", "run"):
        done = CliRunner().invoke(app, ["export", name, f"out {name}", "--merge"])
        assert done.exit_code == 0, done.output
    best, second, newest = (Path(f"out {name}/model.safetensors").read_bytes() for name in ("run@best", "run@2", "run"))
    assert best == second != newest
    (folder.evaluations / "validation-3.json").unlink()
    table = CliRunner().invoke(app, ["runs", "show", "run"]).stdout
    assert "none" in table
    assert "None" not in table


def test_a_name_of_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").touch()
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(DataError, match=r"was validated, so the best one is not known; specify a step"):
        checkpoint_of(folder, "best")
    with pytest.raises(UsageError, match=r"write a step after @, or best"):
        find_checkpoint(f"{folder.path}@worst")
    assert find_checkpoint(tmp_path / "nothing@3") is None
    folder.evaluations.mkdir()
    (folder.evaluations / "validation-3.json").write_text("{}")
    with pytest.raises(DataError, match=r"validation-3\.json is not a valid validation result"):
        folder.validation_scores()
