"""docs/models.md has the table of families, as it is in the code."""

from pathlib import Path

import pytest

from sparring.models.architectures.families import FAMILIES, Family

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def row(family: Family) -> str:
    types = ", ".join(f"`{one}`" for one in family.model_types)
    targets = ", ".join(f"`{one}`" for one in family.lora_targets)
    if family.expert_targets:
        targets += f" ({', '.join(f'`{one}`' for one in family.expert_targets)})"
    call = family.tool_format.replace("|", "\\|")
    shares = "yes" if family.shares_prefixes else "no"
    cells = (family.name, types, f"`{family.example}`", family.forward, shares, targets, family.chat, f"`{call}`")
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_page_has_the_row_of_each_family(family: Family) -> None:
    assert row(family) in PAGE.read_text("utf-8").splitlines(), f"docs/models.md needs this row:\n{row(family)}"


def test_each_model_type_is_in_one_family() -> None:
    types = [one for family in FAMILIES for one in family.model_types]
    assert len(types) == len(set(types))
