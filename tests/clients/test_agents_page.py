"""docs/agents.md shows the programs that are run, and what was measured with them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "agents.md").read_text("utf-8")
MEASURED = tomllib.loads((HERE / "measured.toml").read_text("utf-8"))
CLIENTS = {program.split("/")[0] for program in MEASURED}


def test_every_program_of_a_client_is_measured() -> None:
    programs = {f"{client}/{path.name}" for client in CLIENTS for path in (HERE / client).glob("agent*.*")}
    assert set(MEASURED) == programs


def test_every_client_has_a_section_with_lines_of_its_program() -> None:
    blocks = re.findall(r"<!-- from: (\S+) -->\n```(?:python|js)\n(.*?)```", PAGE, re.DOTALL)
    assert {program.split("/")[0] for program, _ in blocks} == CLIENTS
    for program, block in blocks:
        source = (HERE / program).read_text("utf-8")
        # A line of dots stands for lines that are left out.
        parts = re.split(r"^\.\.\.\n", block, flags=re.MULTILINE)
        assert [part for part in parts if part not in source] == [], program


def test_the_table_has_what_was_measured() -> None:
    assert PAGE.count("\n".join(row(program) for program in MEASURED)) == 1


def row(program: str) -> str:
    measured = MEASURED[program]
    package = (HERE / program).with_name("package.json")
    if package.exists():
        required = next(iter(json.loads(package.read_text("utf-8"))["dependencies"].values())).replace(" ", ",")
    else:
        required = (HERE / program).with_name("requirements.txt").read_text("utf-8").split()[0]
    cells = (
        f"`{program}`",
        re.sub(r".*>=(\S+),.*", r"\1", required),
        f"`{measured['endpoint']}`",
        "yes" if measured["streams"] else "no",
        str(measured["sequences"]),
        "; ".join(measured["branches"]) or "none",
        ", ".join(measured["keeps"]) or "nothing",
    )
    return f"| {' | '.join(cells)} |"
