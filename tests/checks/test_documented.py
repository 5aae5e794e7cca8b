"""What the pages on environments and rewards show passes the check as it is written: blocks become recipes, with tasks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.checks.test_model_judge import Endpoint
from tests.checks.test_planted import findings
from tests.test_examples import ROOT, blocks

RECIPE = """
[model]
max_sequence_length = 4096
[sampling]
sampling_max_tokens = 96
[data]
train = "environment:train_tasks"
held_out = "environment:held_out_tasks"
[environment]
target = "environment:Desk"
max_turns = 4
[reward]
reward = "environment:reward"
scorer = "environment:scorer"
"""
TASKS = """
import json
import random
import re

from sparring.environments import Environment, answer, tool, tool_call
from sparring.types import Task


def tasks(split, num):
    rng = random.Random(split)
    return [one(f"{split}-{index}", rng) for index in range(num)]


def train_tasks():
    return tasks("train", 12)


def held_out_tasks():
    return tasks("held_out", 4)
"""
STORE = """
PARTS = [f"{kind}{number}" for kind in ("bolt", "nut", "gear", "cap") for number in range(12, 40)]


class Desk(Environment):
    def reset(self, task):
        self.store = task.fields["store"]

    @tool
    def look(self, part: str) -> dict[str, str | int]:
        "Where a part lies, and how many there are."
        return self.store.get(part, {"error": f"{part} is unknown"})

    def demonstrate(self, task):
        return [tool_call("look", part=task.fields["part"]), answer(written(task.fields["answer"]))]


def one(task_id, rng):
    part, *others = rng.sample(PARTS, 3)
    store = {
        name: {"shelf": f"{rng.choice('ABCDEF')}{rng.randint(10, 99)}", "count": rng.randint(11, 99), "floor": 1}
        for name in (part, *others)
    }
    prompt = f"Order {task_id}: look the part {part} up, and answer {ASKED}"
    return Task(
        id=task_id, messages=({"role": "user", "content": prompt},),
        fields={"store": store, "part": part, "answer": wanted(store[part])},
    )
"""
AS_JSON = """
ASKED = 'with its shelf and count: <final_output>{"shelf": "", "count": 0}</final_output>'


def wanted(row):
    return {"shelf": row["shelf"], "count": row["count"]}


def written(value):
    return f"<final_output>{json.dumps(value, separators=(',', ':'))}</final_output>"
"""
PARTLY = """
from sparring.scorers import json_exact


def read_answer(trajectory):
    text = str(trajectory.messages[-1].get("content"))
    found = re.fullmatch(r"<final_output>(.*)</final_output>", text)
    try:
        pairs = json.loads(found[1], object_pairs_hook=list) if found else None
    except ValueError:
        pairs = None
    return dict(pairs) if isinstance(pairs, list) and len(pairs) == len(dict(pairs)) == 2 else None


def solved(trajectory):
    value, right = read_answer(trajectory), trajectory.task.fields["answer"]
    return float(value is not None and json.dumps(value, sort_keys=True) == json.dumps(right, sort_keys=True))


def is_well_formed(trajectory):
    return float(read_answer(trajectory) is not None and set(read_answer(trajectory)) == {"shelf", "count"})


def share_of_turns_left(trajectory):
    return 1 - len(trajectory.turns) / 4


def found(trajectory):
    return float(any(one["arguments"].get("part") == trajectory.task.fields["part"] for one in trajectory.transitions))


scorer = json_exact()
"""


def in_tag(tag: str, asked: str, wanted: str) -> str:
    return f"""
ASKED = {asked!r}


def wanted(row):
    return {wanted}


def written(value):
    return f"<{tag}>{{value if isinstance(value, str) else json.dumps(value)}}</{tag}>"


def reward(trajectory):
    right = written(trajectory.task.fields["answer"])
    return float(trajectory.messages[-1].get("content") == right)
