"""The table of the README follows from stored results."""

import json
from pathlib import Path

import pytest

from benchmarks.evidence import table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
STORED = RESULTS / "pointer_chase.json"


@pytest.mark.parametrize(
    ("page", "name", "stored"),
    [
        ("README.md", "quickstart", STORED),
        ("README.md", "smollm2", RESULTS / "smollm2.json"),
        ("recipes/sop_small/README.md", "sop_small", RESULTS / "sop_small.json"),
    ],
)
def test_the_page_shows_what_is_stored(page: str, name: str, stored: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    block = text.partition(f"<!-- measured:{name} -->")[2].partition(f"<!-- /measured:{name} -->")[0]
    assert table(json.loads(stored.read_text("utf-8"))) in block


def test_the_stored_results_have_every_side_and_hold_their_targets() -> None:
    content = json.loads(STORED.read_text("utf-8"))
    controlled = [row for row in content["rows"] if "warm start continued" in row]
    assert len({row["seed"] for row in controlled}) == 5
    # In sum: other work on the machine slows one or the other.
    assert sum(row["control seconds"] for row in controlled) > sum(row["RL seconds"] for row in controlled)
    assert len(content["rows"]) > len(controlled)
    for key, target in content["targets"].items():
        assert target.get("at_least", -1) <= content["figures"][key] <= target.get("at_most", 1)
