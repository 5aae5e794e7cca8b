"""Defects of environments without an expert that show when calls, states and rewards are tried: each with its correction."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.walks import walk_states
from sparring.checks.evidence.wanted_state import _list_wanted
from sparring.checks.evidence.writing_tools import find_writing_tools
from sparring.config import load_config
from tests.checks.unguided import CASES, LIFT, RECIPE


def recipe(folder: Path, source: str, max_turns: int = 8) -> Subject:
    folder.mkdir(exist_ok=True)
    (folder / "environment.py").write_text(source, "utf-8")
    (folder / "recipe.toml").write_text(RECIPE.format(max_turns=max_turns), "utf-8")
    return Subject(load_config(folder / "recipe.toml"), folder / "recipe.toml")


def symptoms(subject: Subject, rule: str) -> list[str]:
    return [one.symptom for one in asyncio.run(CHECKS[rule].function(subject))]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_a_defect_is_named_and_its_correction_is_not(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.wrong in case.source
    found = symptoms(recipe(tmp_path / "wrong", case.source), case.rule)
    assert any(case.symptom in one for one in found), found
    found = symptoms(recipe(tmp_path / "right", case.source.replace(case.wrong, case.right)), case.rule)
    assert not any(case.symptom in one for one in found), found


def test_the_shortest_way_of_a_game_is_compared_with_the_turns(tmp_path: Path) -> None:
    """From floor 0 to floor 4 are four calls, which end the episode, and to floor 5 are five."""
    subject = recipe(tmp_path, LIFT, max_turns=4)
    by_goal = {task.fields["goal"]: task for task in subject.tasks.train}
    walk = asyncio.run(walk_states(subject, by_goal[4]))
    assert walk is not None
    assert walk.calls is not None
    assert (len(walk.calls), walk.ends) == (4, True)
    (found,) = symptoms(subject, "budgets.chains")
    assert "take more turns than environment.max_turns = 4" in found
    assert "5 calls of move." in found
    assert symptoms(recipe(tmp_path, LIFT, max_turns=5), "budgets.chains") == []


def test_a_tool_that_reads_is_no_writing_one_because_another_tool_ends_the_episode(tmp_path: Path) -> None:
    case = CASES["the same look is paid again"]
    assert asyncio.run(find_writing_tools(recipe(tmp_path, case.source))) == {"serve"}


@pytest.mark.parametrize(
    ("idle", "fields", "state"),
    [
        ({"served": None}, {"dish": "soup"}, {"served": "soup"}),
        ({}, {"name": "Ada", "until": "May"}, {"Ada": "May"}),
        ({"bids": {}}, {"lot": "globe", "price": 40}, {"bids": {"globe": 40}}),
        ({"done": []}, {"rows": [{"who": "Bo"}, {"who": "Al"}]}, {"done": ["Al", "Bo"]}),
        ({"a": 0, "b": 0}, {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ({"plan": None, "at": None}, {"wish": {"plan": "x", "hour": 9}}, {"plan": "x", "at": 9}),
    ],
)
def test_a_wanted_state_is_made_of_fields(idle: Any, fields: Any, state: Any) -> None:
    assert state in [made for _, made in _list_wanted(idle, fields)]