"""


SHOWN: set[tuple[str, int]] = set()
"""Pages and lines of the blocks that recipes were made of."""


def block(page: str, containing: str) -> str:
    """The one Python block of a page that has this text in it."""
    (found,) = [one for one in blocks(ROOT / "docs" / page) if containing in one.code]
    SHOWN.add((page, found.line))
    return textwrap.dedent(found.code)


REWARDS = "rewards-and-scorers.md"
RECIPES = {
    "json_fields and json_exact": lambda: AS_JSON + STORE + block(REWARDS, "json_fields(), json_exact()"),
    "outcome_with_shaping": lambda: AS_JSON + STORE + PARTLY + block(REWARDS, "reward = outcome_with_shaping("),
    "hierarchical": lambda: AS_JSON + STORE + PARTLY + "\nfrom sparring.rewards import hierarchical\n"
    + """reward = hierarchical(solved, {"found": (0.2, found)}, step_cost=0.02, max_turns=8)\n""",
    "with_potential": lambda: AS_JSON + STORE + PARTLY + """
from sparring.rewards import with_potential

reward = with_potential(solved, lambda task, messages: 0.1 * sum(one["role"] == "tool" for one in messages[-1:]))
""",
    "ordered": lambda: AS_JSON + STORE + PARTLY + """
from sparring.rewards import Component, example, outcome_with_shaping

reward = outcome_with_shaping(solved, Component(name="brevity", measure=share_of_turns_left, weight=0.04))
task = train_tasks()[0]
right, wrong = answer(written(task.fields["answer"])), answer("x")
fast, slow, loss = (example(task, *replies) for replies in ([right], [wrong, right], [wrong, wrong, wrong]))
""" + block(REWARDS, "reward = ordered(").replace("example(task)", "example(task, num_turns=4)"),
    "exact_match": lambda: in_tag("shelf", "with its shelf in <shelf></shelf>.", "row['shelf']") + STORE
    + "\nfrom sparring.scorers import exact_match\nscorer = exact_match('shelf', 'answer')\n",
    "numeric_match": lambda: in_tag("count", "with its count in <count></count>.", "row['count']") + STORE
    + "\nfrom sparring.scorers import numeric_match\nscorer = numeric_match('count', 'answer', tolerance=0.5)\n",
    "set_match": lambda: in_tag("both", "with a JSON list of shelf and count in <both></both>.", "[row['shelf'], row['count']]")
    + STORE + "\nfrom sparring.scorers import set_match\nscorer = set_match('both', 'answer')\n",
    "sql_result": lambda: """
from sparring.sandbox import SqlDatabase
from sparring.scorers import sql_result

KINDS = ("bolt", "nut", "gear", "cap", "rivet", "hinge")


class Desk(Environment):
    def reset(self, task):
        self.rows = task.fields["rows"]

    @tool
    def kinds(self) -> list[str]:
        "What kinds of parts the table `parts` (kind TEXT, shelf TEXT, num INTEGER) has."
        return sorted({kind for kind, _, _ in self.rows})

    def demonstrate(self, task):
        return [tool_call("kinds"), answer(f"```sql\\n{task.fields['query']}\\n```")]


def database(task):
    return SqlDatabase({"parts": [dict(zip(("kind", "shelf", "num"), row)) for row in task.fields["rows"]]})


def one(task_id, rng):
    rows = [[rng.choice(KINDS), f"{rng.choice('ABC')}{rng.randint(10, 99)}", rng.randint(1, 90)] for _ in range(12)]
    kind, least = rng.choice(rows)[0], rng.randint(1, 40)
    prompt = f"Case {task_id}: the shelves with more than {least} of the kind {kind}. Answer with one block ```sql."
    query = f"SELECT shelf FROM parts WHERE kind = '{kind}' AND num > {least}"
    return Task(id=task_id, messages=({"role": "user", "content": prompt},), fields={"rows": rows, "query": query})


def reward(trajectory):
    found = re.fullmatch(r"```sql\\n(.*)\\n```", str(trajectory.messages[-1].get("content")))
    return float(found is not None and found[1] == trajectory.task.fields["query"])


scorer = sql_result(database)
""",
    "unit_tests": lambda: """
