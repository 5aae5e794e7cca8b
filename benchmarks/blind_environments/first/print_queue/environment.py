"""A print server: jobs are queued and cancelled."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

DOCUMENTS = ["invoice", "menu", "poster", "contract", "letter", "report", "ticket", "map", "form", "flyer"]


class PrintQueue(Environment):
    def reset(self, task):
        self.jobs = {index + 1: name for index, name in enumerate(task.fields["queue"])}

    @tool
    def jobs_waiting(self) -> list:
        """The jobs that wait, by number."""
        return [{"job": number, "document": name} for number, name in sorted(self.jobs.items())]

    @tool
    def submit(self, document: str) -> str:
        """Queue a document. Tells the number of its job, which no other job has."""
        number = len(self.jobs) + 1
        self.jobs[number] = document
        return f"job {number}"

    @tool
    def cancel(self, job: int) -> str:
        """Take a job out of the queue.

        Args:
            job: its number
        """
        if job not in self.jobs:
            return "no such job"
        del self.jobs[job]
        return "cancelled"

    def final_state(self):
        return {"waiting": sorted(self.jobs.values())}


def make_tasks(split, num):
    rng = random.Random(f"printer {split}")
    tasks = []
    for index in range(num):
        *queue, new = rng.sample(DOCUMENTS, rng.randint(4, 6))
        old = rng.choice(queue[:-1])
        prompt = f"Cancel the job of the {old}. After that print the {new}. Then say done."
        waiting = sorted({*queue, new} - {old})
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"queue": queue, "state": {"waiting": waiting}},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])


scorer = state_difference("state")
