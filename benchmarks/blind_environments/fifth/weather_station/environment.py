"""Weather records: in which month was a station wettest?"""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
STATIONS = [
    f"{first}{second}"
    for first in ("North", "South", "Lake", "Hill", "Port", "Moor")
    for second in ("field", "gate", "ham", "ton", "wick")
]


class Records(Environment):
    def reset(self, task):
        self.rain = task.fields["rain"]

    @tool
    def rainfall(self, station: str, month: str) -> str:
        """Millimetres of rain of a month.

        Args:
            station: its name
            month: three letters, Jan to Dec
        """
        if station not in self.rain:
            return f"no station {station}"
        if month not in MONTHS:
            return "month must be one of " + " ".join(MONTHS)
        return f"{self.rain[station][MONTHS.index(month)]} mm"

    @tool
    def quarter(self, station: str, number: int) -> str:
        """Rain of the three months of a quarter.

        Args:
            station: its name
            number: 1 to 4
        """
        if station not in self.rain or number not in (1, 2, 3, 4):
            return "unknown station or quarter"
        begin = 3 * (number - 1)
        return ", ".join(f"{MONTHS[m]} {self.rain[station][m]} mm" for m in range(begin, begin + 3))


def reply_of(trajectory):
    last = trajectory.messages[-1]
    return (last.get("content") or "").strip(" .\n") if last["role"] == "assistant" else ""


def reward(trajectory):
    return float(reply_of(trajectory) == trajectory.task.fields["wettest"])


def scorer(trajectory):
    fields = trajectory.task.fields
    rain = fields["rain"][fields["station"]]
    answer = reply_of(trajectory)
    return 1.0 if answer in MONTHS and rain[MONTHS.index(answer)] == max(rain) else 0.0


def bucket(station):
    return hash(station) % 10


def stations_of(split):
    wanted = {"train": range(0, 6), "validation": range(6, 8), "held_out": range(8, 10)}[split]
    return [station for station in STATIONS if bucket(station) in wanted]


def make_tasks(split, num):
    rng = random.Random(f"rain in {split}")
    tasks = []
    for index in range(num):
        station = rng.choice(stations_of(split))
        rain = {station: rng.sample(range(5, 180), 12)}
        question = f"Which month was the wettest at {station}? Reply with its three letters only."
        fields = {"rain": rain, "station": station, "wettest": MONTHS[rain[station].index(max(rain[station]))]}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": question},), fields=fields))
    return tasks


def train_tasks():
    return make_tasks("train", 60)


def validation_tasks():
    return make_tasks("validation", 12)


def held_out_tasks():
    return make_tasks("held_out", 12)
