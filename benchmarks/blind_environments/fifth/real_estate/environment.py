"""An estate agent's database of houses, searched by street and owner."""

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.types import Task

OWNERS = [
    "Miller",
    "O'Hara",
    "Svensson",
    "D'Angelo",
    "Okafor",
    "Schmidt",
    "O'Neill",
    "Tanaka",
    "Rossi",
    "Weber",
    "N'Dour",
    "Klein",
]
STREETS = [
    "Elm Road",
    "King's Parade",
    "Mill Lane",
    "St. John's Hill",
    "Park Row",
    "Queen Street",
    "Canal View",
    "Baker's Yard",
]


class Agency(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        db = self.state.database
        db.execute("CREATE TABLE houses (id TEXT PRIMARY KEY, street TEXT, owner TEXT, rooms INTEGER, price INTEGER)")
        db.executemany("INSERT INTO houses VALUES (?, ?, ?, ?, ?)", task.fields["rows"])

    @tool
    def by_owner(self, owner: str) -> list[dict]:
        """Houses of an owner.

        Args:
            owner: surname
        """
        rows = self.state.database.execute(
            f"SELECT id, street, rooms, price FROM houses WHERE owner = '{owner}' ORDER BY id"
        )
        return [dict(zip(("id", "street", "rooms", "price"), row, strict=True)) for row in rows]

    @tool
    def by_street(self, street: str, min_rooms: int = 1) -> list[dict]:
        """Houses of a street with so many rooms at least.

        Args:
            street: its name in full
            min_rooms: the fewest rooms
        """
        rows = self.state.database.execute(
            "SELECT id, owner, rooms, price FROM houses WHERE street = ? AND rooms >= ? ORDER BY id",
            (street, min_rooms),
        )
        return [dict(zip(("id", "owner", "rooms", "price"), row, strict=True)) for row in rows]


def _final(trajectory):
    last = trajectory.messages[-1]
    return str(last.get("content") or "").strip() if last["role"] == "assistant" else ""


def reward(trajectory):
    return 1.0 if _final(trajectory) == f"HOUSE {trajectory.task.fields['house']}" else 0.0


def scorer(trajectory):
    fields = trajectory.task.fields
    mine = [row for row in fields["rows"] if row[2] == fields["owner"]]
    dearest = max(mine, key=lambda row: row[4])
    return float(_final(trajectory).split() == ["HOUSE", dearest[0]])


def _tasks(split, owners, num):
    rng = random.Random(f"estate-{split}")
    tasks = []
    for index in range(num):
        prices = rng.sample(range(150, 900), 12)
        rows = [
            [
                f"H{rng.randint(10, 99)}{n:02d}",
                rng.choice(STREETS),
                owners[n % len(owners)],
                rng.randint(2, 9),
                1000 * price,
            ]
            for n, price in enumerate(prices)
        ]
        owner = rng.choice(owners)
        dearest = max((row for row in rows if row[2] == owner), key=lambda row: row[4])
        text = f"Which is the most expensive house of {owner}? Reply HOUSE and its id, as in HOUSE H1203."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                seed=index,
                messages=({"role": "user", "content": text},),
                fields={"rows": rows, "owner": owner, "house": dearest[0]},
            )
        )
    return tasks


def train_tasks():
    return _tasks("train", OWNERS[:6], 48)


def validation_tasks():
    return _tasks("validation", OWNERS[6:9], 12)


def held_out_tasks():
    return _tasks("held_out", OWNERS[9:], 12)
