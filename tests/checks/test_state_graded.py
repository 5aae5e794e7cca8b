"""Recipes that are graded by what was done, with free last words: clean ones stay clean, and what the grade depends on is found.

The holes that such recipes have are planted in `defects`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sparring.checks.evidence.changed_answers import Kind
from sparring.checks.evidence.changed_episodes import mutate_episodes
from sparring.checks.evidence.correct_calls import Verdict, find_deeds
from sparring.checks.evidence.grading_inputs import Aspect
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.scripted_episodes import get_episodes
from sparring.checks.evidence.subject import EXPERT, Subject
from sparring.config import load_config
from sparring.findings import Severity
from tests.checks.rule_runner import run_rules
from tests.checks.test_planted import findings

HERE = Path(__file__).parent / "state_graded"
RECIPES = sorted(path.parent.name for path in HERE.glob("*/recipe.toml"))


def subject(folder: Path) -> Subject:
    return Subject(load_config(folder / "recipe.toml"), folder / "recipe.toml")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_is_graded_by_its_state_gives_no_error_and_no_warning(name: str) -> None:
    found = [(one.severity.value, one.rule, one.symptom) for one in findings(HERE / name)]
    assert [one for one in found if one[0] != Severity.NOTE.value] == []


@pytest.mark.parametrize(
    ("folder", "aspects"),
    [
        (HERE / "orders", {Aspect.STATE}),
        (HERE / "tic_tac_toe", {Aspect.STATE}),
        (HERE.parent / "clean" / "parcel_desk", {Aspect.MESSAGE, Aspect.WORDS}),
        # A call, and an answer in its tag.
        (HERE.parent / "defects" / "work_is_scored", {Aspect.MESSAGE, Aspect.WORDS, Aspect.CALLS}),
        (HERE.parent / "defects" / "undone_work_is_scored", {Aspect.CALLS}),
    ],
    ids=lambda one: one.name if isinstance(one, Path) else None,
)
def test_what_the_scorer_depends_on_is_found_by_changing_one_thing_at_a_time(
    folder: Path, aspects: set[Aspect]
) -> None:
    references = asyncio.run(find_references(subject(folder)))
    assert references is not None
    assert references.graded == aspects


def test_changed_calls_are_wrong_only_where_that_is_known() -> None:
    async def kinds(name: str) -> dict[str, set[Kind]]:
        found: dict[str, set[Kind]] = {}
        for one in await mutate_episodes(subject(HERE / name)):
            if one.mutation.calls is not None:
                found.setdefault(one.mutation.name, set()).add(one.mutation.kind)
        return found

    # A lookup changes nothing; the seat and the booking are what the task's fields hold; the log is not graded.
    seats = asyncio.run(kinds("seats"))
    assert seats["find left out"] == {Kind.SAME}
    assert seats["move with another seat"] == seats["no call at all"] == {Kind.WRONG}
    assert seats["cancel in place of the right calls"] == {Kind.WRONG}
    # There are many ways to win: another one is no evidence.
    game = asyncio.run(kinds("tic_tac_toe"))
    assert game["no call at all"] == {Kind.WRONG}
    assert game["place with another cell"] == {Kind.OTHER}


def test_a_field_that_the_expert_carries_out_and_no_grader_compares_is_a_warning(tmp_path: Path) -> None:
    text = (HERE / "seats" / "environment.py").read_text("utf-8")
    lenient = '''

def reward(trajectory):
    """Whether the chosen booking was changed at all."""
    fields = trajectory.task.fields
    before = next(row for row in fields["bookings"] if row["id"] == fields["booking"])
    return float(before not in trajectory.final_state["bookings"])


def scorer(trajectory):
    fields = trajectory.task.fields
    return float(all(row["id"] != fields["booking"] or row not in fields["bookings"] for row in state(trajectory)))


def state(trajectory):
    return trajectory.final_state["bookings"]
'''
    (tmp_path / "environment.py").write_text(text[: text.index("def reward")] + lenient, "utf-8")
    (tmp_path / "recipe.toml").write_text((HERE / "seats" / "recipe.toml").read_text("utf-8"), "utf-8")
    found = {one.severity: one.symptom for one in findings(tmp_path, only="reward.scorer")}
    assert "accepts episodes that do not look right" in found[Severity.WARNING]
    assert "move with another seat" in found[Severity.WARNING]


def test_an_episode_is_right_when_it_leaves_what_the_expert_leaves() -> None:
    one = subject(HERE / "orders")

    async def verdicts() -> dict[str, set[Verdict]]:
        assert await find_deeds(one) is not None
        return {
            name: {episode.verdict for episode in await get_episodes(one, name)}
            for name in (EXPERT, "says nothing", "most frequent answer", "busy")
        }

    found = asyncio.run(verdicts())
    assert found[EXPERT] == {Verdict.RIGHT}
    # The expert's last words, and nothing ordered; then the first order five times.
    assert found["says nothing"] == found["most frequent answer"] == found["busy"] == {Verdict.WRONG}


def test_a_tool_that_writes_and_answers_with_an_id_uses_its_arguments() -> None:
    folder = str(HERE / "orders")
    rules = ("environment.arguments_ignored", "environment.tools_answer")
    for verdict in run_rules([{"folder": folder, "rule": rule, "options": {}} for rule in rules]):
        assert (verdict["state"], verdict["findings"]) == ("decided", [])


def test_orders_in_any_order_with_a_word_at_the_end_are_no_holes(tmp_path: Path) -> None:
    judge = """    rows = sorted((row["day"], row["room"], row["hour"]) for row in trajectory.final_state["bookings"])
    wanted = sorted((row["day"], row["room"], row["hour"]) for row in trajectory.task.fields["state"]["bookings"])
