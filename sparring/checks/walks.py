"""The fewest calls after which an episode is paid, where each call is one of a few: all of them are tried, breadth first."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Sequence
from dataclasses import replace

from sparring.agents.scripted import as_trajectory
from sparring.checks.explore import Call, explored
from sparring.checks.graded import is_paid
from sparring.checks.subject import Subject
from sparring.checks.timing import Deadline
from sparring.environments import Environment, answer, execute
from sparring.environments.base import final_state, reset
from sparring.types import Json, Task

MOST_CALLS = 24
"""In a walk."""
MOST_MOVES = 12
"""Different calls that may come next."""
SECONDS = 0.6
"""Of processor time, for one task."""


async def shortest_walk(subject: Subject, task: Task) -> tuple[list[Call], bool] | None:
    """The fewest calls after which saying "Done." is paid, and whether they end the episode. None where none is found, where
    there are too many different calls, and where what an environment keeps cannot be compared."""
    moves = await moves_of(subject, task)
    if not moves:
        return None
    seen, ends = set[bytes](), Deadline(SECONDS)
    frontier: list[tuple[Call, ...]] = [()]
    for _ in range(MOST_CALLS):
        found: list[tuple[Call, ...]] = []
        for walk, move in itertools.product(frontier, moves):
            if ends.is_over:
                return None
            key, is_over, state = await _after(subject, task, [*walk, move])
            if key is None:
                return None
            if key in seen:
                continue
            seen.add(key)
            if state is not None and await _pays(subject, task, state):
                return [*walk, move], is_over
            if not is_over:
                found.append((*walk, move))
        frontier = found
    return None


async def moves_of(subject: Subject, task: Task) -> list[Call]:
    """All calls that differ, where the arguments of every tool are to be chosen out of a few; none where they are not."""
    moves: list[Call] = []
    for name, tool in subject.tools.items():
        properties = tool.schema["function"].get("parameters", {}).get("properties", {})
        pools: list[Sequence[Json]] = [
            [True, False] if properties[one].get("type") == "boolean" else properties[one].get("enum", ())
            for one in properties if one in tool.required
        ]  # fmt: skip
        if all(pools):
            names = [one for one in properties if one in tool.required]
            moves += [Call(name, dict(zip(names, chosen, strict=True))) for chosen in itertools.product(*pools)]
        elif not (await explored(subject, task)).legal(name):
            return []
        else:
            moves += [one.call for one in (await explored(subject, task)).legal(name)]
        if len(moves) > MOST_MOVES:
            return []
    return moves


async def _after(subject: Subject, task: Task, calls: Sequence[Call]) -> tuple[bytes | None, bool, Json]:
    """What an environment keeps after these calls, whether the episode is over, and the final state."""
    own = copy.deepcopy(task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        for one in calls:
            await execute(environment, one.tool, dict(one.arguments))
        is_over = bool(environment.is_done)
        return _kept(environment), is_over, await final_state(environment, own)


def _kept(environment: Environment) -> bytes | None:
    """All that an environment keeps, to compare; None where that cannot be written."""
    try:
        return pickle.dumps({name: value for name, value in sorted(vars(environment).items()) if not callable(value)})
    except Exception:  # noqa: BLE001 - whatever the user's own objects raise
        return None


async def _pays(subject: Subject, task: Task, state: Json) -> bool:
    return await is_paid(subject, replace(as_trajectory(task, answer("Done.")), final_state=copy.deepcopy(state)))
