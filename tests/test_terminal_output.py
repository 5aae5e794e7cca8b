"""What a policy, a file or a stranger wrote cannot control the terminal of the commands that show it."""

from __future__ import annotations

import json
import logging
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console as RichConsole
from typer.testing import CliRunner

from sparring.cli import app
from sparring.run_folders import RunFolder
from sparring.runtime.logs import get_logger, show_on_stderr
from sparring.runtime.terminal import visible
from sparring.tracking import Console

TINY = Path(__file__).parent / "faults" / "recipe"
HOSTILE = "\x1b[2J\x9b1m\u202eab\rc\x07"
SHOWN = r"\x1b[2J\x9b1m\u202eab\rc\x07"
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def test_control_characters_are_shown_and_text_of_all_languages_stays() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("\0\ud800\u2066") == r"\x00\ud800\u2066"
    assert visible("a\tb\nשלום 日本語 👩‍👩‍👧 é") == "a\tb\nשלום 日本語 👩‍👩‍👧 é"


def test_tables_lines_and_logs_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output, results = StringIO(), StringIO()
    console = Console(progress=RichConsole(file=output), results=RichConsole(file=results, width=200))
    console.table(HOSTILE, ["a", HOSTILE], [[1, HOSTILE]])
    console.announced(HOSTILE)
    console.log_finding({"severity": "error", "rule": "r", "step": 1, "symptom": HOSTILE, "change": ""})
    show_on_stderr()
    get_logger("sparring.of_test").log(logging.WARNING, "it wrote %s", HOSTILE)
    assert results.getvalue().count(SHOWN) == 3
    assert output.getvalue().count(SHOWN) == 2
    logged = capsys.readouterr().err
    assert SHOWN in logged
    assert CONTROLS.search(output.getvalue() + results.getvalue() + logged) is None


def test_no_command_that_reads_a_run_sends_control_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation"):
        rows = [{"id": f"{HOSTILE}{split}{number}", "prompt": f"say {number}"} for number in range(4)]
        Path(f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = [f"data.{split}={tmp_path}/{split}.jsonl" for split in ("train", "validation")]
    changes += ["schedule.max_steps=2", "schedule.val_every=1", "schedule.save_every=1"]
    output = run(["train", str(TINY), *changes, "--name", "run", "--no-check", "--no-supervise"])
    folder = RunFolder(Path("runs/run"))
    folder.set_status("failed", reason=f"it wrote {HOSTILE}")
    finding = {"time": 0.0, "rule": HOSTILE, "severity": "error", "symptom": HOSTILE, "evidence": {HOSTILE: HOSTILE}}
    with (folder.path / "findings.jsonl").open("a") as file:
        file.write(json.dumps({**finding, "change": HOSTILE, "confirm": HOSTILE, "step": 1}) + "\n")
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "time": 0.0, "metrics": {HOSTILE: 1.0}}) + "\n")
    for command in (
        ["runs", "show", "run"],
        ["runs", "list"],
        ["diagnose", "run"],
        ["review", "run"],
        ["replay", "run"],
        ["report", "run"],
        ["verify", "run"],
        ["replay", "run", HOSTILE],
        ["runs", "show", HOSTILE],
    ):
        output += run(command)
    assert SHOWN in output
    assert CONTROLS.search(output) is None


def run(command: list[str]) -> str:
    result = CliRunner().invoke(app, command, terminal_width=200)
    assert result.exit_code != 1, result.output
    return result.output
