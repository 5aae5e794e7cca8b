"""docs/checks.md has a paragraph on every check, in the words of the code."""

from pathlib import Path

from sparring.checks import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"


def test_every_check_is_documented_with_its_own_words() -> None:
    sections = {part.partition("\n")[0]: part for part in PAGE.read_text("utf-8").split("\n### ")[1:]}
    assert list(sections) == [f"`{name}`" for name in CHECKS]
    for name, check in CHECKS.items():
        section = " ".join(sections[f"`{name}`"].split("\n## ")[0].partition("\n")[2].split())
        assert section == " ".join(check.meaning.split()), name