from sparring.scorers import unit_tests


class Desk(Environment):
    @tool
    def style(self) -> str:
        "How programs are written here."
        return "One function, without imports."

    def demonstrate(self, task):
        return [tool_call("style"), answer(f"```python\\n{task.fields['program']}\\n```")]


def one(task_id, rng):
    name, factor, offset = rng.choice(("scale", "shift", "grow", "move")), rng.randint(2, 99), rng.randint(2, 99)
    prompt = f"Case {task_id}: write {name}(x), {factor} times x plus {offset}. Answer with one block ```python."
    tests = f"import solution\\n\\ndef test_it():\\n    assert solution.{name}(3) == {3 * factor + offset}\\n"
    tests += f"\\ndef test_zero():\\n    assert solution.{name}(0) == {offset}\\n"
    program = f"def {name}(x):\\n    return {factor} * x + {offset}"
    return Task(id=task_id, messages=({"role": "user", "content": prompt},), fields={"tests": tests, "program": program})


def reward(trajectory):
    found = re.fullmatch(r"```python\\n(.*)\\n```", str(trajectory.messages[-1].get("content")), re.DOTALL)
    return float(found is not None and found[1] == trajectory.task.fields["program"])


scorer = unit_tests()
""",
    "state_difference": lambda: block(REWARDS, "class Shop(StatefulEnvironment)") + """

class Desk(Shop):
    def reset(self, task):
        super().reset(task)
        self.state.database.row_factory = sqlite3.Row
        self.state.database.execute("CREATE TABLE orders (id INTEGER, sent INTEGER)")
        self.state.database.executemany("INSERT INTO orders VALUES (?, 0)", [(one,) for one in task.fields["orders"]])

    @tool
    def send(self, order: int) -> str:
        "Send an order."
        if self.state.database.execute("UPDATE orders SET sent = 1 WHERE id = ?", (order,)).rowcount == 0:
            raise ValueError(f"there is no order {order}")
        return "sent"

    def demonstrate(self, task):
        return [*(tool_call("send", order=one) for one in task.fields["due"]), answer("They are on their way.")]


def one(task_id, rng):
    orders = sorted(rng.sample(range(1000, 9999), 4))
    due = orders[:2] if rng.random() < 0.5 else orders[2:]
    prompt = f"Send the orders {due[0]} and {due[1]}."
    state = {"orders": [{"id": order, "sent": int(order in due)} for order in orders]}
    return Task(
        id=task_id, messages=({"role": "user", "content": prompt},), fields={"orders": orders, "due": due, "state": state}
    )


def reward(trajectory):
    rows = {row["id"]: row["sent"] for row in trajectory.final_state["orders"]}
    return float(all(sent == (order in trajectory.task.fields["due"]) for order, sent in rows.items()))
""".replace("sqlite3.Row", "__import__('sqlite3').Row"),
    "Library": lambda: block("environments.md", "class Library(Environment)") + """

class Desk(Library):
    pass


def one(task_id, rng):
    shelves = {f"{rng.choice(NAMES)} {rng.randint(100, 999)}": f"{rng.choice('ABC')}{rng.randint(10, 99)}" for _ in range(3)}
    title = next(iter(shelves))
    prompt = f"Reader {task_id}: where is {title}? Answer with the shelf."
    return Task(
        id=task_id, messages=({"role": "user", "content": prompt},),
        fields={"shelves": shelves, "title": title, "answer": shelves[title]},
    )


NAMES = ("Emma", "Dune", "Ulysses", "Solaris", "Momo", "Kim")


def reward(trajectory):
    return float(trajectory.messages[-1].get("content") == trajectory.task.fields["answer"])


from sparring.scorers import exact_match
scorer = exact_match(None, "answer")
""",
    "Orders": lambda: block("environments.md", "class Orders(StatefulEnvironment)").partition("\ntask = ")[0] + """

class Desk(Orders):
    def final_state(self):
        return {"orders": [order[:2] for order in self.orders()]}

    def demonstrate(self, task):
        return [tool_call("place", item=task.fields["item"], num=task.fields["num"]), answer("done")]


