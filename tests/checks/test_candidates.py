"""Laws on rewards, answers and prompts that need no known right answer: each defect is named, and its correction is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sparring.checks.evidence.reference_episodes import find_references
from tests.checks.test_unguided import recipe, symptoms
from tests.checks.unguided import HEAD, Case

LOOK = '''
class Desk(Environment):
    def reset(self, task):
        self.rows = task.fields["rows"]

    @tool
    def look(self, name: str) -> dict | str:
        """The record of a name: its kind and its floor."""
        return self.rows.get(name, "no such name")


'''
READ_ANSWER = """
def read_answer(trajectory):
    last = trajectory.messages[-1]
    text = str(last.get("content")) if last["role"] == "assistant" else ""
    return text[3:-4] if text.startswith("<a>") and text.endswith("</a>") else None


"""
EXACT = """
def scorer(trajectory):
    return float(read_answer(trajectory) == trajectory.task.fields["answer"])


reward = scorer


"""
NAMES = ["Ada", "Bo", "Cy", "Dina", "Ed", "Flo", "Gus", "Hana", "Ivo", "Jun", "Kai", "Lea", "Mo", "Nia"]


def build_lookup(graders: str, tasks: str) -> str:
    return HEAD + LOOK + READ_ANSWER + graders + f"def train_tasks():\n    names = {NAMES}\n" + tasks


DECISIONS = (
    HEAD
    + '''
class Desk(Environment):
    def reset(self, task):
        self.number, self.done = task.fields["number"], ""

    @tool
    def order(self, number: int) -> str:
        """What was ordered."""
        return "a lamp" if number == self.number else "no such order"

    @tool
    def refund(self, number: int) -> str:
        """Pay an order back."""
        if number != self.number:
            return "no such order"
        self.done = "refunded"
        return "done"

    def final_state(self):
        return {"done": self.done}


def scorer(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["wanted"])


def reward(trajectory):
    REWARD


def train_tasks():
    return [asked(f"t{n}", f"Refund order {100 + n}.", number=100 + n, wanted={"done": "refunded"}) for n in range(8)]
'''
)
ROUNDS = build_lookup(
    """
def stops(trajectory):
    try:
        found = json.loads(read_answer(trajectory) or "")
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def scorer(trajectory):
    found = stops(trajectory)
    return float(found is not None and sorted(found) == sorted(trajectory.task.fields["stops"]))


def reward(trajectory):
    found = stops(trajectory)
    return float(bool(found) and sorted(found) == sorted(trajectory.task.fields["stops"]))


""",
    """
    prompt = 'Name the stops: <a>["Bo", "Ed"]</a>'
    return [asked(f"t{n}", f"{prompt} {n}", rows={}, stops=names[n : n + 3]) for n in range(8)]
""",
)
KATA = build_lookup(
    """
def holds(trajectory, points):
    text = read_answer(trajectory)
    try:
        return all(int(text.split("x+")[0]) * a + int(text.split("x+")[1]) == b for a, b in points)
    except (AttributeError, IndexError, ValueError):
        return False


def scorer(trajectory):
    return float(holds(trajectory, trajectory.task.fields["all"]))


def reward(trajectory):
    hidden = trajectory.task.fields["hidden"]
    return float(holds(trajectory, hidden))


""",
    """
    points = [[(a, (n + 2) * a + n) for a in range(5)] for n in range(12)]
    hidden = [those[2 + n % 4 :] if n % 3 else [] for n, those in enumerate(points)]
    return [asked(f"t{n}", f"Find it: <a>7x+9</a> {n}", rows={}, all=points[n], hidden=hidden[n]) for n in range(12)]
""",
)


def build_totals(prompt: str, answer: str, graders: str = EXACT) -> str:
    return build_lookup(
        graders, f'\n    return [asked(f"t{{n}}", f"{prompt} {{n}}", rows={{}}, answer={answer}) for n in range(14)]\n'
    )


FIRST_NUMBER = """
import re


