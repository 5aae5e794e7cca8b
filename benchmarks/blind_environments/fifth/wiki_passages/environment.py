"""Questions over a small wiki with a search engine of its own."""

from __future__ import annotations

import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task, Trajectory

FOUNDERS = [
    "Aldo Venn",
    "Berta Quist",
    "Cyrus Lamb",
    "Delia Frost",
    "Edgar Pohl",
    "Freya Moss",
    "Gustav Rey",
    "Hilda Crane",
]
KINDS = ["bakery", "foundry", "brewery", "printing house", "shipyard", "tannery"]
PLACES = [
    "Aston",
    "Belford",
    "Corley",
    "Denby",
    "Esk",
    "Farrow",
    "Glenn",
    "Hythe",
    "Inver",
    "Jedburgh",
    "Kirk",
    "Lorne",
]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower())) - {"the", "of", "a", "in", "was", "by", "who", "is", "it"}


def wiki(seed: str, places: list[str]) -> dict[str, str]:
    rng = random.Random(seed)
    pages = {}
    for place in places:
        kind, other = rng.sample(KINDS, 2)
        founder, year = rng.choice(FOUNDERS), rng.randint(1780, 1930)
        pages[f"{place} {kind}"] = (
            f"The {place} {kind} was founded by {founder} in {year}. It is older than the {other}."
        )
        pages[place] = f"{place} is a small town. Its market is held in week {rng.randint(1, 50)}."
    return pages


class Wiki(Environment):
    def reset(self, task: Task) -> None:
        self.pages = task.fields["pages"]

    @tool
    def search(self, query: str, num: int = 3) -> list[str]:
        """Titles of the pages that fit a query best, the best first.

        Args:
            query: words to look for
            num: how many titles
        """
        asked = words(query)
        scores = {title: len(asked & words(title + " " + text)) for title, text in self.pages.items()}
        ranked = sorted(self.pages, key=lambda title: scores[title])
        return ranked[: max(1, num)]

    @tool
    def page(self, title: str) -> str:
        """Text of a page.

        Args:
            title: as `search` gives it
        """
        return self.pages.get(title, "no such page")


def _answer(trajectory: Trajectory) -> str:
    last = trajectory.messages[-1]
    found = re.search(r"\[\[(.+?)\]\]", str(last.get("content") or "")) if last["role"] == "assistant" else None
    return found[1] if found else ""


def reward(trajectory: Trajectory) -> float:
    return 1.0 if _answer(trajectory) == trajectory.task.fields["founder"] else 0.0


def scorer(trajectory: Trajectory) -> float:
    fields = trajectory.task.fields
    return float(f"founded by {_answer(trajectory)} in" in fields["pages"][fields["about"]])


def questions(split: str, places: list[str], num: int) -> list[Task]:
    rng = random.Random(split)
    tasks = []
    for index in range(num):
        pages = wiki(f"{split} {index}", places)
        about = rng.choice([title for title in pages if " " in title])
        founder = pages[about].split("founded by ")[1].split(" in ")[0]
        text = f"Who founded the {about}? Search the wiki, and write the name in double brackets, like [[Jo Doe]]."
        fields = {"pages": pages, "about": about, "founder": founder}
        tasks.append(Task(id=f"{split}-{index}", messages=({"role": "user", "content": text},), fields=fields))
    return tasks


def train_tasks() -> list[Task]:
    return questions("train", PLACES[:6], 48)


def validation_tasks() -> list[Task]:
    return questions("validation", PLACES[6:9], 12)


def held_out_tasks() -> list[Task]:
    return questions("held_out", PLACES[9:], 12)
