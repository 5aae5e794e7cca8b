"""Environments that are legal and odd: what they hold must not stop a rule, and take no more time or memory than others."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import math
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.answer_forms import canonical, write_answers
from sparring.checks.evidence.arguments import Known
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.legal_calls import MOST_TOGETHER, combine_likeliest, leaves
from sparring.checks.evidence.plans import Plan, Step
from sparring.checks.evidence.snapshots import Change, View
from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.effects import _miscounted, _number_lost
from sparring.checks.rules.reachable import _elsewhere, _find_next_to, difference_of
from sparring.checks.running.second_process import fingerprint
from sparring.config import load_config
from sparring.findings import Finding
from sparring.types import Task

ENVIRONMENT = '''
import datetime

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Reward, Task


class Hall(Environment):
    def reset(self, task):
        self.marks = {}

    @tool
    def mark(self, room: str, seat: int) -> str:
        """Mark a seat."""
        self.marks[room] = seat
        return "marked"

    @tool
    def unmark(self, room: str) -> str:
        """Remove the mark of a room."""
        return "removed" if self.marks.pop(room, None) is not None else "nothing there"

    def final_state(self):
        return {1: dict(self.marks), (1, 2): "x", None: [], "nan": float("nan")}

    def demonstrate(self, task):
        return [tool_call("mark", room=task.fields["room"], seat=task.fields["seat"]), answer("Done.")]


def train_tasks():
    return [one(number) for number in range(12)]


def one(number):
    room, seat = f"{('red', 'blue', 'green')[number % 3]}{number}", 20 + 3 * number
    odd = {7: "seven", "tags": {"a", "b"}, "day": datetime.date(2025, 1, 1 + number), "keys": {1: "a", (1, 2): "b", None: "c"}}
    text = f"Mark seat {seat} in room {room}."
    return Task(
        id=f"train-{number}", messages=({"role": "user", "content": text},), fields={"room": room, "seat": seat, **odd}
    )


def reward(trajectory):
    return Reward(total=scorer(trajectory))


def scorer(trajectory):
    fields = trajectory.task.fields
    return float(trajectory.final_state[1] == {fields["room"]: fields["seat"]})
'''
RECIPE = """
[model]
max_sequence_length = 4096

[data]
train = "environment:train_tasks"

[environment]
target = "environment:Hall"
max_turns = 5

