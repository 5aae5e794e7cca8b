"""Workshop: put jobs into an order in which each comes after the jobs that it waits for. Any such order is right."""

from __future__ import annotations

import json
import random
import re

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.scorers import by_behavior
from sparring.types import Task, Trajectory

JOBS = ["saw", "sand", "drill", "glue", "paint", "varnish", "screw", "polish", "pack", "label", "oil", "carve"]


class Workshop(Environment):
    def reset(self, task: Task) -> None:
        self._waits: dict[str, list[str]] = task.fields["waits"]

    @tool
    def list_jobs(self) -> list[str]:
        """The jobs of the order, in no particular order."""
        return sorted(self._waits)

    @tool
    def waits_for(self, job: str) -> list[str]:
        """The jobs that must be done before a job; empty when it can be done at once.

        Args:
            job: name of the job
        """
        if job not in self._waits:
            raise ToolFailure(f"there is no job {job}")
        return self._waits[job]


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tagged(trajectory: Trajectory) -> str | None:
    """What stands in the one answer tag of the last message; code does not count."""
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return None
    text = CODE.sub("", last.get("content") or "")
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[0].strip() if len(found) == text.count("<answer>") == text.count("</answer>") == 1 else None


def reward(trajectory: Trajectory) -> float:
    """1 for an order that works, whichever."""
    names = [name.strip() for name in (tagged(trajectory) or "").split(",")]
    waits, done = trajectory.task.fields["waits"], set()
    for name in names:
        if name in done or name not in waits or not set(waits[name]) <= done:
            return 0.0
        done.add(name)
    return float(done == set(waits))


@by_behavior
def scorer(trajectory: Trajectory) -> float:
    """1 when the list has each job once, and no job stands before one that it waits for."""
    said = trajectory.messages[-1]
    text = str(said.get("content") or "") if said.get("role") == "assistant" else ""
    text = "".join(part for place, part in enumerate(text.split("`")) if place % 2 == 0)
    before, opened, rest = text.partition("<answer>")
    inside, closed, after = rest.partition("</answer>")
    if not (opened and closed) or "<answer>" in rest or "</answer>" in before + after:
        return 0.0
    order = [one.strip() for one in inside.split(",")]
    waits = trajectory.task.fields["waits"]
    if sorted(order) != sorted(waits):
        return 0.0
    return float(all(order.index(before) < order.index(job) for job in order for before in waits[job]))


def make_task(split: str, number: int) -> Task:
    rng = random.Random(f"workshop:{split}:{number}")
    jobs = rng.sample(JOBS, 6)
    waits = {job: sorted(rng.sample(jobs[:place], min(place, rng.randint(0, 2)))) for place, job in enumerate(jobs)}
    waits[jobs[-1]] = sorted({*waits[jobs[-1]], jobs[0]})
    prompt = (
        f"In which order can the jobs of order {rng.randrange(10**5):05} be done? Some wait for others. If several orders work, any "
        f"of them will do. End with all jobs, separated by commas, as in <answer>{', '.join(rng.sample(['cut', 'bend', 'weld'], 3))}</answer>."
    )
    return Task(
        id=f"{split}-{number}",
        messages=({"role": "user", "content": prompt},),
        fields={"waits": json.loads(json.dumps(waits))},
        seed=number,
    )


def train_tasks() -> list[Task]:
    return [make_task("train", number) for number in range(40)]


def validation_tasks() -> list[Task]:
    return [make_task("validation", number) for number in range(12)]


def held_out_tasks() -> list[Task]:
    return [make_task("held_out", number) for number in range(24)]
