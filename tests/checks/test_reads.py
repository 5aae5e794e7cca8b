"""What tools return is compared with the data behind them, without an expert: pages, values that work, answers that are paid."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sparring.checks import CHECKS
from sparring.checks.evidence.answer_forms import AnswerForm, get_text
from sparring.checks.evidence.changed_answers import mutate_answer
from sparring.checks.evidence.grading_inputs import Aspect
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.subject import Subject
from sparring.checks.running.time_budget import OutOfTimeError, Timing
from sparring.config import load_config
from sparring.environments import answer
from sparring.findings import Finding

DATA = """
[data]
train = "environment:tasks"
"""
RECIPE = """
[environment]
target = "environment:Desk"
max_turns = 8

[reward]
reward = "environment:reward"
scorer = "environment:scorer"
"""
HEAD = """
import random
from typing import Literal
from sparring.environments import Environment, StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match, state_difference
from sparring.types import Task

scorer = exact_match()

def reward(trajectory):
    return 0.0

def task(n, user, **fields):
    return Task(id=f"t{n}", messages=({"role": "user", "content": user},), fields=fields, seed=n)
"""


def symptoms(folder: Path, rule: str, code: str, data: str = DATA) -> list[str]:
    """Return the symptoms that a rule reports for an environment `Desk` with `tasks`."""
    (folder / "recipe.toml").write_text(data + RECIPE, "utf-8")
    (folder / "environment.py").write_text(HEAD + code, "utf-8")
    recipe = folder / "recipe.toml"
    subject = Subject(load_config(recipe), recipe)

    async def asked() -> list[Finding]:
        return [*await CHECKS[rule].function(subject)]

    return [one.symptom for one in asyncio.run(asked()) if one.severity.value != "note"]


SHELVES = """
class Desk(Environment):
    def reset(self, task):
        self.shelves = task.fields["shelves"]

    @tool
    def jars(self, shelf: str, page: int = 1) -> list[str]:
        \"\"\"Jars on a shelf, three on a page, from 1.\"\"\"
        names = list(self.shelves.get(shelf, ()))
        if not names or page > PAGES(len(names)):
            raise ToolFailure("no such page")
        return names[3 * page - 3 : 3 * page]

def tasks():
    made = []
    for n in range(12):
        rng = random.Random(n)
        jars = rng.sample(range(100, 999), 15)
        shelves = {"Upper": {f"J{one}": one for one in jars[:3]}, "Lower": {f"J{one}": one for one in jars[3 : 8 + n % 3]}}
        made.append(task(n, "How many jars are on the shelf Upper?", shelves=shelves, shelf="Upper", answer="3"))
    return made
"""


@pytest.mark.parametrize(
    ("pages", "expected"),
    [("max(1, num // 3)", ["jars: rows of the task are on no page, in 3 tasks."]), ("-(-num // 3)", [])],
)
def test_pages_are_walked_for_other_names_of_the_same_kind(pages: str, expected: list[str], tmp_path: Path) -> None:
    # The shelf that the prompt names has one whole page; only the other one shows that the last page is lost.
    assert symptoms(tmp_path, "environment.pages", f"PAGES = lambda num: {pages}\n{SHELVES}") == expected


HOUSE = """
scorer = state_difference("state")

def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])

