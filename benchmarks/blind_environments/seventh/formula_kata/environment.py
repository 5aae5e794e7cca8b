"""Formula kata: find the formula behind a few examples; it is tested on points that were not shown."""

from __future__ import annotations

import ast
import operator
import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
NUM_SHOWN = 4
INSTRUCTIONS = (
    "Find a formula in a and b with whole numbers, +, - and * (no powers) that gives the value of each example. `check` says what a "
    "formula gives for the examples. It has to hold for other a and b, too. Answer: <final_output>2*a+b</final_output>"
)


class Kata(Environment):
    def reset(self, task: Task) -> None:
        self.shown = task.fields["points"][:NUM_SHOWN]

    @tool
    def check(self, formula: str) -> list[str] | str:
        """What a formula gives for each of the examples.

        Args:
            formula: as 2*a+b"""
        try:
            return [f"a={a}, b={b}: {_value(formula, a, b)} (should be {value})" for a, b, value in self.shown]
        except (SyntaxError, ValueError):
            return "This is no formula of a, b, whole numbers, +, - and *."


def _value(formula: str, a: int, b: int) -> int:
    if len(formula) > 60:
        raise ValueError("too long")

    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id="a"):
                return a
            case ast.Name(id="b"):
                return b
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](of(left), of(right))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                return -of(operand) if isinstance(sign, ast.USub) else of(operand)
        raise ValueError("not allowed")

    return of(ast.parse(formula.strip(), mode="eval").body)


def reward(trajectory: Trajectory) -> float:
    """1 when the formula holds at all points that were not shown."""
    last = trajectory.messages[-1]
    text = last.get("content") or ""
    said = re.findall(r"<final_output>(.*?)</final_output>", text, re.DOTALL)
    if last["role"] != "assistant" or len(said) != 1 or text.count("<final_output>") != 1:
        return 0.0
    hidden = trajectory.task.fields["points"][NUM_SHOWN:]
    try:
        return float(all(_value(said[0], a, b) == value for a, b, value in hidden))
    except (SyntaxError, ValueError):
        return 0.0


def scorer(trajectory: Trajectory) -> float:
    """1 when the formula agrees with the one that the task was made of, everywhere on a grid."""
    last = trajectory.messages[-1]
    text = str(last.get("content"))
    begin, end = text.find("<final_output>") + len("<final_output>"), text.find("</final_output>")
    formula = text[begin:end].strip() if last.get("role") == "assistant" and 0 <= begin <= end else ""
    if text.count("<final_output>") != 1 or not re.fullmatch(r"[ab0-9+\-* ()]{1,60}", formula) or "**" in formula:
        return 0.0
    p, q, r = (trajectory.task.fields[name] for name in "pqr")
    grid = [(a, b) for a in range(-6, 7) for b in range(-6, 7)]
    try:
        code = compile(formula, "formula", "eval")
        return float(
            all(eval(code, {"__builtins__": {}}, {"a": a, "b": b}) == p * a + q * b + r * a * b for a, b in grid)
        )
    except Exception:  # noqa: BLE001
        return 0.0


def train_tasks() -> list[Task]:
    return _tasks()[:40]


def held_out_tasks() -> list[Task]:
    return _tasks()[40:]


def _tasks() -> list[Task]:
    rng = random.Random("kata")
    everything = [(p, q, r) for p in range(-4, 5) for q in range(-4, 5) for r in range(-2, 3) if p and q and r]
    return [_task(index, *chosen, rng) for index, chosen in enumerate(rng.sample(everything, 54))]


def _task(index: int, p: int, q: int, r: int, rng: random.Random) -> Task:
    plane = [(a, b) for a in range(1, 9) for b in range(1, 9)]
    points = [[a, b, p * a + q * b + r * a * b] for a, b in rng.sample(plane, rng.randint(4, 8))]
    text = "\n".join(f"a={a}, b={b}: {value}" for a, b, value in points[:NUM_SHOWN])
    return Task(
        id=f"kata-{index}",
        messages=({"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}),
        fields={"points": points, "p": p, "q": q, "r": r},
    )
