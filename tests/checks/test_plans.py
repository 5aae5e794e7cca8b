"""Calls that bring about what a task asks for are found without an expert, and what stands in their way is named."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.grading_inputs import Aspect
from sparring.checks.evidence.plans import Plan, make_plans, measure_distance
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.chains import chains
from sparring.checks.rules.reachable import difference_of, unreachable
from sparring.checks.running.decide import run_rule
from sparring.config import load_config
from sparring.types import Json

HERE = Path(__file__).parent
NOTES = HERE / "defects" / "notes_are_cut"


def subject(folder: Path, *overrides: str) -> Subject:
    recipe = folder / "recipe.toml"
    return Subject(load_config(recipe, overrides), recipe, overrides=overrides)


def plans(target: str) -> list[Plan]:
    return asyncio.run(make_plans(subject(NOTES, f"environment.target=environment:{target}")))


def symptoms(target: str) -> list[str]:
    found = asyncio.run(unreachable(subject(NOTES, f"environment.target=environment:{target}")))
    return [re.sub(r",? in (\d+ of|other tasks).*", "", one.symptom) for one in found]


def test_three_calls_are_found_that_do_what_a_task_asks_for() -> None:
    made = plans("Desk")
    assert len(made) == 24
    assert all(one.is_whole for one in made)
    assert {one.call.tool for one in made[0].steps} == {"write", "remove", "weigh"}
    assert all(len(one.steps) == 3 for one in made)


def test_a_desk_that_takes_its_time_gets_the_same_plans() -> None:
    made = plans("WaitingDesk")
    assert len(made) == 24
    assert [one.calls for one in made] == [one.calls for one in plans("Desk")]


def test_tasks_that_are_left_out_for_lack_of_time_are_reported_by_every_rule_that_needs_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparring.checks.evidence.plans.SECONDS", 0.0)
    desk = subject(NOTES, "environment.target=environment:Desk")
    for _ in range(2):  # plans are made once
        desk.timing.cut.clear()
        found, checked = asyncio.run(run_rule(CHECKS["data.unreachable"], desk))
        assert found == []
        assert checked.reason == "used fewer episodes than usual, for lack of time"


@pytest.mark.parametrize(
    ("target", "symptom"),
    [
        ("Desk", None),
        ("CuttingDesk", "The value that `write` writes differs from the stored value (cut off after 20 characters)"),
        ("RemovingDesk", "`remove` changes something else in addition to what is requested"),
        ("RefusingDesk", "`weigh` does not do what is requested, although it does"),
        ("NeighbourDesk", "`weigh` names one item and changes another"),
        ("AddingDesk", "The value that `weigh` writes differs from the stored value (a sum of floating point numbers)"),
    ],
)
def test_a_tool_that_breaks_its_description_is_named_with_what_it_does(target: str, symptom: str | None) -> None:
    assert symptoms(target) == ([] if symptom is None else [symptom])


def test_a_plan_that_reaches_the_state_counts_as_a_right_episode() -> None:
    references = asyncio.run(find_references(subject(NOTES, "environment.target=environment:Desk")))
    assert references is not None
    assert not references.has_expert
    assert references.graded == {Aspect.STATE}


@pytest.mark.parametrize(
    ("state", "wanted", "far"),
    [
        ({"a": 1}, {"a": 1}, 0.0),
        # 1 for what differs, and 2 / 3 for a number that is 2 away.
        ({"a": 1}, {"a": 3}, 1 + 2 / 3),
        # Of four characters two are right: 2 - 2 / 4.
        ({"a": "ab"}, {"a": "abcd"}, 1.5),
        # One row too many, one missing.
        ({"rows": [[1, 2]]}, {"rows": [[1, 3]]}, 2.1),
        # The order alone: two of two places, a tenth.
        ({"rows": ["a", "b"]}, {"rows": ["b", "a"]}, 0.1),
        ({"a": True}, {"a": 1}, 2.0),
    ],
)
def test_a_state_is_nearer_the_more_of_it_is_as_wanted(state: Json, wanted: Json, far: float) -> None:
    assert measure_distance(state, wanted) == pytest.approx(far)


@pytest.mark.parametrize(
    ("wanted", "got", "difference"),
    [
        (0.3, 0.1 + 0.2, "a sum of floating point numbers"),
        (2.345, 2.3, "rounded"),
        (12.7, 12, "rounded"),
        ("Anna Bell", "anna bell ", "in another case or with other blanks"),
        ("a long note", "a long", "cut off after 6 characters"),
        ("Zoë Müller", "Zo? M?ller", "other characters"),
        ("12", 12, "of another type"),
        ("red", "green", None),
        (13, 6, None),
        (True, 1, None),
    ],
)
def test_a_value_that_is_nearly_the_wanted_one_is_distinguished_from_another_one(
    wanted: Json, got: Json, difference: str | None
) -> None:
    assert difference_of(wanted, got) == difference


@pytest.mark.parametrize(
    ("turns", "expected"), [(6, ["10 of 24 tasks take more turns than environment.max_turns = 6"]), (9, [])]
)
def test_a_chain_of_names_is_followed_up_to_what_is_graded(turns: int, expected: list[str]) -> None:
    """From a name in the prompt over mothers, 3 to 8 calls to the one that is asked for; the line goes on behind her."""
    folder = HERE.parents[1] / "benchmarks" / "blind_environments" / "third" / "family_tree"
    found = asyncio.run(chains(subject(folder, f"environment.max_turns={turns}")))  # type: ignore[arg-type]
    assert [one.symptom.partition(":")[0] for one in found] == expected
