"""What the docs show of environments of others follows from stored results."""

import json
from pathlib import Path

from benchmarks.outside import FAMILIES, measured

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks" / "results" / "outside.json"


def test_the_docs_show_what_is_stored() -> None:
    content = json.loads(STORED.read_text("utf-8"))
    text = (ROOT / "docs" / "outside.md").read_text("utf-8")
    for family in dict.fromkeys(row["family"] for row in content["rows"]):
        assert f"<!-- measured:outside_{family} -->\n{measured(content, family)}\n" in text


def test_every_stored_seed_has_a_control_longer_than_rl_an_expert_and_a_diagnosis() -> None:
    rows = json.loads(STORED.read_text("utf-8"))["rows"]
    runs = [row for row in rows if "gain over the control" in row]
    assert runs
    assert {row["family"] for row in rows} <= set(FAMILIES)
    for row in runs:
        assert row["control seconds"] > row["RL seconds"]
        assert row["diagnosis"]["headline"]
        assert row["diagnosis"]["claim"]
        assert row["expert"]["success"] >= row["tuned"]["sampled"]


def test_every_stored_family_has_a_run_on_shuffled_rewards() -> None:
    rows = json.loads(STORED.read_text("utf-8"))["rows"]
    for family in dict.fromkeys(row["family"] for row in rows):
        assert any(row["family"] == family and "tuned" in row and "diagnosis" not in row for row in rows)