def scorer(trajectory):
    numbers = re.findall(r"[0-9]+", str(trajectory.messages[-1].get("content")))
    return float(bool(numbers) and numbers[-1] == trajectory.task.fields["answer"])


def reward(trajectory):
    numbers = re.findall(r"[0-9]+", str(trajectory.messages[-1].get("content")))
    return float(bool(numbers) and numbers[:1] == [trajectory.task.fields["answer"]])


"""
STRIPPED = EXACT.replace("read_answer(trajectory) ==", "str(read_answer(trajectory)).strip() ==")
SORTED = """
def in_order(text):
    return text.split(", ")


def scorer(trajectory):
    found, wanted = read_answer(trajectory) or "", trajectory.task.fields["answer"]
    return float(in_order(found) == in_order(wanted))


reward = scorer


"""
CASES = {
    "the last message is believed": Case(
        DECISIONS.replace("REWARD", 'return float("refunded" in str(trajectory.messages[-1].get("content")))'),
        'return float("refunded" in str(trajectory.messages[-1].get("content")))', "return scorer(trajectory)",
        "reward.agreement", "'refunded' at once, a text in the code of the graders, which the scorer rejects",
    ),
    "a part of the list is enough": Case(
        ROUNDS.replace("bool(found) and sorted(found) == sorted(", "bool(found) and set(found) <= set("),
        "bool(found) and set(found) <= set(", "bool(found) and sorted(found) == sorted(",
        "reward.agreement", "one element of `stops`, which the scorer rejects in every form",
    ),
    "nothing is hidden in some tasks": Case(
        KATA, "float(holds(trajectory, hidden))", "float(bool(hidden) and holds(trajectory, trajectory.task.fields['all']))",
        "reward.agreement", "those where `hidden` has 0 elements",
    ),
    "the form of the example is refused": Case(
        build_totals("How much? <a>EUR 1,284.50</a>", 'f"{1000 + 77 * n}.5"'), "EUR 1,284.50", "1284.5",
        "prompt.form", "The prompt requests 'EUR 1,284.50', but the scorer rejects",
    ),
    "a field that nothing describes is the answer": Case(
        build_lookup(EXACT, '''
    rows = [{one: {"kind": one[0], "floor": n, "rated": f"P{n % 5}"}} for n, one in enumerate(names)]
    return [asked(f"t{n}", f"Rate {one}: <a>P7</a>", rows=rows[n], answer=f"P{n % 5}") for n, one in enumerate(names)]
'''), ', "rated": f"P{n % 5}"', "", "data.leak_in_results", "The field 'rated' in results of look is the reference answer",
    ),
    "the scorer cannot read some references": Case(
        build_totals("Who? <a>X</a>", 'names[n] + (" " if n % 5 == 1 else "")', STRIPPED), ' + (" " if n % 5 == 1 else "")', "",
        "policies.expert", "The scorer rejects the reference answers of",
    ),
    "numbers on the way count": Case(
        build_totals("Show your work, then the total.", "str(40 + n)", FIRST_NUMBER), "numbers[:1]", "numbers[-1:]",
        "prompt.form", "and the reward rejects right answers in this form",
    ),
    "choices count from 1 and answers from 0": Case(
        build_totals("Which one?\\n1) red {n}\\n2) green\\n3) blue\\nAs <a>1</a>.", "str(n % 3)"), "str(n % 3)", "str(n % 3 + 1)",
        "prompt.form", "are not among the choices that their prompts list: '0'",
    ),
    "the right choice comes first": Case(
        build_lookup(EXACT, '''
    tasks = []
    for n, one in enumerate(names):
        some = [one, *[other for other in names[::-1] if other != one][:3]]
        some = some[0:] + some[:0]
        tasks.append(asked(f"t{n}", f"Who of {', '.join(some)}? <a>Max</a>", rows={}, some=some, answer=one))
    return tasks
'''), "some[0:] + some[:0]", "some[n % 4:] + some[:n % 4]", "prompt.form", "is the first one in the list in 11 of 11 tasks",
    ),
    "more turns are promised than there are": Case(
        build_totals("You have 12 turns. Who? <a>X</a>", "names[n]"), "12 turns", "6 turns",
        "environment.described", "'have 12 turns', but an episode ends after environment.max_turns = 8",
    ),
    "no answer is accepted": Case(
        build_totals("Who? <a>X</a>", "names[n]", STRIPPED.replace("strip", "lower")), ".lower()", "",
        "policies.expert", "No answer was found that the scorer accepts: it rejects the field `answer` in all",
    ),
    "any order": Case(
        build_totals("Who, in any order? <a>X, Y</a>", "', '.join(names[n:n + 2])", SORTED),
        'text.split(", ")', 'sorted(text.split(", "))',
        "prompt.form", "The prompt states 'in any order', and the scorer rejects",
    ),
    "tools spell it otherwise": Case(
        build_lookup(EXACT, '''
    rows = [{one: {"kind": f"Kind-{n}", "floor": n}} for n, one in enumerate(names)]
    return [asked(f"t{n}", f"Kind of {one}? <a>x</a>", rows=rows[n], answer=f"kind {n}") for n, one in enumerate(names)]
'''), 'f"kind {n}"', 'f"Kind-{n}"', "prompt.form", "The tools or the prompt spell the answer differently, and the scorer rejects",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_defect_is_named_and_its_correction_is_not(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.wrong in case.source
    found = symptoms(recipe(tmp_path / "wrong", case.source), case.rule)
    assert any(case.symptom in one for one in found), found
    found = symptoms(recipe(tmp_path / "right", case.source.replace(case.wrong, case.right)), case.rule)
    assert not any(case.symptom in one for one in found), found


SUBMIT = (
    HEAD
    + '''
class Desk(Environment):
    def reset(self, task):
        self.rows, self.user_inputs = task.fields["rows"], None

    @tool
    def look(self, name: str) -> str:
        """The city of a name."""
        return self.rows.get(name, "no such name")

    @tool
    def submit(self, city: str) -> str:
        """Give the answer."""
        self.user_inputs = city
        return "thank you"

    @property
    def is_done(self):
        return self.user_inputs is not None


def scorer(trajectory):
    calls = [one["arguments"]["city"] for one in trajectory.transitions if one["tool"] == "submit"]
    return float(calls == [trajectory.task.fields["city"]])


reward = scorer


def train_tasks():
    return [asked(f"t{n}", f"City of p{n}?", rows={f"p{n}": f"c{n}"}, city=f"c{n}") for n in range(12)]
'''
)
READ_FIRST = build_lookup(
    """
def scorer(trajectory):
    has_looked = any(one["tool"] == "look" and one["error"] is None for one in trajectory.transitions)
    return float(has_looked and read_answer(trajectory) == trajectory.task.fields["answer"])


reward = scorer


""",
    """
    prompt = "What kind is it? <a>x</a> The name is"
    return [asked(f"t{n}", f"{prompt} {one}", rows={one: {"kind": f"k{n}"}}, answer=f"k{n}") for n, one in enumerate(names)]
""",
)


@pytest.mark.parametrize(("source", "first"), [(SUBMIT, "submit"), (READ_FIRST, "look")])
def test_a_right_answer_is_found_in_a_call_and_after_calls(source: str, first: str, tmp_path: Path) -> None:
    subject = recipe(tmp_path, source)
    references = asyncio.run(find_references(subject))
    assert references is not None
    called = [one.script[0]["tool_calls"][0]["function"]["name"] for one in references.by_task.values()]
    assert len(called) >= len(subject.sample)
    assert set(called) == {first}
    for rule in (
        "policies.expert",
        "reward.agreement",
        "reward.mutations",
        "reward.order",
        "data.unanswerable",
    ):
        assert symptoms(subject, rule) == []
