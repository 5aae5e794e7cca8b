"""A Model Context Protocol server of its own for every episode. The prompt gives a customer, and everything else is asked."""

import json
import random
import sys
from pathlib import Path

from sparring.environments.adapters.mcp_server import McpProcess
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

PROMPT = """Price the customer's parcel by express, and answer with <final_output>{"price": 0.0}</final_output>.

Customer: %s
Keep it until 2025-04-01 if it weighs more than 20 kilograms."""


class Depot(McpProcess):
    def __init__(self) -> None:
        super().__init__([sys.executable, str(Path(__file__).with_name("server.py"))])

    def variables_of(self, task: Task):
        return {"PARCELS": json.dumps(task.fields["parcels"])}


reward, scorer = json_fields("final_output"), json_exact("final_output")


def tasks(split: str, num: int) -> list[Task]:
    made = []
    for index in range(num):
        rng = random.Random(f"{split}-{index}")
        parcels = {
            f"PK-{rng.randrange(10**5):05d}": {
                "weight": rng.randint(1, 30),
                "zone": rng.choice("NESW") + str(rng.randint(1, 9)),
                "customer": f"{name} {split}",
            }
            for name in rng.sample(["Adler", "Brandt", "Conti", "Duval", "Eriksen"], 3)
        }
        first = next(iter(parcels.values()))
        made.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": PROMPT % first["customer"]},),
                fields={"parcels": parcels, "answer": {"price": first["weight"] * 2.5}},
                seed=index,
            )
        )
    return made


def train_tasks() -> list[Task]:
    return tasks("train", 24)


def validation_tasks() -> list[Task]:
    return tasks("validation", 6)


def held_out_tasks() -> list[Task]:
    return tasks("held_out", 6)
