"""Find songs for a playlist in a small collection kept in SQLite."""

import json
import random
import re

from sparring.environments import StatefulEnvironment, tool
from sparring.scorers import set_match
from sparring.types import Task

ADJECTIVES = ["Blue", "Slow", "Paper", "Silent", "Golden", "Broken", "Winter", "Electric", "Hollow", "Little"]
NOUNS = ["River", "Motel", "Garden", "Signal", "Parade", "Harbor", "Machine", "Sparrow", "Avenue", "Mirror"]
GENRES = ["jazz", "folk", "techno", "soul"]


class Playlists(StatefulEnvironment):
    def reset(self, task):
        super().reset(task)
        db = self.state.database
        db.execute("CREATE TABLE song (title TEXT, genre TEXT, year INT, seconds INT)")
        db.executemany("INSERT INTO song VALUES (?, ?, ?, ?)", task.fields["songs"])

    @tool
    def all_titles(self) -> list[str]:
        """Titles of all songs."""
        return [title for (title,) in self.state.database.execute("SELECT title FROM song ORDER BY title")]

    @tool
    def by_genre(self, genre: str) -> list[str]:
        """Titles of the songs of a genre.

        Args:
            genre: jazz, folk, techno or soul
        """
        return [
            t for (t,) in self.state.database.execute("SELECT title FROM song WHERE genre = ? ORDER BY title", [genre])
        ]

    @tool
    def since(self, year: int) -> list[str]:
        """Titles of the songs of a year and of all later ones.

        Args:
            year: four digits
        """
        return [
            t for (t,) in self.state.database.execute("SELECT title FROM song WHERE year >= ? ORDER BY title", [year])
        ]


def reward(trajectory):
    """Share of the wanted songs that the playlist has."""
    last = trajectory.messages[-1]
    match = re.search(r"<final_output>(.*?)</final_output>", last.get("content") or "", re.DOTALL)
    if last["role"] != "assistant" or match is None:
        return 0.0
    try:
        given = json.loads(match[1])
    except ValueError:
        return 0.0
    wanted = set(trajectory.task.fields["answer"])
    if not isinstance(given, list):
        return 0.0
    given = {title for title in given if isinstance(title, str)}
    return len(given & wanted) / len(wanted)


scorer = set_match()


def _task(name, rng):
    titles = rng.sample([f"{one} {two}" for one in ADJECTIVES for two in NOUNS], 16)
    songs = [[title, rng.choice(GENRES), rng.randint(1965, 2020), rng.randint(120, 400)] for title in titles]
    genre, year = songs[0][1], songs[0][2] - rng.randint(0, 5)
    answer = sorted(title for title, kind, when, _ in songs if kind == genre and when >= year)
    text = (
        f"For listener {rng.randint(1000, 9999)}, make a playlist of all {genre} songs from {year} or later. Answer with a JSON list of titles: "
        '<final_output>["One Song", "Another Song"]</final_output>'
    )
    return Task(
        id=name,
        seed=year,
        messages=({"role": "user", "content": text},),
        fields={"songs": songs, "genre": genre, "year": year, "answer": answer},
    )


def train_tasks():
    rng = random.Random(404)
    return [_task(f"mix-{n}", rng) for n in range(30)]


def held_out_tasks():
    rng = random.Random(405)
    return [_task(f"held-mix-{n}", rng) for n in range(12)]
