"""A jukebox: play a list of songs, in order, with a coin for each. Costs are part of the reward."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Reward, Task, Trajectory

SONGS = ["Alone", "Belong", "Cathedral", "Diesel", "Everglow", "Fable", "Gasoline", "Hollow"]


class Jukebox(Environment):
    """Songs have codes, which differ from box to box."""

    def reset(self, task: Task) -> None:
        self.codes = dict(task.fields["codes"])
        self.coins = task.fields["coins"]
        self.played: list[str] = []

    @tool
    def card(self, letter: str) -> dict[str, str]:
        """The songs that begin with a letter, and their codes."""
        return {song: code for song, code in self.codes.items() if letter and song.startswith(letter.strip().upper())}

    @tool
    def press(self, code: str) -> str:
        """Put a coin in and press a code."""
        if self.coins == 0:
            raise ToolFailure("no coins are left")
        song = next((s for s, c in self.codes.items() if c == code.strip().upper()), None)
        self.coins -= 1
        if song is None:
            raise ToolFailure("the coin is gone, and nothing plays: there is no such code")
        self.played.append(song)
        return f"plays {song}; {self.coins} coins left"

    def final_state(self) -> dict:
        return {"played": self.played, "coins": self.coins}


def reward(trajectory: Trajectory) -> Reward:
    """1 for the songs in order; a coin that plays a song off the list costs 0.2."""
    state = trajectory.final_state or {"played": [], "coins": 0}
    wanted = trajectory.task.fields["songs"]
    others = sum(song not in wanted for song in state["played"])
    listed = [song for song in state["played"] if song in wanted]
    order, waste = float(listed == wanted), -0.2 * others
    return Reward(total=order + waste, components={"order": order, "waste": waste})


def scorer(trajectory: Trajectory) -> float:
    state = trajectory.final_state or {}
    return float(state.get("played") == trajectory.task.fields["songs"])


def evenings(split: str, num: int) -> list[Task]:
    rng = random.Random(f"jukebox/{split}")
    made = []
    for n in range(num):
        codes = dict(zip(SONGS, (f"{a}{b}" for a, b in zip(rng.sample("ABCDEFGHJK", 8), rng.sample(range(10, 99), 8)))))
        songs = rng.sample(SONGS, 2)
        text = f"Play {songs[0]} and then {songs[1]}. You have 3 coins. Press exact codes; say 'enjoy' at the end."
        made.append(
            Task(
                id=f"evening-{split}-{n}",
                messages=({"role": "user", "content": text},),
                fields={"codes": codes, "songs": songs, "coins": 3},
            )
        )
    return made


def train_tasks() -> list[Task]:
    return evenings("train", 50)


def held_out_tasks() -> list[Task]:
    return evenings("held_out", 20)
