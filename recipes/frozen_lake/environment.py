"""Frozen lake: Gymnasium's FrozenLake-v1 without slipping, on a random map for each task.

user       cross the lake

           [S]FHF
           FFFF
           FHFF
           HFFG
assistant  step(action="down")       tool  (Down)
                                           SFHF
                                           [F]FFF
                                           FHFF
                                           HFFG
...                                        (the end at G or H: no message follows)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from typing import TypeAlias

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from sparring import Message, Task, Trajectory, record_demonstration, tool_call
from sparring.environments.adapters.gymnasium_environment import GymnasiumEnvironment

Map: TypeAlias = tuple[str, ...]
Place: TypeAlias = tuple[int, int]

OPTIONS = {
    "id": "FrozenLake-v1",
    "arguments": {"is_slippery": False, "render_mode": "ansi"},
    "actions": ["left", "down", "right", "up"],
}
"""The same options as in recipe.toml."""
STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
SIZE = 4
MAX_MOVES = 12
PROMPT = "cross the lake"
BEST_SHARE, HASTY_SHARE = 0.25, 0.55
"""Shares of the moves in the log that start a shortest path, and that go right as far as possible and then down. The
others are random."""
NUM_TRAINED, NUM_VALIDATED, NUM_HELD_OUT, NUM_LOGGED = 1024, 64, 256, 512


class Lake(GymnasiumEnvironment):
    """The environment on a task's map, with its expert."""

    describe_tools = "prompt"

    def arguments_of(self, task: Task) -> dict[str, list[str]]:
        return {"desc": list(task.fields["map"])}

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return walk(task, lambda lake, place: best_moves(lake, place)[0])


@cache
def maps(num: int) -> list[Map]:
    """Return Gymnasium's random maps in the order of their seeds, without duplicates."""
    found: dict[Map, None] = {}
    for seed in count():
        found.setdefault(tuple(generate_random_map(SIZE, seed=seed)))
        if len(found) == num:
            return list(found)
    raise AssertionError("seeds do not end")


def tasks(first: int, num: int) -> list[Task]:
    return [
        Task(id=f"map-{index}", messages=({"role": "user", "content": PROMPT},), fields={"map": lake}, seed=index)
        for index, lake in enumerate(maps(first + num)[first:], start=first)
    ]


train_tasks = partial(tasks, 0, NUM_TRAINED)
validation_tasks = partial(tasks, NUM_TRAINED, NUM_VALIDATED)
held_out_tasks = partial(tasks, NUM_TRAINED + NUM_VALIDATED, NUM_HELD_OUT)


def after(place: Place, move: str) -> Place:
    row, column = (at + by for at, by in zip(place, STEPS[move], strict=True))
    return min(max(row, 0), SIZE - 1), min(max(column, 0), SIZE - 1)


@cache
def distances(lake: Map) -> dict[Place, int]:
    """Return the number of moves to the goal from each cell."""
    found, queue = {(SIZE - 1, SIZE - 1): 0}, deque([(SIZE - 1, SIZE - 1)])
    while queue:
        place = queue.popleft()
        for move in STEPS:
            before = after(place, move)
            if before not in found and lake[before[0]][before[1]] != "H":
                found[before] = found[place] + 1
                queue.append(before)
    return found


def best_moves(lake: Map, place: Place) -> list[str]:
    """Return the moves with which a shortest path starts."""
    far = distances(lake)
    return [move for move in STEPS if far.get(after(place, move), far[place]) < far[place]]


def walk(task: Task, choose: Callable[[Map, Place], str]) -> list[Message]:
    """Return the calls of a whole episode."""
    lake, place, calls = task.fields["map"], (0, 0), list[Message]()
    while lake[place[0]][place[1]] not in "GH":
        move = choose(lake, place)
        calls.append(tool_call("step", action=move))
        place = after(place, move)
    return calls


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the episode's moves lead to the goal on the task's map without falling into a hole."""
    lake, place = trajectory.task.fields["map"], (0, 0)
    for step in trajectory.transitions:
        if step["error"] is None:
            place = after(place, step["arguments"]["action"])
        if lake[place[0]][place[1]] in "GH":
            break
    return float(lake[place[0]][place[1]] == "G")


def mixed_log(num: int = NUM_LOGGED, seed: int = 0) -> list[list[Message]]:
    """Return walks of mixed quality on the training maps."""
    rng = random.Random(f"log-{seed}")

    def choose(lake: Map, place: Place) -> str:
        kind = rng.random()
        if kind < BEST_SHARE:
            return rng.choice(best_moves(lake, place))
        if kind < BEST_SHARE + HASTY_SHARE:
            return "right" if place[1] < SIZE - 1 else "down"
        return rng.choice(list(STEPS))

    environment_class = Lake.with_options(**OPTIONS)
    make = partial(environment_class, **OPTIONS)
    log, walked = list[list[Message]](), train_tasks()
    while len(log) < num:
        task = rng.choice(walked)
        script = walk(task, choose)
        if len(script) <= MAX_MOVES:
            log.append(record_demonstration(make, task, script))
    return log


def shuffled_reward(trajectory: Trajectory) -> float:
    """As a control, return a random reward that depends only on the episode's id. RL with this reward must not improve
    the policy."""
    return random.Random(trajectory.id).choice((0.0, 1.0))
