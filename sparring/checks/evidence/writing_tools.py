"""The tools that change the environment, identified by the results of the other tools before and after a call."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparring.checks.evidence.explore import Call, explore_task, is_refusal
from sparring.checks.evidence.subject import Subject
from sparring.environments import ToolResult, execute
from sparring.environments.base import final_state, reset
from sparring.types import Json, Task

NUM_TASKS = 2
"""The number of tasks in which the tools are tried."""
MOST_MEMBERS = 4
"""The maximum number of members of an enumeration to try."""
OTHER_TEXT = "Quince 77"


async def find_writing_tools(subject: Subject) -> frozenset[str]:
    """Return the tools that change something. A call to such a tool changes the result of another tool or the final
    state, ends the episode, or is refused when it is repeated. The result is cached."""
    if "writing tools" not in subject.shared:
        found: set[str] = set()
        for task in subject.sample[:NUM_TASKS]:
            for name in subject.tools:
                if name not in found and await _writes(subject, task, name):
                    found.add(name)
        subject.shared["writing tools"] = frozenset(found)
    return subject.shared["writing tools"]


async def _writes(subject: Subject, task: Task, name: str) -> bool:
    legal = (await explore_task(subject, task)).legal(name)
    if not legal:
        return False
    before = legal[0].before
    calls = [one.call for one in legal] + [one for tried in legal[:1] for one in change_values(subject, tried.call)]
    others = [one for one in await _list_others(subject, task, name) if one not in before]
    steady = await _run_around(subject, task, [*before, *others], others, ())
    for made in (calls[:1], calls):  # a later call may undo what the first did
        changed = await _run_around(subject, task, [*before, *others], others, made)
        if changed is None or steady is None:
            return changed is None
        is_other = any(
            one != other and same == same_again
            for one, other, same, same_again in zip(changed.first, changed.last, steady.first, steady.last, strict=True)
        )
        is_other_state = steady.first[-1] == steady.last[-1] and any(one != changed.first[-1] for one in changed.states)
        if is_other or is_other_state or (changed.again is not None and is_refusal(changed.again)):
            return True
    return False


def change_values(subject: Subject, call: Call) -> Iterator[Call]:
    """Yield calls with one argument changed, since the environment may already contain the value."""
    properties = subject.tools[call.tool].schema["function"].get("parameters", {}).get("properties", {})
    for name, value in call.arguments.items():
        others: list[Json] = [one for one in properties.get(name, {}).get("enum", ())[:MOST_MEMBERS] if one != value]
        if not others and isinstance(value, bool):
            others = [not value]
        elif not others and isinstance(value, int | float):
            others = [value + 1, 3]
        elif not others and isinstance(value, str):
            others = [OTHER_TEXT]
        for other in others:
            varied = Call(call.tool, {**call.arguments, name: other})
            if subject.problem_with(call.tool, varied.arguments) is None:
                yield varied


async def _list_others(subject: Subject, task: Task, name: str) -> list[Call]:
    """Return a legal call of each other tool."""
    found = await explore_task(subject, task)
    return [found.legal(other)[0].call for other in subject.tools if other != name and found.legal(other)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The observations before, during and after some calls.

    `first` and `last` contain the results of the other tools before and after the calls, with the final state as the
    last item. `states` contains the final state after each call. `again` is the result of repeating the first call, or
    None if the tool refused that call before.
    """

    first: list[Json]
    last: list[Json]
    states: list[Json]
    again: ToolResult | None


async def _run_around(
    subject: Subject, task: Task, opening: Sequence[Call], others: Sequence[Call], calls: Sequence[Call]
) -> _Seen | None:
    """Return the other tools' results before and after calls to a tool, or None if one of the calls ends the
    episode."""
    own = copy.deepcopy(task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        results = [(await execute(environment, one.tool, dict(one.arguments))).content for one in opening]
        first: list[Json] = [*results[len(opening) - len(others) :], await final_state(environment, task)]
        states: list[Json] = []
        was_over, was_refused = bool(environment.is_done), False  # another tool may end the episode
        for one in calls:
            result = await execute(environment, one.tool, dict(one.arguments))
            was_refused = was_refused or (one is calls[0] and is_refusal(result))
            if environment.is_done and not was_over:
                return None
            states.append(await final_state(environment, task))
        state = await final_state(environment, task)
        last: list[Json] = [(await execute(environment, one.tool, dict(one.arguments))).content for one in others]
        again = (
            await execute(environment, calls[0].tool, dict(calls[0].arguments)) if calls and not was_refused else None
        )
        return _Seen(first, [*last, state], states, again)