class Desk(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.lamps = dict(task.fields["lamps"])

    @tool
    def lamps_now(self) -> dict[str, str]:
        \"\"\"All lamps.\"\"\"
        return self.lamps

    @tool
    def turn(self, lamp: str, light: Literal[LIGHTS]) -> str:
        \"\"\"Set the light of a lamp.\"\"\"
        if lamp not in self.lamps:
            raise ToolFailure(f"no lamp {lamp!r}")
        self.lamps[lamp] = light
        return "done"

    def final_state(self):
        return {"lamps": self.lamps}

def tasks():
    made = []
    for n in range(12):
        rng = random.Random(n)
        lamps = {name: "dim" for name in rng.sample(["hall", "attic", "porch", "den"], 3)}
        lamp, light = list(lamps)[0], ("bright", "blue")[n % 2]
        state = {"lamps": {**lamps, lamp: light}}
        made.append(task(n, f"Make the lamp {lamp} {light}.", lamps=lamps, state=state))
    return made
"""


@pytest.mark.parametrize(("lights", "num"), [("'bright', 'dim', 'off'", 1), ("'bright', 'dim', 'blue'", 0)])
def test_a_value_that_tasks_want_and_no_tool_takes_is_named(lights: str, num: int, tmp_path: Path) -> None:
    reported = symptoms(tmp_path, "data.unreachable", HOUSE.replace("LIGHTS", lights))
    assert len(reported) == num
    assert all(one.startswith("`turn` does not accept 'blue' as `light`") for one in reported)


def test_what_is_graded_is_not_guessed_where_there_is_no_time_to_play(tmp_path: Path) -> None:
    expert = """
    def demonstrate(self, task):
        lamp = list(task.fields["lamps"])[0]
        return [tool_call("turn", lamp=lamp, light=task.fields["state"]["lamps"][lamp]), answer("Done.")]
"""
    code = HOUSE.replace("LIGHTS", "'bright', 'dim', 'blue'").replace(
        "\n    def final_state", f"{expert}\n    def final_state"
    )
    (tmp_path / "recipe.toml").write_text(DATA + RECIPE, "utf-8")
    head = f"{HEAD}from sparring.environments import answer, tool_call\n"
    (tmp_path / "environment.py").write_text(head + code, "utf-8")
    recipe = tmp_path / "recipe.toml"

    def subject(seconds: float) -> Subject:
        timing = Timing(seconds=seconds)
        timing.begin("reward.scorer")
        return Subject(load_config(recipe), recipe, timing=timing)

    references = asyncio.run(find_references(subject(60)))
    assert references is not None
    assert references.graded == {Aspect.STATE}
    with pytest.raises(OutOfTimeError):
        asyncio.run(find_references(subject(0)))


def test_lists_are_cut_and_lengthened() -> None:
    form = AnswerForm(tags=("answer",))

    def changed(right: str, *labels: str) -> dict[str, str]:
        made = mutate_answer(form, answer(f"<answer>{right}</answer>"), {"": [right, *labels]})
        return {one.name: get_text(one.message).removeprefix("<answer>").removesuffix("</answer>") for one in made}

    written = changed('["L1", "L2"]', '["L2", "L3"]')
    assert written["an element left out"] == '["L1"]'
    assert written["an element added"] == '["L1", "L2", "L3"]'
    assert written["elements in another order"] == '["L2", "L1"]'
    assert changed("fig, plum, pear", "fig, kiwi")["an element added"] == "fig, plum, pear, kiwi"
    # A thousand is no list of two, and one digit more after a point may be within a tolerance.
    assert "an element left out" not in changed("1,234", "2,000")
    assert "text after each value" not in changed("32.5", "18")


FLIGHTS = """
class Desk(Environment):
    def reset(self, task):
        self.table = task.fields["table"]

    @tool
    def search(self, origin: str) -> list[dict]:
        \"\"\"Flights from a city, cheapest first.\"\"\"
        rows = [row for row in self.table if row["from"] == origin]
        return sorted(rows, key=lambda row: KEY(row["price"]))

def tasks():
    made = []
    for n in range(12):
        # Numbers of three digits are in one order; in every sixth task one has two.
        prices = random.Random(n).sample(range(100, 999), 4) + ([97] if n % 6 == 4 else [])
        table = [{"from": "Oslo", "flight": f"AQ{price}", "price": str(price)} for price in prices]
        made.append(task(n, "Which flight from Oslo is the cheapest?", table=table, answer=f"AQ{min(prices)}"))
    return made
"""


@pytest.mark.parametrize(("key", "num"), [("str", 1), ("int", 0)])
def test_numbers_in_the_order_of_texts_are_named_where_one_result_shows_it(key: str, num: int, tmp_path: Path) -> None:
    reported = symptoms(tmp_path, "environment.claims", FLIGHTS.replace("KEY", key))
    assert len(reported) == num
    assert all("(numbers are in the order of texts), in 1 of 5 results" in one for one in reported)


QUEUE = """
class Desk(Environment):
    def reset(self, task):
        self.queue = task.fields["queue"]

    @tool
    def ticket(self, number: int) -> str:
        \"\"\"The ticket at a place of the queue, counted from 1.\"\"\"
        if not 1 <= number TEST len(self.queue):
            raise ToolFailure(f"there is no place {number}")
        return self.queue[number - 1]["name"]

    @tool
    def waiting(self, start: str, end: str) -> list[str]:
        \"\"\"Tickets of the days from start to end.\"\"\"
        return [one["name"] for one in self.queue if start <= one["day"] TEST end]

def tasks():
    made = []
    for n in range(12):
        queue = [{"name": f"T{n}{one}", "day": f"2024-03-{3 * one + 10}"} for one in range(5)]
        made.append(task(n, "Who came from 2024-03-10 to 2024-03-13?", queue=queue, answer=f"T{n}0"))
    return made
"""


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (
            "<",
            [
                "ticket: no number returns the last item of a list, in 5 tasks.",
                "waiting: a range from a value to itself is empty, but a range to the next value is not, in 5 tasks.",
            ],
        ),
        ("<=", []),
    ],
)
def test_the_last_item_and_the_end_of_a_range_are_missed(test: str, expected: list[str], tmp_path: Path) -> None:
    assert symptoms(tmp_path, "environment.ends", QUEUE.replace("TEST", test)) == expected


def test_an_end_that_the_description_leaves_out_is_none_that_is_missed(tmp_path: Path) -> None:
    code = (
        QUEUE.replace("number TEST", "number <=").replace("TEST", "<").replace("to end.", "to end, end not included.")
    )
    assert symptoms(tmp_path, "environment.ends", code) == []


PORTAL = """
class Desk(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        self.role, self.files = task.fields["role"], list(task.fields["files"])

    @tool
    def files_now(self) -> list[str]:
        \"\"\"All files.\"\"\"
        return self.files

    @tool
    def purge(self, file: str) -> str:
        \"\"\"Remove a file.\"\"\"
        if file not in self.files or not (TEST):
            raise ToolFailure("denied")
        self.files.remove(file)
        return "removed"

    def final_state(self):
        return {"files": self.files}

def tasks():
    made = []
    for n in range(24):
        files = [f"plan-{one}" for one in random.Random(n).sample(range(100, 999), 3)]
        user = f"Purge the file {files[0]}, if that is allowed: only owners and clerks may."
        made.append(task(n, user, role=("owner", "clerk", "guest")[n % 3], files=files))
    return made
"""


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("self.role == 'owner' or 'clerk'", ["A call of purge is accepted if the task's 'role' is 'guest'"]),
        ("self.role == 'owner'", ["A call of purge is refused if the task's 'role' is 'clerk'"]),
        ("self.role in ('owner', 'clerk')", []),
    ],
)
def test_a_tool_that_does_not_care_who_may_is_named(test: str, expected: list[str], tmp_path: Path) -> None:
    found = symptoms(tmp_path, "environment.access", PORTAL.replace("TEST", test))
    assert [one.partition(", although ")[0] for one in found] == expected


TARIFFS = """
KNOWN = ["cork", "amber", "slate"] + MORE

class Desk(Environment):
    def reset(self, task):
        self.item = task.fields["item"]

    @tool
    def tariff(self, item: str) -> int:
        \"\"\"The price of an item.\"\"\"
        if item not in KNOWN or item != self.item:
            raise ToolFailure("not in the table")
        return 7

def tasks():
    return [task(n, f"What is the price of {one}?", item=one, answer="7") for n, one in enumerate(["cork", "amber", "slate"] * 4)]

def held_out():
    return [task(20 + n, f"What is the price of {one}?", item=one, answer="7") for n, one in enumerate(["jade", "flint"] * 4)]
"""


@pytest.mark.parametrize(("more", "num"), [("[]", 1), ("['jade', 'flint']", 0)])
def test_a_tool_that_knows_only_what_is_trained_on_is_named(more: str, num: int, tmp_path: Path) -> None:
    data = '[data]\ntrain = "environment:tasks"\nheld_out = "environment:held_out"\n'
    reported = symptoms(tmp_path, "environment.held_out", TARIFFS.replace("MORE", more), data=data)
    assert len(reported) == num
    assert all(one.startswith("tariff finds something in most training tasks, but nothing") for one in reported)


def test_a_tool_that_knows_a_part_of_what_is_held_out_is_named(tmp_path: Path) -> None:
    data = '[data]\ntrain = "environment:tasks"\nheld_out = "environment:held_out"\n'
    half = TARIFFS.replace("MORE", "['jade']")
    (reported,) = symptoms(tmp_path, "environment.held_out", half, data=data)
    assert reported.startswith(
        "tariff finds what the task names in all of 10 training tasks, but not in 4 of 8 held-out tasks"
    )


STAFF = """
class Desk(Environment):
    def reset(self, task):
        self.rows = {row["name"]: row for row in task.fields["rows"]}

    @tool
    def locker(self, KEY) -> str:
        \"\"\"Number of a person's locker.\"\"\"
        return str(self.rows[FOUND]["locker"]) if FOUND in self.rows else "no one has this name"

    @tool
    def search(self, last_name: str) -> list[str]:
        \"\"\"Names of the people with a last name.\"\"\"
        return sorted(one for one in self.rows if one.split()[-1] == last_name)

    @tool
    def names(self) -> list[str]:
        \"\"\"Names of all.\"\"\"
        return sorted(self.rows)

def tasks():
    found = []
    for n in range(12):
        rng = random.Random(n)
        rows = [{"name": name, "locker": locker} for name, locker in zip(NAMES, rng.sample(range(100, 999), 6))]
        found.append(task(n, f"Which locker has {rows[n % 6]['name']}?", rows=rows, answer=str(rows[n % 6]["locker"])))
    return found
"""
PEOPLE = "['Ana Berg', 'Bo Costa', 'Cy Duval', 'Di Engel', 'Ed Fons', OTHER]"
CODES = "[f'{one:04d}' for one in rng.sample(range(1000, 9999), 4) + rng.sample(range(100, 999), 2)]"


@pytest.mark.parametrize(
    ("names", "key", "found", "expected"),
    [
        (PEOPLE.replace("OTHER", "'Flo Grau'"), "name: str", "name", None),
        (
            PEOPLE.replace("OTHER", "'Ana Berg'"),
            "name: str",
            "name",
            "locker finds only one of several rows with the same 'name'",
        ),
        (CODES, "name: int", "f'{name:04d}'", None),
        (CODES, "name: int", "str(name)", "values of the task's 'name', all of them with a leading zero"),
    ],
)
def test_each_row_of_a_task_can_be_asked_for(
    names: str, key: str, found: str, expected: str | None, tmp_path: Path
) -> None:
    code = STAFF.replace("NAMES", names).replace("KEY", key).replace("FOUND", found)
    reported = symptoms(tmp_path, "environment.found", code)
    assert len(reported) == (expected is not None)
    assert all(expected in one for one in reported if expected)


@pytest.mark.parametrize(("test", "expected"), [("one.split()[-1] == last_name", []), ("False", ["search"])])
def test_a_search_is_asked_for_parts_before_it_is_called_silent(test: str, expected: list[str], tmp_path: Path) -> None:
    code = (
        STAFF.replace("NAMES", PEOPLE.replace("OTHER", "'Flo Grau'"))
        .replace("KEY", "name: str")
        .replace("FOUND", "name")
    )
    code = code.replace("one.split()[-1] == last_name", test).replace("    @tool\n    def names", "    def names")
    reported = symptoms(tmp_path, "environment.tools_answer", code)
    assert [one.partition(" returned")[0] for one in reported] == expected


SCALE = """
POUND = 0.4536

class Desk(Environment):
    def reset(self, task):
        self.rows = task.fields["parcels"]

    @tool
    def weigh(self, parcel: str) -> str:
        \"\"\"Weight of a parcel in kilograms.\"\"\"
        if parcel not in self.rows:
            raise ToolFailure("there is no such parcel")
        row = self.rows[parcel]
        return RESULT

def tasks():
    found = []
    for n in range(12):
        rng = random.Random(n)
        labels = [f"P{one}" for one in rng.sample(range(10, 99), 4)]
        rows = {one: {"weight": rng.randrange(100, 999) / 50, "unit": unit} for one, unit in zip(labels, ["kg", "lb"] * 2)}
        found.append(task(n, f"Is {labels[n % 4]} heavier than 5 kg?", parcels=rows, answer="yes"))
    return found
"""


@pytest.mark.parametrize(
    ("result", "num"),
    [
        ("f\"{row['weight']:.2f}\"", 1),
        ("f\"{row['weight'] * (POUND if row['unit'] == 'lb' else 1):.2f}\"", 0),
        ("f\"{row['weight']:.2f} {row['unit']}\"", 0),
    ],
)
def test_numbers_in_units_of_another_column_are_converted(result: str, num: int, tmp_path: Path) -> None:
    reported = symptoms(tmp_path, "environment.computed", SCALE.replace("RESULT", result))
    assert [one.partition(" unconverted")[0] for one in reported] == num * ["weigh returns the number in 'weight'"]
