"""Each cell of the table in docs/reliability.md about whose act a failure is names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_cell_names_a_test() -> None:
    section = (ROOT / "docs" / "reliability.md").read_text("utf-8").partition("## Whose act a failure is")[2]
    lines = section.partition("### ")[0].splitlines()
    rows = [line.strip("|").split("|")[1:] for line in lines if line.startswith("|")][2:]
    assert len(rows) > 12
    for cell in (cell for row in rows for cell in row):
        named = re.findall(r"\(`(tests/\S+\.py)::(test_\w+)`\)", cell)
        assert len(named) == 1, cell
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), cell
