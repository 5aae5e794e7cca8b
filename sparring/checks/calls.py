"""Calls of tools to look at: those that were found to be legal, and the same with arguments changed."""

from __future__ import annotations

import copy
import itertools
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.checks.arguments import schema_values
from sparring.checks.explore import Call, expert_calls, explored, is_nothing, is_refusal
from sparring.checks.subject import Subject
from sparring.environments import ToolResult, execute, tool_call
from sparring.environments.base import reset
from sparring.environments.tools import Tool
from sparring.types import Json, Message, Task

__all__ = ["Call", "expert_calls"]
T = TypeVar("T")
EXPLORER = "explorer"
STRANGER = "stranger"
MOST_CALLS = 6
"""Of one tool in one task, that rules look at."""
MOST_PARTS = 40
"""Parts of texts that a tool is asked for in each of the first NUM_TASKS tasks."""
NUM_TASKS = 4
MOST_TOGETHER = 4096
"""Combinations of values for the arguments of one call."""
SLOW_SECONDS = 0.25
"""Where an episode takes longer, calls that are compared are made in one environment, one after the other."""


async def answers(subject: Subject, task: Task, calls: Sequence[Call]) -> list[ToolResult]:
    """What the tools return to these calls, one after the other in a fresh environment. Raises what `Subject.opened`
    raises."""
    own = copy.deepcopy(task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        return [await execute(environment, one.tool, dict(one.arguments)) for one in calls]


async def answers_apart(
    subject: Subject, task: Task, calls: Sequence[Call], before: Sequence[Call] = ()
) -> list[ToolResult]:
    """What each of these calls returns after the calls `before` it, in an environment of its own; asked once. Where
    environments start slowly, all of them are made in one."""
    known: dict[str, ToolResult] = subject.shared.setdefault("answers apart", {})
    keys = [str([task.id, *map(str, before), str(call)]) for call in calls]
    missing = {key: call for key, call in zip(keys, calls, strict=True) if key not in known}
    if missing and subject.timing.episode_seconds > SLOW_SECONDS:
        said = await answers(subject, task, [*before, *missing.values()])
        known |= dict(zip(missing, said[len(before) :], strict=True))
    else:
        for key, call in missing.items():
            known[key] = (await answers(subject, task, [*before, call]))[-1]
    return [known[key] for key in keys]


async def answers_to_parts(subject: Subject, tool: str) -> bool:
    """Whether a tool of one argument says something when it is asked for parts of known texts: a last name, a letter."""
    required = subject.tools[tool].required
    for task in subject.sample[:NUM_TASKS] if len(required) == 1 else ():
        tried = (await explored(subject, task)).tried
        texts = dict.fromkeys(text for one in tried for text in one.call.arguments.values() if isinstance(text, str))
        parts = dict.fromkeys(part for text in texts for part in (*re.findall(r"\w+", text), text[:1]) if part != text)
        calls = [Call(tool, dict.fromkeys(required, part)) for part in list(parts)[:MOST_PARTS]]
        calls = [one for one in calls if subject.problem_with(tool, one.arguments) is None]
        said = await answers(subject, task, [*await before_legal(subject, task, tool), *calls])
        if any(not is_refusal(one) and not is_nothing(one.content) for one in said[len(said) - len(calls) :]):
            return True
    return False


async def likely_calls(subject: Subject, task: Task, tool: Tool) -> list[Call]:
    """Calls of a tool: the expert's own, then legal ones, then what else was tried; one at least."""
    found = await explored(subject, task)
    own = [one for one in await expert_calls(subject, task) if one.tool == tool.name]
    tried = [one.call for one in (*found.legal(tool.name), *found.of(tool.name))]
    calls = {str(one): one for one in (*own, *tried)} or {"": _any_call(tool)}
    return list(calls.values())[:MOST_CALLS]


async def before_legal(subject: Subject, task: Task, tool: str) -> tuple[Call, ...]:
    """The calls that the likeliest legal call of a tool needs before it; none where it is legal by itself."""
    legal = (await explored(subject, task)).legal(tool)
    if not legal or not legal[0].before:
        return ()
    alone = (await answers_apart(subject, task, [legal[0].call]))[0]
    return () if alone.error is None and alone.content == legal[0].result.content else legal[0].before


def _any_call(tool: Tool) -> Call:
    """A call with values that mean nothing."""
    parameters = tool.schema["function"].get("parameters", {})
    required = parameters.get("required", ())
    values = {name: schema_values(part) for name, part in parameters.get("properties", {}).items() if name in required}
    return Call(tool.name, {name: made[0] if made else "example" for name, made in values.items()})


async def explorer(subject: Subject, task: Task) -> ScriptedPolicy:
    """A policy that calls every tool, as far as that is known in a way that works, and then answers."""
    calls = (await explored(subject, task)).script
    calls += [_any_call(tool) for name, tool in subject.tools.items() if name not in {one.tool for one in calls}]
    return saying(EXPLORER, [*in_turns(subject, calls), {"role": "assistant", "content": "done"}])


def in_turns(subject: Subject, calls: Sequence[Call]) -> list[Message]:
    """One call a turn, or several where there are more calls than turns."""
    said = [tool_call(one.tool, **one.arguments) for one in calls]
    each = -(-len(said) // max(1, subject.config.environment.max_turns - 1))
    parts = [said[index : index + each] for index in range(0, len(said), max(1, each))]
    return [{**part[0], "tool_calls": [call for one in part for call in one["tool_calls"]]} for part in parts]


def strange(call: Call) -> Call:
    """The call with texts and numbers that no task knows."""

    def unknown(value: Json) -> Json:
        if isinstance(value, bool):
            return value
        return "zzz-unknown" if isinstance(value, str) else 987_654 if isinstance(value, int) else value

    return Call(call.tool, {name: unknown(value) for name, value in call.arguments.items()})


async def stranger(subject: Subject, task: Task) -> ScriptedPolicy:
    """A policy that asks every tool once about what no task knows, as a policy in training does all the time."""
    calls = [strange((await likely_calls(subject, task, tool))[0]) for tool in subject.tools.values()]
    return saying(STRANGER, [*in_turns(subject, calls), {"role": "assistant", "content": "done"}])


async def players(subject: Subject, task: Task) -> list[ScriptedPolicy]:
    """Policies that show what the environment does: its expert, and one that also calls what the expert does not."""
    expert = subject.expert(task)
    return [*([] if expert is None else [expert]), await explorer(subject, task)]


def leaves(value: Json, key: str = "") -> Iterator[tuple[str, Json]]:
    """All scalars in a JSON value with the key that they stand under; what JSON has no form for, a date say, as text."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, key)
    else:
        yield key, value if value is None or isinstance(value, str | int | float) else str(value)


def likeliest_together(pools: Sequence[Sequence[T]]) -> Iterator[tuple[T, ...]]:
    """At most MOST_TOGETHER choices of one value from each pool, the likeliest first; pools begin with their likeliest."""
    last = [len(pool) - 1 for pool in pools]
    totals = range(sum(last) + 1) if all(pools) else ()
    chosen = itertools.chain.from_iterable(_ranks(last, total) for total in totals)
    for ranks in itertools.islice(chosen, MOST_TOGETHER):
        yield tuple(pool[rank] for pool, rank in zip(pools, ranks, strict=True))


def _ranks(last: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Ranks with this sum, none above its last one."""
    if not last:
        yield ()
        return
    for first in range(max(0, total - sum(last[1:])), min(total, last[0]) + 1):
        for others in _ranks(last[1:], total - first):
            yield first, *others


def alternatives(hint: Any) -> list[Any]:
    """The types of a union, or the one type; null left out."""
    if get_origin(hint) in (Union, types.UnionType):
        return [one for one in get_args(hint) if one is not type(None)]
    return [hint]
