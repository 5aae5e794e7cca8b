"""Election night: turnout and the winner's share from the polling stations."""

import json
import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """You work for an election office.
`station(number)` gives the votes of a polling station by candidate. Add up all stations of the ward.
Reply with JSON only: {"winner": name, "share": the winner's part of all votes in per cent, with one decimal}"""
NAMES = ["Adler", "Brandt", "Costa", "Dimov", "Engel", "Ferro", "Grant", "Huber", "Ibsen", "Jung", "Krol", "Lopez"]


class Ward(Environment):
    def reset(self, task):
        self.stations = task.fields["stations"]

    @tool
    def stations_of_ward(self) -> list[int]:
        """Numbers of all polling stations."""
        return list(range(1, len(self.stations) + 1))

    @tool
    def station(self, number: int) -> dict[str, int]:
        """Votes of a polling station, by candidate.

        Args:
            number: 1 or more
        """
        if not 1 <= number <= len(self.stations):
            raise ValueError(f"stations are 1 to {len(self.stations)}")
        return self.stations[number - 1]


def totals(stations):
    votes = {}
    for station in stations:
        for name, number in station.items():
            votes[name] = votes.get(name, 0) + number
    return votes


def result_of(stations):
    votes = totals(stations)
    winner = max(votes, key=votes.get)
    return {"winner": winner, "share": round(votes[winner] / sum(votes.values()), 3)}


def parsed(trajectory):
    last = trajectory.messages[-1]
    try:
        value = json.loads(last.get("content") or "") if last["role"] == "assistant" else None
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def close_enough(given, right):
    return isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given - right) < 0.06


def reward(trajectory):
    right, given = trajectory.task.fields["result"], parsed(trajectory)
    return 0.5 * (given.get("winner") == right["winner"]) + 0.5 * close_enough(given.get("share"), right["share"])


def scorer(trajectory):
    right, given = trajectory.task.fields["result"], parsed(trajectory)
    return 1.0 if given.get("winner") == right["winner"] and close_enough(given.get("share"), right["share"]) else 0.0


def _wards(split, names, count):
    rng = random.Random(f"ward/{split}")
    tasks = []
    for index in range(count):
        running = rng.sample(names, 3)
        stations = [{name: rng.randint(40, 700) for name in running} for _ in range(rng.randint(2, 4))]
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=(
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Ward {index + 1}: who won?"},
                ),
                fields={"stations": stations, "result": result_of(stations)},
            )
        )
    return tasks


def train_tasks():
    return _wards("train", NAMES[:6], 50)


def validation_tasks():
    return _wards("validation", NAMES[6:9], 12)


def held_out_tasks():
    return _wards("held_out", NAMES[9:], 12)
