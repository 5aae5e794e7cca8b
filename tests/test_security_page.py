"""Each promise of docs/security.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_promise_names_a_test() -> None:
    section = (ROOT / "docs" / "security.md").read_text("utf-8").partition("## Promises and their tests")[2]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", row)
        assert named, row
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), row
