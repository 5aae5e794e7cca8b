"""`sparring report`: writes the page, reports the verdict, refuses what it cannot do."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.cli import app
from sparring.errors import UsageError
from sparring.metering.prices import read_prices
from sparring.report import write_report
from tests.report.stored_run import StoredRun, episode, evaluation, held_out


def test_the_page_lies_in_the_run_and_the_command_reports_the_verdict(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    tokens = {"sampled": 500_000.0, "computed": 2_500_000.0, "distinct": 2_000_000.0}
    run.log({1: {f"rollout/tokens/{name}": number for name, number in tokens.items()} | {"timing_s/step": 1800.0}})
    first, last = held_out("base-0", [0.0] * 25), held_out("tuned-0", [1.0] * 25)
    run.evaluated((evaluation("base", first), first), (evaluation("tuned", last), last))
    prices = ["--price", "sample=2", "--price", "prefill=0.5", "--price", "hour=3"]
    result = CliRunner().invoke(app, ["report", str(run.path), "--json", *prices])
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    assert output["path"] == str(run.path / "report.html")
    assert (output["episodes"], output["left_out"], output["verdict"]["rise"]) == (50, 0, "rose")
    page = (run.path / "report.html").read_text("utf-8")
    assert output["bytes"] == len(page.encode())
    # Half a million sampled at 2, two million read at 0.5, half an hour at 3.
    assert "<b>3.5</b>" in page
    assert '<td>computed in rollouts</td><td class="number">1.25</td>' in page
    assert "computed in training" not in page  # its metrics are missing, as in a run of an older version


def test_a_folder_that_is_no_run_a_wrong_price_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["report", str(tmp_path / "nothing")]).exit_code == 3
    run = StoredRun(tmp_path)
    result = CliRunner().invoke(app, ["report", str(run.path), "--out", str(tmp_path / "no" / "page.html")])
    assert result.exit_code == 2
    assert "cannot be written" in result.output
    for wrong in ("gpu=1", "sample", "sample=-1", "sample=nan", "sample=inf"):
        with pytest.raises(UsageError, match="is not a price"):
            read_prices([wrong])


def test_a_run_that_has_done_nothing_yet_has_a_page(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    (run.path / "vocabulary.json").unlink()
    result = CliRunner().invoke(app, ["report", str(run.path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["verdict"]["rise"] == "unknown"


def test_a_secret_that_an_episode_let_out_is_not_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "sk-4711<&>0815")
    run = StoredRun(tmp_path)
    text = "the key is sk-4711<&>0815, I think"
    run.log({1: {"training/loss": 0.1}}, {"train-1": [episode("train/0/a/0.0", reward=1.0, score=1.0, text=text)]})
    write_report(run.path)
    page = (run.path / "report.html").read_text("utf-8")
    assert "the key is ***, I think" in page
    assert "0815" not in page
