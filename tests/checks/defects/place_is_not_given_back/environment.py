"""A sports club enrols members in courses.

A student who leaves a course does not free the place.
"""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import state_difference
from sparring.types import Task

COURSES = ["judo", "yoga", "rowing", "chess", "fencing"]
MEMBERS = ["Ada", "Bo", "Cleo", "Dan", "Eve"]


class Club(Environment):
    def reset(self, task):
        self.places = dict(task.fields["places"])
        self.enrolled = {course: [] for course in self.places}

    @tool
    def courses(self) -> dict:
        """Courses with the number of free places."""
        return {course: {"free": free} for course, free in self.places.items()}

    @tool
    def members_of(self, course: str) -> list:
        """Who is enrolled in a course."""
        return self.enrolled[course]

    @tool
    def enrol(self, course: str, member: str) -> str:
        """Enrol a member in a course."""
        if course not in self.places or member in self.enrolled[course] or not self.places[course]:
            return "not possible"
        self.enrolled[course].append(member)
        self.places[course] -= 1
        return f"{member} is enrolled"

    @tool
    def leave(self, course: str, member: str) -> str:
        """Take a member out of a course."""
        if member not in self.enrolled.get(course, ()):
            return "not enrolled"
        self.enrolled[course].remove(member)
        return f"{member} has left"

    def final_state(self):
        return {"free": self.places, "enrolled": self.enrolled}


def make_tasks(split, num):
    rng = random.Random(f"{split} place is not given back")
    tasks = []
    for index in range(num):
        fields = {"places": {course: rng.randint(2, 9) for course in rng.sample(COURSES, 3)}}
        course, member = rng.choice(sorted(fields["places"])), rng.choice(MEMBERS)
        prompt = f"Enrol {member} in {course}, then say done."
        state = {
            "free": {one: free - (one == course) for one, free in fields["places"].items()},
            "enrolled": {one: [member] if one == course else [] for one in fields["places"]},
        }
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={**fields, "state": state},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 20)
validation_tasks = partial(make_tasks, "validation", 6)
held_out_tasks = partial(make_tasks, "held_out", 6)
scorer = state_difference("state")


def reward(trajectory):
    return float(trajectory.final_state == trajectory.task.fields["state"])
