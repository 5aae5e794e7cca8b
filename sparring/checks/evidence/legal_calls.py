"""Legal calls to tools, and the same calls with changed arguments."""

from __future__ import annotations

import copy
import itertools
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.checks.evidence.arguments import list_schema_values
from sparring.checks.evidence.explore import Call, explore_task, is_nothing, is_refusal, list_expert_calls
from sparring.checks.evidence.subject import Subject
from sparring.environments import ToolResult, execute, tool_call
from sparring.environments.base import reset
from sparring.environments.tools import Tool
from sparring.types import Json, Message, Task

__all__ = ["Call", "list_expert_calls"]
T = TypeVar("T")
EXPLORER = "explorer"
STRANGER = "stranger"
MOST_CALLS = 6
"""The maximum number of calls to one tool that the rules use in one task."""
MOST_PARTS = 40
"""The maximum number of parts of texts with which a tool is called in each of the first NUM_TASKS tasks."""
NUM_TASKS = 4
MOST_TOGETHER = 4096
"""The maximum number of combinations of values for the arguments of one call."""
SLOW_SECONDS = 0.25
"""If an episode takes more seconds than this, compared calls share one environment, one after the other."""


async def run_calls(subject: Subject, task: Task, calls: Sequence[Call]) -> list[ToolResult]:
    """Return the results of these calls, made one after the other in a fresh environment. Raises the same errors as
    `Subject.opened`."""
    own = copy.deepcopy(task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        return [await execute(environment, one.tool, dict(one.arguments)) for one in calls]


async def run_calls_apart(
    subject: Subject, task: Task, calls: Sequence[Call], before: Sequence[Call] = ()
) -> list[ToolResult]:
    """Return the result of each of these calls after the calls `before`, each in its own environment. The result is
    cached. If environments are slow to start, all calls share one environment."""
    known: dict[str, ToolResult] = subject.shared.setdefault("answers apart", {})
    keys = [str([task.id, *map(str, before), str(call)]) for call in calls]
    missing = {key: call for key, call in zip(keys, calls, strict=True) if key not in known}
    if missing and subject.timing.episode_seconds > SLOW_SECONDS:
        results = await run_calls(subject, task, [*before, *missing.values()])
        known |= dict(zip(missing, results[len(before) :], strict=True))
    else:
        for key, call in missing.items():
            known[key] = (await run_calls(subject, task, [*before, call]))[-1]
    return [known[key] for key in keys]


async def accepts_parts(subject: Subject, tool: str) -> bool:
    """Return True if a tool with one argument finds something for parts of known texts, such as a last name or a
    letter."""
    required = subject.tools[tool].required
    for task in subject.sample[:NUM_TASKS] if len(required) == 1 else ():
        tried = (await explore_task(subject, task)).tried
        texts = dict.fromkeys(text for one in tried for text in one.call.arguments.values() if isinstance(text, str))
        parts = dict.fromkeys(part for text in texts for part in (*re.findall(r"\w+", text), text[:1]) if part != text)
        calls = [Call(tool, dict.fromkeys(required, part)) for part in list(parts)[:MOST_PARTS]]
        calls = [one for one in calls if subject.problem_with(tool, one.arguments) is None]
        results = await run_calls(subject, task, [*await list_calls_before(subject, task, tool), *calls])
        if any(not is_refusal(one) and not is_nothing(one.content) for one in results[len(results) - len(calls) :]):
            return True
    return False


async def list_likely_calls(subject: Subject, task: Task, tool: Tool) -> list[Call]:
    """Return at least one call to a tool. The expert's own calls come first, then legal calls, then other calls that
    were tried."""
    found = await explore_task(subject, task)
    own = [one for one in await list_expert_calls(subject, task) if one.tool == tool.name]
    tried = [one.call for one in (*found.legal(tool.name), *found.of(tool.name))]
    calls = {str(one): one for one in (*own, *tried)} or {"": _make_any_call(tool)}
    return list(calls.values())[:MOST_CALLS]


async def list_calls_before(subject: Subject, task: Task, tool: str) -> tuple[Call, ...]:
    """Return the calls that must precede the most likely legal call of a tool. The result is empty if that call is
    legal without them."""
    legal = (await explore_task(subject, task)).legal(tool)
    if not legal or not legal[0].before:
        return ()
    alone = (await run_calls_apart(subject, task, [legal[0].call]))[0]
    return () if alone.error is None and alone.content == legal[0].result.content else legal[0].before


def _make_any_call(tool: Tool) -> Call:
    """Return a call with arbitrary values that fit the schema."""
    parameters = tool.schema["function"].get("parameters", {})
    required = parameters.get("required", ())
    values = {
        name: list_schema_values(part) for name, part in parameters.get("properties", {}).items() if name in required
    }
    return Call(tool.name, {name: made[0] if made else "example" for name, made in values.items()})


async def make_explorer(subject: Subject, task: Task) -> ScriptedPolicy:
    """Return a policy that calls every tool, with legal calls if they are known, and then answers."""
    calls = (await explore_task(subject, task)).script
    calls += [_make_any_call(tool) for name, tool in subject.tools.items() if name not in {one.tool for one in calls}]
    return saying(EXPLORER, [*split_into_turns(subject, calls), {"role": "assistant", "content": "done"}])


def split_into_turns(subject: Subject, calls: Sequence[Call]) -> list[Message]:
    """Return messages with one call each, or with several calls each if there are more calls than turns."""
    messages = [tool_call(one.tool, **one.arguments) for one in calls]
    each = -(-len(messages) // max(1, subject.config.environment.max_turns - 1))
    parts = [messages[index : index + each] for index in range(0, len(messages), max(1, each))]
    return [{**part[0], "tool_calls": [call for one in part for call in one["tool_calls"]]} for part in parts]


def make_strange(call: Call) -> Call:
    """Return the call with texts and numbers that do not occur in any task."""

    def unknown(value: Json) -> Json:
        if isinstance(value, bool):
            return value
        return "zzz-unknown" if isinstance(value, str) else 987_654 if isinstance(value, int) else value

    return Call(call.tool, {name: unknown(value) for name, value in call.arguments.items()})


async def make_stranger(subject: Subject, task: Task) -> ScriptedPolicy:
    """Return a policy that calls every tool once with identifiers that do not exist in any task, as a policy in
    training often does."""
    calls = [make_strange((await list_likely_calls(subject, task, tool))[0]) for tool in subject.tools.values()]
    return saying(STRANGER, [*split_into_turns(subject, calls), {"role": "assistant", "content": "done"}])


async def make_policies(subject: Subject, task: Task) -> list[ScriptedPolicy]:
    """Return policies that show the environment's behavior: its expert, if any, and a policy that calls every tool."""
    expert = subject.expert(task)
    return [*([] if expert is None else [expert]), await make_explorer(subject, task)]


def leaves(value: Json, key: str = "") -> Iterator[tuple[str, Json]]:
    """Yield every scalar in a JSON value with its key. Values that JSON cannot represent, such as dates, are converted
    to text."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, key)
    else:
        yield key, value if value is None or isinstance(value, str | int | float) else str(value)


def combine_likeliest(pools: Sequence[Sequence[T]]) -> Iterator[tuple[T, ...]]:
    """Yield at most MOST_TOGETHER combinations of one value from each pool, the most likely first. Each pool is sorted
    by likelihood."""
    last = [len(pool) - 1 for pool in pools]
    totals = range(sum(last) + 1) if all(pools) else ()
    chosen = itertools.chain.from_iterable(_iterate_ranks(last, total) for total in totals)
    for ranks in itertools.islice(chosen, MOST_TOGETHER):
        yield tuple(pool[rank] for pool, rank in zip(pools, ranks, strict=True))


def _iterate_ranks(last: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    """Yield tuples of ranks that have this sum. No rank exceeds the last rank of its pool."""
    if not last:
        yield ()
        return
    for first in range(max(0, total - sum(last[1:])), min(total, last[0]) + 1):
        for others in _iterate_ranks(last[1:], total - first):
            yield first, *others


def list_types(hint: Any) -> list[Any]:
    """Return the types of a union without null, or the type itself if it is not a union."""
    if get_origin(hint) in (Union, types.UnionType):
        return [one for one in get_args(hint) if one is not type(None)]
    return [hint]
