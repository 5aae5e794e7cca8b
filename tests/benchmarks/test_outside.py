"""What the docs show of environments of others follows from stored results, and the command that stores them runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.outside import FAMILIES, measured

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks" / "results" / "outside.json"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_docs_show_what_is_stored(family: str) -> None:
    text = (ROOT / "docs" / "outside.md").read_text("utf-8")
    block = text.partition(f"<!-- measured:{family} -->")[2].partition(f"<!-- /measured:{family} -->")[0]
    assert block.strip() == measured(json.loads(STORED.read_text("utf-8")), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stored_results_have_every_side(family: str) -> None:
    content = json.loads(STORED.read_text("utf-8"))
    rows = [row for row in content["rows"] if row["family"] == family]
    controlled = [row for row in rows if "warm start continued" in row]
    assert len({row["seed"] for row in controlled}) == 3
    assert sum(row["control seconds"] for row in controlled) > sum(row["RL seconds"] for row in controlled)
    assert len([row for row in rows if "tuned" in row]) > len(controlled)
    assert {key.partition(":")[0] for key in content["targets"]} == set(FAMILIES)


def test_the_command_runs_every_side_in_small(tmp_path: Path) -> None:
    options = ["--smoke", "--families", "blackjack", "--json", str(tmp_path / "small.json")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.outside", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "small.json").read_text("utf-8"))
    check, run, shuffled = content["rows"]
    assert {one["rule"] for one in check["check"]["findings"]} >= {"policies.expert"}
    assert run["control steps"] == 4
    assert run["diagnosis"]["headline"]
    assert run["diagnosis"]["claim"]
    assert 0 < run["expert"]["success"] <= 1
    assert "tuned" in shuffled
    assert "`sparring diagnose`" in measured(content, "blackjack")
