"""Small katas: write an expression in x, run it on the examples, submit it."""

import ast
import random

from sparring.environments import Environment, tool
from sparring.types import Task

ALLOWED = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Mod,
    ast.USub,
)


def evaluate(source: str, x: int) -> int:
    tree = ast.parse(source, mode="eval")
    if len(source) > 60 or not all(isinstance(node, ALLOWED) for node in ast.walk(tree)):
        raise ValueError("use x, whole numbers and + - * % only")
    return eval(compile(tree, "kata", "eval"), {"__builtins__": {}}, {"x": x})


class Kata(Environment):
    def reset(self, task):
        self.examples = task.fields["examples"]
        self.hidden = task.fields["hidden"]
        self.results = []

    @tool
    def try_expression(self, source: str) -> str:
        """Run an expression on the examples and show what it gives.

        Args:
            source: an expression in x, such as 3 * x + 1
        """
        try:
            return "; ".join(f"x={x}: {evaluate(source, x)}, wanted {y}" for x, y in self.examples)
        except Exception as error:
            return f"error: {error}"

    @tool
    def submit(self, source: str) -> str:
        """Hand in the expression; the last one counts."""
        try:
            self.results = [evaluate(source, x) == y for x, y in self.hidden]
        except Exception as error:
            self.results = [False]
            return f"error: {error}"
        return "handed in"

    def final_state(self):
        return {"results": self.results}


def reward(trajectory):
    """1 when the last submission passed all hidden tests."""
    state = trajectory.final_state or {"results": [False]}
    return 1.0 if all(state["results"]) else 0.0


def scorer(trajectory):
    submissions = [t for t in trajectory.transitions if t["tool"] == "submit" and t["error"] is None]
    if not submissions:
        return 0.0
    try:
        source = submissions[-1]["arguments"]["source"]
        return float(all(evaluate(source, x) == y for x, y in trajectory.task.fields["hidden"]))
    except Exception:
        return 0.0


def tasks(split, num):
    rng = random.Random(f"kata/{split}")
    result = []
    for i in range(num):
        a, b, m = rng.randint(2, 9), rng.randint(1, 20), rng.choice([5, 7, 11, 13])
        f = (lambda x: a * x + b) if rng.random() < 0.5 else (lambda x: (a * x + b) % m)
        points = [[x, f(x)] for x in rng.sample(range(40), 10)]
        result.append(
            Task(
                id=f"kata-{split}-{i}",
                messages=(
                    {
                        "role": "user",
                        "content": f"Find the expression in x. Examples (x, wanted): {points[:4]}. Submit it.",
                    },
                ),
                fields={"examples": points[:4], "hidden": points[4:]},
            )
        )
    return result


def train_tasks():
    return tasks("train", 64)


def held_out_tasks():
    return tasks("held_out", 32)