def one(task_id, rng):
    item, num = rng.choice(("pen", "ruler", "lamp", "stamp", "tray", "glue")), rng.randint(11, 99)
    prompt = f"Order {task_id}: {num} of the item {item}."
    fields = {"item": item, "num": num, "state": {"orders": [[item, num]]}}
    return Task(id=task_id, messages=({"role": "user", "content": prompt},), fields=fields)


def reward(trajectory):
    fields = trajectory.task.fields
    return float(trajectory.final_state["orders"] == [[fields["item"], fields["num"]]])


from sparring.scorers import state_difference
scorer = state_difference("state")
""",
}  # fmt: skip


SANDBOXED = {"unit_tests"}

MODEL_GRADED = """
from sparring.rewards import example
from sparring.scorers import exact_match


class Desk(Environment):
    def reset(self, task):
        self.stock = task.fields["stock"]

    @tool
    def look(self, part: str) -> dict[str, str | int]:
        "How many there are of a part, and on which shelf."
        return self.stock.get(part, {"error": f"{part} is unknown"})

    def demonstrate(self, task):
        return [tool_call("look", part=task.fields["part"]), answer(task.fields["solution"])]


KINDS = ("bolt", "nut", "gear", "cap", "rivet", "hinge")


def one(task_id, rng):
    parts = [f"{kind}{rng.randint(12, 99)}" for kind in rng.sample(KINDS, 3)]
    stock = {part: {"count": rng.randint(100, 999), "shelf": f"{rng.choice('ABC')}{rng.randint(10, 99)}"} for part in parts}
    row = stock[parts[0]]
    prompt = f"Case {task_id}: how many are there of the part {parts[0]}? Answer in the form `17, on the shelf A11`."
    solution = f"{row['count']}, on the shelf {row['shelf']}"
    return Task(
        id=task_id, messages=({"role": "user", "content": prompt},),
        fields={"stock": stock, "part": parts[0], "solution": solution},
    )


scorer = exact_match(None, "solution")
labelled = [
    pair for task in train_tasks()[:4]
    for pair in ((example(task, answer(task.fields["solution"])), True), (example(task, answer("5")), False))
]
"""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A model that finds the amount of the reference, and its shelf, in an answer."""

    def grade(shown: Mapping[str, str]) -> dict[str, bool]:
        text, right = (shown.get(name, "").strip() for name in ("answer", "reference"))
        return {"right": text == right, "source": bool(right) and text.partition(", ")[2] == right.partition(", ")[2]}

    started = Endpoint(grade)
    yield started
    started.close()


def test_the_judge_that_a_page_shows_passes_the_check_against_a_model(endpoint: Endpoint, tmp_path: Path) -> None:
    shown = block(REWARDS, "reward = Calibrated(judge").replace("http://127.0.0.1:8000/v1", endpoint.address)
    (tmp_path / "environment.py").write_text(TASKS + MODEL_GRADED + shown, "utf-8")
    (tmp_path / "recipe.toml").write_text(RECIPE, "utf-8")
    found = [(one.severity.value, one.rule, one.symptom) for one in findings(tmp_path)]
    assert [one for one in found if one[0] != "note"] == []
    assert endpoint.num_asked > 100


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_page_shows_passes_the_check(name: str, tmp_path: Path) -> None:
    # Each grade takes a sandbox: two tasks show as much.
    tasks = TASKS.replace('"train", 12', '"train", 2') if name in SANDBOXED else TASKS
    (tmp_path / "environment.py").write_text(tasks + RECIPES[name](), "utf-8")
    (tmp_path / "recipe.toml").write_text(RECIPE, "utf-8")
    found = [(one.severity.value, one.rule, one.symptom) for one in findings(tmp_path)]
    assert [one for one in found if one[0] == "error"] == []
    # The rewards that are written here are stricter than the scorers about what stands around an answer.
    assert {rule for severity, rule, _ in found if severity == "warning"} <= {"reward.mutations"}
