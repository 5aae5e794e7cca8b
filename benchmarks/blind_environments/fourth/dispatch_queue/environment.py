"""Repair jobs wait in a queue; each is given to the worker who can do it."""

import random
from collections import deque

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You dispatch repair jobs. Give every job of the queue to the worker who can do it; `crew` says what each can do.
`take` gives the job at the head of the queue away for good. Say done when the queue is empty."""

SKILLS = ("boiler", "roof", "pipes", "lift", "wiring")
WORKERS = ("Ada", "Bert", "Cleo", "Dirk", "Edda", "Falk", "Gina")


class Dispatch(Environment):
    def reset(self, task):
        self.workers = task.fields["workers"]
        self.queue = deque(dict(job) for job in task.fields["jobs"])
        self.given = {}

    @tool
    def crew(self) -> dict[str, str]:
        """What each worker can do."""
        return self.workers

    @tool
    def peek(self) -> dict[str, str] | str:
        """Show the job at the head of the queue; it stays there."""
        if not self.queue:
            return "the queue is empty"
        job = self.queue.popleft()
        self.queue.append(job)
        return job

    @tool
    def take(self, worker: str) -> str:
        """Take the job at the head off the queue and give it to a worker."""
        if not self.queue:
            return "the queue is empty"
        if worker not in self.workers:
            return "no such worker"
        self.given[self.queue.popleft()["id"]] = worker
        return f"given, {len(self.queue)} left"

    def final_state(self):
        return {"given": dict(sorted(self.given.items())), "waiting": len(self.queue)}


def _task(split, index, rng):
    skills = rng.sample(SKILLS, 4)
    workers = dict(zip(rng.sample(WORKERS, 4), skills, strict=True))
    kinds = rng.sample(skills, rng.randint(1, 4))
    numbers = rng.sample(range(100, 1000), len(kinds))
    jobs = [{"id": f"J{number}", "needs": kind} for number, kind in zip(numbers, kinds, strict=True)]
    who = {skill: worker for worker, skill in workers.items()}
    return Task(
        id=f"{split}-{index}",
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Morning shift {index + 1}: please empty the queue."},
        ),
        fields={
            "workers": workers,
            "jobs": jobs,
            "given": {job["id"]: who[job["needs"]] for job in jobs},
        },
    )


def train_tasks():
    rng = random.Random("shift plan a")
    return [_task("train", index, rng) for index in range(32)]


def validation_tasks():
    rng = random.Random("shift plan b")
    return [_task("validation", index, rng) for index in range(32, 40)]


def held_out_tasks():
    rng = random.Random("shift plan c")
    return [_task("held-out", index, rng) for index in range(40, 56)]


def reward(trajectory):
    """Share of the jobs that are with the right worker."""
    expected = trajectory.task.fields["given"]
    given = (trajectory.final_state or {}).get("given", {})
    return sum(given.get(job) == worker for job, worker in expected.items()) / len(expected)


def scorer(trajectory):
    state = trajectory.final_state
    return 1.0 if state and state["waiting"] == 0 and state["given"] == trajectory.task.fields["given"] else 0.0
