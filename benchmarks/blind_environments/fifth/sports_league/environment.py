"""Who leads the league? Add up the results of a round robin."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import Any

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

CLUBS = [
    "Albion",
    "Borough",
    "City",
    "Dynamo",
    "Eagles",
    "Falcons",
    "Gulls",
    "Harriers",
    "Iron",
    "Jets",
    "Kings",
    "Lions",
]
INTRO = """You are the statistician of a football league.
A win is worth 3 points, a draw 1. Clubs with equal points are ranked by goal difference, and then by goals scored.
Tools: results(club) lists a club's matches. clubs() lists the clubs.
End with: LEADER <club>"""


def standings(matches: list[dict[str, Any]]) -> list[str]:
    points: dict[str, int] = defaultdict(int)
    scored: dict[str, int] = defaultdict(int)
    against: dict[str, int] = defaultdict(int)
    for match in matches:
        home, away, (a, b) = match["home"], match["away"], match["goals"]
        scored[home] += a
        scored[away] += b
        against[home] += b
        against[away] += a
        points[home] += 3 if a > b else 1 if a == b else 0
        points[away] += 3 if b > a else 1 if a == b else 0
    return sorted(scored, key=lambda club: (points[club], scored[club], scored[club] - against[club]), reverse=True)


class League(Environment):
    def reset(self, task: Task) -> None:
        self.matches = task.fields["matches"]

    @tool
    def clubs(self) -> list[str]:
        """All clubs of the league."""
        return sorted({match["home"] for match in self.matches} | {match["away"] for match in self.matches})

    @tool
    def results(self, club: str) -> list[str]:
        """Matches of a club, one a line.

        Args:
            club: its name, as `clubs` lists it
        """
        mine = [match for match in self.matches if club in (match["home"], match["away"])]
        return ["{home} - {away} {0}:{1}".format(*match["goals"], **match) for match in mine] or ["no such club"]


def _leader(trajectory: Trajectory) -> str | None:
    last = trajectory.messages[-1]
    lines = str(last.get("content") or "").strip().splitlines()
    if last["role"] != "assistant" or not lines or not lines[-1].startswith("LEADER "):
        return None
    return lines[-1].removeprefix("LEADER ").strip()


def reward(trajectory: Trajectory) -> float:
    return 1.0 if _leader(trajectory) == trajectory.task.fields["leader"] else 0.0


def scorer(trajectory: Trajectory) -> float:
    """Over the matches of the task, anew."""
    return float(_leader(trajectory) == standings(trajectory.task.fields["matches"])[0])


def league(split: str, clubs: list[str], num: int) -> list[Task]:
    rng = random.Random(f"league-{split}")
    tasks = []
    for number in range(num):
        matches = [
            {"home": home, "away": away, "goals": [rng.randint(0, 3), rng.randint(0, 3)]}
            for home, away in itertools.combinations(rng.sample(clubs, 4), 2)
        ]
        tasks.append(
            Task(
                id=f"{split}{number}",
                messages=(
                    {"role": "system", "content": INTRO},
                    {"role": "user", "content": f"Season {1950 + number}: who leads?"},
                ),
                fields={"matches": matches, "leader": standings(matches)[0]},
            )
        )
    return tasks


def train_tasks() -> list[Task]:
    return league("train", CLUBS[:6], 48)


def validation_tasks() -> list[Task]:
    return league("validation", CLUBS[4:8], 12)


def held_out_tasks() -> list[Task]:
    return league("held_out", CLUBS[8:], 12)
