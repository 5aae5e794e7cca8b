"""The trainer's side of MLflow: it starts a process, passes on what that says, and never waits longer than it should."""

import json
import sys
import time
from pathlib import Path

import pytest

from sparring.tracking.mlflow_tracker import MlflowTracker


def tracker(folder: Path, program: str) -> MlflowTracker:
    return MlflowTracker(folder, uri="http://127.0.0.1:1", experiment="exp", command=[sys.executable, "-c", program])


def test_it_is_told_where_to_look_and_that_the_run_is_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = (
        "import sys, pathlib; line = sys.stdin.readline(); sys.stdin.read();"
        f"pathlib.Path({str(tmp_path / 'told')!r}).write_text(line); print('it was slow'); print('done')"
    )
    started = tracker(tmp_path, program)
    assert started.finish(60.0)
    settings = json.loads((tmp_path / "told").read_text())
    assert settings == {"folder": str(tmp_path), "uri": "http://127.0.0.1:1", "experiment": "exp"}
    assert [record.message for record in caplog.records] == ["tracking: MLflow: it was slow"]


def test_one_that_hangs_is_ended_and_a_person_told_how_to_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = tracker(tmp_path, "import time; time.sleep(600)")
    began = time.monotonic()
    started.log_metrics(1, {"a": 1.0})
    assert not started.finish(0.2)
    assert time.monotonic() - began < 30.0
    assert f"`sparring runs sync {tmp_path}` tells the rest" in caplog.text
    assert not started.finish(0.2)


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "print('left')"])
def test_one_that_ends_early_or_leaves_something_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: str
) -> None:
    started = tracker(tmp_path, program)
    started.log_status("running")
    started.close()
    assert "has not been told everything" in caplog.text
