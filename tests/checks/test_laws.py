"""Tools that do not keep their word and tasks that cannot be solved: each defect is named, and its correction is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks.laws import BEGIN, BY_ANSWER, LAWS
from tests.checks.test_unguided import recipe, symptoms


@pytest.mark.parametrize("name", LAWS)
def test_a_law_that_is_broken_is_named_and_its_correction_is_not(name: str, tmp_path: Path) -> None:
    case = LAWS[name]
    assert case.wrong in case.source
    found = symptoms(recipe(tmp_path / "wrong", case.source), case.rule)
    assert any(case.symptom in one for one in found), found
    assert symptoms(recipe(tmp_path / "right", case.source.replace(case.wrong, case.right)), case.rule) == []


LONG = (
    BEGIN
    + """
class Desk(Environment):
    @tool
    def weather(self) -> str:
        \"\"\"How the weather is.\"\"\"
        return "fair"


def train_tasks():
    repeats, wanted = {3: REPEATS}, {4: WANTED}
    return [asked(f"t{n}", "Hello. " * repeats.get(n, 1), answer="good day, " * wanted.get(n, 1) + str(n)) for n in range(8)]
"""
)


def test_one_task_whose_prompt_does_not_fit_the_context_is_named(tmp_path: Path) -> None:
    """Five of eight tasks are trained on. At six characters a token 20,000 greetings of seven are more than 23,000 tokens."""
    source = LONG.replace("WANTED", "1") + BY_ANSWER
    (found,) = symptoms(recipe(tmp_path / "long", source.replace("REPEATS", "20_000")), "budgets.context")
    assert found.startswith("the initial messages of 1 of 5 tasks are longer than the context")
    assert "t3 has about 4" in found
    assert symptoms(recipe(tmp_path / "short", source.replace("REPEATS", "20")), "budgets.context") == []


def test_one_answer_that_does_not_fit_a_turn_is_named(tmp_path: Path) -> None:
    source = LONG.replace("REPEATS", "1") + BY_ANSWER
    (found,) = symptoms(recipe(tmp_path / "long", source.replace("WANTED", "4_000")), "budgets.turn_tokens")
    assert found.startswith("the reference messages of 1 of 5 tasks are longer than a turn may be")
    assert symptoms(recipe(tmp_path / "short", source.replace("WANTED", "2")), "budgets.turn_tokens") == []