"""
    text = (HERE / "rooms" / "environment.py").read_text("utf-8")
    text = text[: text.index("def reward")].replace("McpProcess", "Desk").replace("adapters.mcp_server", "x")
    head = '''
from sparring.environments import Environment, tool


class Desk(Environment):
    def __init__(self, *_, **__):
        pass

    def reset(self, task):
        self.day, self.bookings = task.fields["day"], []

    @tool
    def book(self, room: str, hour: int) -> str:
        """Book a room."""
        self.bookings.append({"day": self.day, "room": room, "hour": hour})
        return "booked"
'''
    text = text.replace("from sparring.environments.x import Desk\n", head)
    text = text.replace('json.loads((await self.call_listed("show", {})).content)', '{"bookings": self.bookings}')
    judge += '    return float(rows == wanted and "booked" in (trajectory.messages[-1].get("content") or ""))\n'
    scorer = f"def reward(trajectory):\n{judge}\n\ndef scorer(trajectory):\n{judge}"
    (tmp_path / "environment.py").write_text(f"{text}\n{scorer}", "utf-8")
    (tmp_path / "recipe.toml").write_text((HERE / "rooms" / "recipe.toml").read_text("utf-8"), "utf-8")
    found = [(one.severity.value, one.rule, one.symptom) for one in findings(tmp_path)]
    assert [one for one in found if one[0] == "error"] == []


def test_counts_that_a_tool_makes_smaller_are_a_hole(tmp_path: Path) -> None:
    name = HERE.parent / "defects" / "skipped_tests_count_as_passed"
    text = (name / "environment.py").read_text("utf-8")
    start, end = text.index("    def final_state"), text.index("    def demonstrate")
    counts = """    def final_state(self):
        passed = sum(result == "passes" for result in self.tests.values())
        return {"passed": passed, "failed": len(self.tests) - passed, "total": len(self.tests)}

"""
    graders = """def reward(trajectory):
    return trajectory.final_state["passed"] / max(1, trajectory.final_state["total"])


def scorer(trajectory):
    return float(trajectory.final_state["failed"] == 0)
"""
    text = text[:start] + counts + text[end : text.index("def passing")] + graders
    (tmp_path / "environment.py").write_text(text, "utf-8")
    (tmp_path / "recipe.toml").write_text((name / "recipe.toml").read_text("utf-8"), "utf-8")
    found = [one for one in findings(tmp_path, only="reward.scorer") if one.severity is Severity.ERROR]
    assert [one.symptom for one in found] == ["The scorer accepts wrong episodes: skip in place of the right calls."]


def test_a_lookup_that_the_scorer_does_not_ask_for_may_be_left_out() -> None:
    """Graded by its calls alone, where the environment reports no state."""

    async def kinds(folder: Path) -> dict[str, set[Kind]]:
        found: dict[str, set[Kind]] = {}
        for one in await mutate_episodes(subject(folder)):
            if one.mutation.calls is not None:
                found.setdefault(one.mutation.name, set()).add(one.mutation.kind)
        return found

    found = asyncio.run(kinds(HERE.parent / "calls_only"))
    assert found["orders_of left out"] == {Kind.SAME}
    assert "orders_of with another name" not in found
    assert found["refund with another order"] == found["refund left out"] == {Kind.WRONG}