[reward]
reward = "environment:reward"
scorer = "environment:scorer"
"""


def findings(folder: Path, rule: str) -> list[Finding]:
    (folder / "environment.py").write_text(ENVIRONMENT, "utf-8")
    (folder / "recipe.toml").write_text(RECIPE, "utf-8")
    subject = Subject(load_config(folder / "recipe.toml"), folder / "recipe.toml")
    return list(asyncio.run(CHECKS[rule].function(subject)))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["data.contamination", "data.columns", "budgets.chains", "environment.same_elsewhere"])
def test_fields_and_states_that_are_no_json_stop_no_rule(tmp_path: Path, rule: str) -> None:
    assert findings(tmp_path, rule) == []


def test_an_episode_that_did_what_was_asked_and_did_not_answer_is_no_missing_answer(tmp_path: Path) -> None:
    assert findings(tmp_path, "reward.order") == []


def test_equal_values_that_are_no_json_have_one_text() -> None:
    assert canonical({(1, 2): "x", None: 1, 3: {"b", "a"}}) == canonical({3: {"a", "b"}, None: 1.0, (1, 2): "x"})
    fields: Any = {2: "two", "day": datetime.date(2025, 1, 2), "tags": {"a", "b"}}
    task = Task(id="a", messages=(), fields=fields)
    assert fingerprint(task) == fingerprint(task)
    assert list(leaves(task.fields)) == [("2", "two"), ("day", "2025-01-02"), ("tags", str({"a", "b"}))]


def test_arrays_and_dates_are_known_as_texts() -> None:
    known = Known()
    known.add_json({"values": np.array([1, 2]), "day": datetime.date(2025, 1, 2)}, "field")
    assert {"[1 2]", "2025-01-02"} <= {one.value for one in known.seen if isinstance(one.value, str)}


def test_a_field_with_keys_that_json_has_no_form_for_is_no_answer() -> None:
    fields: Any = {"marks": {(1, 2): "x"}, "room": "red"}
    task = Task(id="a", messages=(), fields=fields)
    assert "red" in [one["content"] for _, one in write_answers(task, "")]


def test_a_tool_that_takes_everything_away_is_not_one_that_changes_something_else_too() -> None:
    idle: Any = {"prices": {"a": 1, "b": 2, "c": 3}, "most": 3}
    step = Step(Call("wipe", {}), "deleted", is_refused=False)
    plan = Plan(
        task=Task(id="a", messages=()),
        wanted={"prices": {"a": 9, "b": 2, "c": 3}, "most": 9},
        states=(idle,),
        steps=(),
        refused=(),
        effects=((step, idle, {"prices": {}, "most": None}),),
    )
    assert list(_find_next_to(plan)) == []


def test_a_field_that_is_a_date_can_be_written_as_an_answer() -> None:
    task = Task(id="a", messages=(), fields={"day": datetime.date(2025, 1, 2)})
    assert {'"2025-01-02"', '{"answer": "2025-01-02"}'} <= {one["content"] for _, one in write_answers(task, "")}


def test_values_for_many_arguments_are_combined_the_likeliest_first_and_not_all() -> None:
    pools = [range(8)] * 20
    together = list(combine_likeliest(pools))
    assert len(together) == MOST_TOGETHER
    assert together[:2] == [(0,) * 20, (*(0,) * 19, 1)]
    assert {index for one in together for index, rank in enumerate(one) if rank} == set(range(20))


def test_the_values_of_few_arguments_are_combined_in_all_ways() -> None:
    pools = ("abc", "de", "fghi")
    together = ["".join(one) for one in combine_likeliest(pools)]
    ranked = sorted(itertools.product(range(3), range(2), range(4)), key=sum)
    assert together == ["".join(pool[rank] for pool, rank in zip(pools, ranks, strict=True)) for ranks in ranked]
    assert list(combine_likeliest(["ab", ""])) == []
    assert list(combine_likeliest([])) == [()]


def test_counters_are_looked_for_in_long_lists_in_little_memory() -> None:
    rows: dict[tuple[str, ...], Any] = {
        ("rows", str(row), name): row for row in range(800) for name in ("id", "n", "s")
    }
    bench: Any = SimpleNamespace(first=View(rows), probes=[])
    tracemalloc.start()
    try:
        assert list(_miscounted([bench])) == []
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 10_000_000


def test_numbers_that_are_not_finite_are_near_to_nothing() -> None:
    assert difference_of(math.inf, 3.0) is None
    assert difference_of(math.nan, 3.0) is None
    assert difference_of(2.5, math.inf) is None


def test_a_number_that_is_also_a_key_of_the_state_is_no_name_where_another_argument_is() -> None:
    idle: Any = {"marks": {}, "grid": {str(number): 0 for number in range(9)}}
    effects = []
    for room, seat in (("red", 3), ("blue", 5), ("green", 7)):
        step = Step(Call("mark", {"room": room, "seat": seat}), "marked", is_refused=False)
        effects.append((step, idle, {**idle, "marks": {room: seat}}))
    task = Task(id="a", messages=())
    plan = Plan(task=task, wanted=idle, states=(idle,), steps=(), refused=(), effects=tuple(effects))
    assert list(_elsewhere(plan)) == []


def test_a_number_is_not_stored_where_an_equal_argument_is() -> None:
    path = ("final_state", "marks", "red")
    bench: Any = SimpleNamespace(first=View({}), keys=lambda _: ["room"])
    base: Any = SimpleNamespace(
        call=Call("wide", {"room": "red", "seat": 5, "price": 5.0}), changes=[Change(path, None, 5)]
    )
    result = SimpleNamespace(content="done")
    probe: Any = SimpleNamespace(value=0.5, changes=[Change(path, None, 5)], result=result)
    assert _number_lost(bench, base, probe, "price") is None
    base.call = Call("wide", {"room": "red", "seat": 4, "price": 5.0})
    assert _number_lost(bench, base, probe, "price") == Change(path, None, 5)
