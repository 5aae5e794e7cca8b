"""Permits for street stalls. In half of the cases the right thing is to change nothing and to say why."""

import random

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Score, Task

SYSTEM = """\
You decide on permits for street stalls. Check in this order: the applicant is of age (18), no fees are owed, the stall is no wider than
its square allows. If all is well, grant the permit and answer granted. If not, grant nothing and answer with the first reason alone:
age, fees or width"""

SQUARES = ("Market Square", "Old Harbor", "Linden Park", "Station Yard")


class Permits(Environment):
    def reset(self, task):
        self.cases = task.fields["cases"]
        self.squares = task.fields["squares"]
        self.granted = []

    @tool
    def case(self, number: str) -> dict[str, str | int] | str:
        """An application: age of the applicant, fees owed in euros, square, and width of the stall in centimeters."""
        return self.cases.get(number, "no such case")

    @tool
    def widest(self, square: str) -> str:
        """Greatest width of a stall in a square, in centimeters."""
        return str(self.squares.get(square, "no such square"))

    @tool
    def grant(self, number: str) -> str:
        """Grant the permit of a case."""
        if number not in self.cases:
            return "no such case"
        if number not in self.granted:
            self.granted.append(number)
        return "granted"

    def final_state(self):
        return {"granted": sorted(self.granted)}


def _reason(case, squares):
    if case["age"] < 18:
        return "age"
    if case["fees"] > 0:
        return "fees"
    return "width" if case["width"] > squares[case["square"]] else "granted"


def _task(split, index, rng):
    squares = {square: rng.randrange(200, 420, 20) for square in SQUARES}
    numbers = [f"S-{number}" for number in rng.sample(range(100, 1000), 3)]
    wanted = ("granted", "age", "granted", "fees", "granted", "width")[index % 6]
    cases = {}
    for number in numbers:
        while True:
            square = rng.choice(SQUARES)
            case = {
                "age": rng.choice((16, 17, 18, 19, 34, 61)),
                "fees": rng.choice((0, 0, 0, 15, 80)),
                "square": square,
                "width": squares[square] + rng.choice((-40, -20, 0, 20, 40)),
            }
            if number != numbers[0] or _reason(case, squares) == wanted:
                break
        cases[number] = case
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Decide on case {numbers[0]}."}),
        fields={
            "cases": cases,
            "squares": squares,
            "answer": wanted,
            "state": {"granted": [numbers[0]] if wanted == "granted" else []},
        },
    )


def train_tasks():
    rng = random.Random("stalls")
    return [_task("train", index, rng) for index in range(60)]


def held_out_tasks():
    rng = random.Random("stalls of next year")
    return [_task("held-out", index, rng) for index in range(24)]


def reward(trajectory):
    """Nothing at all when the wrong permits are out, whatever is said."""
    last, fields = trajectory.messages[-1], trajectory.task.fields
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    if (trajectory.final_state or {}).get("granted") != fields["state"]["granted"]:
        return 0.0
    return 1.0 if (last.get("content") or "").strip() == fields["answer"] else 0.0


_state = state_difference("state")


def scorer(trajectory):
    final = trajectory.messages[-1]
    is_answer = final["role"] == "assistant" and not final.get("tool_calls")
    is_said = is_answer and (final.get("content") or "").split() == [trajectory.task.fields["answer"]]
    state = float(_state(trajectory))
    return Score(state * is_said, {"state": state, "answer": float(is_said)})
