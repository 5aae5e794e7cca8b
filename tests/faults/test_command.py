"""The command itself: killed, it goes on unattended and exits as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sparring.faults import FAULTS_VARIABLE, LOG_VARIABLE
from sparring.ledger.verification import verify_file
from tests.faults.training import RECIPE


def test_sparring_train_resumes_unattended(tmp_path: Path) -> None:
    environment = {
        **os.environ, FAULTS_VARIABLE: "checkpoint.renamed=kill,at=2", LOG_VARIABLE: str(tmp_path / "faults"),
    }  # fmt: skip
    command = [sys.executable, "-m", "sparring", "train", str(RECIPE), "--name", "run", "--no-check", "--json"]
    done = subprocess.run(
        [*command, f"run.runs_dir={tmp_path}"], env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "completed"
    assert len((tmp_path / "run" / "restarts.jsonl").read_text().splitlines()) == 1
    assert verify_file(tmp_path / "run" / "ledger.sqlite", max_steps_off_policy=0) == []
    assert "terminate called" not in done.stderr
