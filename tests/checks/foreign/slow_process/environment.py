"""A desk whose records are kept by a program of its own, in a process for each episode, that takes seconds to start."""

import json
import os
import subprocess
import sys
from pathlib import Path

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Task

START_SECONDS = float(os.environ.get("SLOW_PROCESS_SECONDS", "3"))
SERVER = Path(__file__).with_name("server.py")


class Depot(Environment):
    def reset(self, task: Task) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(SERVER), str(START_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ask({"open": task.fields["records"]})

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        if "error" in reply:
            raise LookupError(reply["error"])
        return reply["result"]

    @tool
    def crate(self, crate_id: str) -> dict[str, str]:
        """What is in a crate, and its bay."""
        return self.ask({"find": ["crates", crate_id]})

    @tool
    def bay(self, bay_id: str) -> dict[str, int]:
        """The level of a bay."""
        return self.ask({"find": ["bays", bay_id]})

    def close(self) -> None:
        if hasattr(self, "process"):
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.kill()
            self.process.wait()

    def demonstrate(self, task: Task):
        bay = task.fields["records"]["crates"][task.fields["crate_id"]]["bay"]
        return [
            tool_call("crate", crate_id=task.fields["crate_id"]),
            tool_call("bay", bay_id=bay),
            answer(f"<final_output>{json.dumps(task.fields['answer'])}</final_output>"),
        ]


reward, scorer = json_fields("final_output"), json_exact("final_output")
DECKS = ("ground", "lower", "upper", "top")
RULES = """Find the bay of a crate with crate, then the level of that bay with bay.
Level 1 is the deck ground, 2 lower, 3 upper, 4 top.
End with <final_output>{"bay": "", "deck": ""}</final_output>, filled in."""


def tasks(split: str, num: int) -> list[Task]:
    first = {"train": 100, "validation": 200, "held_out": 300}[split]
    made = []
    for number in range(first, first + num):
        crate, bay, level = f"CR-{number}", f"B{number * 7 % 89 + 10}{split[0]}", number * 5 % 4 + 1
        records = {
            "crates": {crate: {"content": ("tea", "salt", "rope")[number % 3], "bay": bay}},
            "bays": {bay: {"level": level}},
        }
        made.append(
            Task(
                id=f"{split}-{number}",
                messages=(
                    {"role": "system", "content": RULES},
                    {"role": "user", "content": f"Where is crate {crate}?"},
                ),
                fields={"crate_id": crate, "records": records, "answer": {"bay": bay, "deck": DECKS[level - 1]}},
                seed=number,
            )
        )
    return made


def train_tasks() -> list[Task]:
    return tasks("train", 32)


def validation_tasks() -> list[Task]:
    return tasks("validation", 8)


def held_out_tasks() -> list[Task]:
    return tasks("held_out", 8)
