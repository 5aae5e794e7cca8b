"""Parcel lockers of a delivery firm: parcels are moved to other lockers and handed out."""

from __future__ import annotations

import random

from sparring.environments import StatefulEnvironment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import state_difference
from sparring.types import Task, Trajectory

PLACES = ["Station", "Harbour", "Market", "Stadium", "Campus", "Airport"]
FIRST_NUMBER = {"train": 2000, "validation": 5000, "held_out": 8000}


class Lockers(StatefulEnvironment):
    def reset(self, task: Task) -> None:
        super().reset(task)
        self._slots: dict[str, int] = task.fields["slots"]
        self.state.database.execute("CREATE TABLE parcels (code TEXT PRIMARY KEY, locker TEXT, status TEXT)")
        for code, locker in task.fields["parcels"].items():
            self.state.database.execute("INSERT INTO parcels VALUES (?, ?, 'waiting')", (code, locker))

    @tool
    def find_parcel(self, parcel: str) -> dict[str, str | None]:
        """Locker and status (waiting or handed out) of a parcel.

        Args:
            parcel: code of the parcel
        """
        row = self.state.database.execute("SELECT locker, status FROM parcels WHERE code = ?", (parcel,)).fetchone()
        if row is None:
            raise ToolFailure(f"there is no parcel {parcel}")
        return {"locker": row[0], "status": row[1]}

    @tool
    def move_parcel(self, parcel: str, locker: str) -> str:
        """Move a parcel to another locker. If there is no room, the parcel stays where it is, and the call says so.

        Args:
            parcel: code of the parcel
            locker: name of the locker that it shall go to
        """
        found = self.find_parcel(parcel)
        if locker not in self._slots:
            raise ToolFailure(f"there is no locker {locker}; there are {', '.join(sorted(self._slots))}")
        if found["locker"] is None:
            raise ToolFailure(f"parcel {parcel} is in no locker")
        database = self.state.database
        database.execute("UPDATE parcels SET locker = NULL WHERE code = ?", (parcel,))
        (taken,) = database.execute("SELECT COUNT(*) FROM parcels WHERE locker = ?", (locker,)).fetchone()
        if taken >= self._slots[locker]:
            raise ToolFailure(f"locker {locker} has no room")
        database.execute("UPDATE parcels SET locker = ? WHERE code = ?", (locker, parcel))
        return f"parcel {parcel} is in {locker}"

    @tool
    def hand_out(self, parcel: str) -> str:
        """Hand a parcel out to its owner, which frees its slot.

        Args:
            parcel: code of the parcel
        """
        if self.find_parcel(parcel)["locker"] is None:
            raise ToolFailure(f"parcel {parcel} is in no locker")
        self.state.database.execute("UPDATE parcels SET locker = NULL, status = 'handed out' WHERE code = ?", (parcel,))
        return f"parcel {parcel} is handed out"

    def final_state(self) -> dict[str, list[str | None]]:
        rows = self.state.database.execute("SELECT code, locker, status FROM parcels ORDER BY code")
        return {code: [locker, status] for code, locker, status in rows}


def reward(trajectory: Trajectory) -> float:
    """1 when each parcel is where it should be."""
    return 1.0 if dict(trajectory.final_state or {}) == trajectory.task.fields["state"] else 0.0


scorer = state_difference("state")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"lockers {split} {number}")
    home, first, second = rng.sample(PLACES, 3)
    codes = rng.sample(range(10000, 99999), 9)
    parcels = {f"P{code}": place for code, place in zip(codes, [home] * 3 + [first] * 4 + [second] * 2, strict=True)}
    slots = {place: rng.randint(6, 9) for place in PLACES}
    mine, other = [code for code, place in parcels.items() if place == home][:2]
    state = {code: [place, "waiting"] for code, place in sorted(parcels.items())}
    kind = number % 4
    if kind == 0:
        wish = (
            f"hand parcel {mine} out to its owner, who is standing in front of the locker, and move {other} to {second}"
        )
        state[mine], state[other] = [None, "handed out"], [second, "waiting"]
    else:
        wish = f"move parcel {mine} to {first}. If {first} has no room, move it to {second} instead"
        if kind == 2:
            slots[first] = 4
        state[mine] = [second if kind == 2 else first, "waiting"]
    text = f"Job {FIRST_NUMBER[split] + number}: please {wish}. Leave all other parcels alone."
    system = "You run the parcel lockers of a town with the tools. Do the job, then confirm it in a sentence."
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "system", "content": system}, {"role": "user", "content": text}),
        fields={"parcels": parcels, "slots": slots, "wanted": [mine, first, second], "state": state},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
