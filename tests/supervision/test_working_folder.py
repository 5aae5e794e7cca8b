"""Python files in the working folder are not taken for modules of Sparring's own processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.faults.training import RECIPE

SOURCES = Path(__file__).parents[2] / "sparring"


def test_a_working_folder_with_modules_of_the_same_names_is_trained_in(tmp_path: Path) -> None:
    for name in ("sparring", "statistics", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the working folder was imported')")
    (tmp_path / "random.py").write_text("raise RuntimeError('the working folder was imported')")
    sparring = str(Path(sys.executable).with_name("sparring"))
    # Both run the recipe's own files in processes of their own.
    check = [sparring, "check", str(RECIPE), "--only", "environment", "--json"]
    checked = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    train = [sparring, "train", str(RECIPE), "--no-check", "schedule.max_steps=1", "--json"]
    trained = subprocess.run(train, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["status"] == "completed"


def test_every_process_that_runs_a_module_leaves_the_working_folder_out() -> None:
    starts = {
        f"{path.relative_to(SOURCES)}: {found[0]}"
        for path in SOURCES.rglob("*.py")
        for found in re.finditer(r'sys\.executable,[^\])]*?"-m"', path.read_text("utf-8"))
        if '"-P"' not in found[0]
    }
    assert starts == set()
