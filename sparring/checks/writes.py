"""Which tools change something, found out by calling them and looking at what the other tools answer before and after."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from sparring.checks.explore import Call, explored, is_refusal
from sparring.checks.subject import Subject
from sparring.environments import ToolResult, execute
from sparring.environments.base import final_state, reset
from sparring.types import Json, Task

NUM_TASKS = 2
"""In which it is found out."""


async def writing_tools(subject: Subject) -> frozenset[str]:
    """The tools of which one call changes what another tool answers or the final state, ends the episode, or is refused when
    it is made again. Found out once."""
    if "writing tools" not in subject.shared:
        found: set[str] = set()
        for task in subject.sample[:NUM_TASKS]:
            for name in subject.tools:
                if name not in found and await _writes(subject, task, name):
                    found.add(name)
        subject.shared["writing tools"] = frozenset(found)
    return subject.shared["writing tools"]


async def _writes(subject: Subject, task: Task, name: str) -> bool:
    legal = (await explored(subject, task)).legal(name)
    if not legal:
        return False
    call, before = legal[0].call, legal[0].before
    others = [one for one in await _others(subject, task, name) if one not in before]
    steady = await _answers(subject, task, [*before, *others], others, None)
    changed = await _answers(subject, task, [*before, *others], others, call)
    if changed is None or steady is None:
        return changed is None
    (first, last, again), (first_steady, last_steady, _) = changed, steady
    is_other = any(
        one != other and same == same_again
        for one, other, same, same_again in zip(first, last, first_steady, last_steady, strict=True)
    )
    return is_other or (again is not None and is_refusal(again))


async def _others(subject: Subject, task: Task, name: str) -> list[Call]:
    """A legal call of each other tool."""
    found = await explored(subject, task)
    return [found.legal(other)[0].call for other in subject.tools if other != name and found.legal(other)]


async def _answers(
    subject: Subject, task: Task, opening: Sequence[Call], others: Sequence[Call], call: Call | None
) -> tuple[list[Json], list[Json], ToolResult | None] | None:
    """What `others` answer, and the final state, before and after a call, and what the call returns when it is made again;
    None when the call ends the episode."""
    own = copy.deepcopy(task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        said = [(await execute(environment, one.tool, dict(one.arguments))).content for one in opening]
        first: list[Json] = [*said[len(opening) - len(others) :], await final_state(environment, task)]
        again = None
        if call is not None:
            await execute(environment, call.tool, dict(call.arguments))
            if environment.is_done:
                return None
        state = await final_state(environment, task)
        last: list[Json] = [(await execute(environment, one.tool, dict(one.arguments))).content for one in others]
        if call is not None:
            again = await execute(environment, call.tool, dict(call.arguments))
        return first, [*last, state], again
