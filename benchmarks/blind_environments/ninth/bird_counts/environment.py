"""Winter bird counts: which species were seen most at a site?"""

from __future__ import annotations

import csv
import io
import random
import re
from typing import Annotated

from sparring.environments import Bounded, Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import exact_match
from sparring.types import Task, Trajectory

SPECIES = ["mallard", "coot", "tufted duck", "grey heron", "robin", "wren", "goldcrest", "siskin", "jay", "dunnock"]
SITES = ["Mill Pond", "East Weir", "Old Quarry", "Reed Bay", "Cemetery", "Upper Wood", "Sluice", "Gravel Pit"]
FIRST_NUMBER = {"train": 11, "validation": 211, "held_out": 411}


class Counts(Environment):
    def reset(self, task: Task) -> None:
        self._rows = list(csv.DictReader(io.StringIO(task.fields["table"])))

    @tool
    def sites(self) -> list[str]:
        """Sites at which birds were counted."""
        return sorted({row["site"] for row in self._rows})

    @tool
    def most_seen(self, site: str, limit: Annotated[int, Bounded(ge=1, le=4)] = 3) -> list[dict[str, str]]:
        """Species with the highest counts at a site, the highest first.

        Args:
            site: name of the site
            limit: how many species to show
        """
        rows = [row for row in self._rows if row["site"] == site]
        if not rows:
            raise ToolFailure(f"nothing was counted at {site}")
        rows.sort(key=lambda row: row["count"], reverse=True)
        return [{"species": row["species"], "count": row["count"]} for row in rows[:limit]]


CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


def final_answer(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message. Code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", str(last.get("content") or ""))
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for the right species in the right order."""
    return float(final_answer(trajectory) == trajectory.task.fields["answer"])


scorer = exact_match("answer", "answer")


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"birds {split} {number}")
    sites = rng.sample(SITES, 3)
    low, high = (101, 480) if number % 5 == 0 else (3, 240)
    counts = {site: dict(zip(SPECIES, rng.sample(range(low, high), len(SPECIES)), strict=True)) for site in sites}
    lines = [f"{site},{species},{count}" for site in sites for species, count in counts[site].items()]
    rng.shuffle(lines)
    site = rng.choice(sites)
    best = sorted(SPECIES, key=counts[site].__getitem__, reverse=True)[:3]
    text = (
        f"Report {FIRST_NUMBER[split] + number}: which three species were counted most at {site} this winter? Name them from the "
        "highest count down, separated by a comma and a space, as in <answer>teal, rook, crane</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": text},),
        fields={"table": "\n".join(["site,species,count", *lines]), "site": site, "answer": ", ".join(best)},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(48)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
