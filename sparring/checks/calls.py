"""Tool calls to try: those of the expert, and plausible ones for tools that it does not call."""

from __future__ import annotations

import copy
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from sparring.checks.scripted import ScriptedPolicy, saying
from sparring.checks.subject import Subject, UndecidedError
from sparring.environments import ToolResult, execute, opened, tool_call
from sparring.environments.base import reset
from sparring.environments.tools import Tool, fits
from sparring.types import Json, Task

EXPLORER = "explorer"
STRANGER = "stranger"
MOST_CANDIDATES = 6
"""Values that are tried for one argument."""


WRITING = ("add", "apply", "book", "cancel", "change", "close", "create", "delete", "edit", "execute", "file", "hold", "insert",
           "issue", "make", "mark", "move", "open", "order", "pay", "place", "post", "put", "record", "refund", "register",
           "release", "remove", "reset", "run", "save", "schedule", "send", "set", "start", "step", "stop", "store", "submit",
           "transfer", "update", "write")  # fmt: skip
"""First words of the names of tools that are expected to change the world."""


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: Mapping[str, Json]

    def __str__(self) -> str:
        return f"{self.tool}({', '.join(f'{name}={json.dumps(value)}' for name, value in self.arguments.items())})"


def changes(tool: str) -> bool:
    """Whether a tool is expected to change the world."""
    return tool.split("_")[0].lower() in WRITING


async def answers(subject: Subject, task: Task, calls: Sequence[Call]) -> list[ToolResult]:
    """What the tools say to these calls, one after the other in a fresh environment. Raises UndecidedError when the world
    fails."""
    own = copy.deepcopy(task)
    try:
        async with opened(subject.make_environment(), own) as environment:
            await reset(environment, own)
            return [await execute(environment, one.tool, dict(one.arguments)) for one in calls]
    except Exception as error:
        raise UndecidedError(f"tools of task {task.id} could not be called: {error}") from error


async def expert_calls(subject: Subject, task: Task) -> list[Call]:
    """The calls that the expert makes, in order; none without an expert."""
    expert = subject.expert(task)
    if expert is None:
        return []
    played = await subject.play(task, expert, judged=False)
    return [
        Call(str(one["tool"]), one["arguments"])
        for one in played.transitions
        if one["tool"] in subject.tools and isinstance(one["arguments"], Mapping)
    ]


async def likely_calls(subject: Subject, task: Task, tool: Tool) -> list[Call]:
    """Calls of a tool that may work: the expert's own, then plausible arguments, likeliest first."""
    known = subject.shared.setdefault("likely calls", {})
    if (task.id, tool.name) not in known:
        known[task.id, tool.name] = await _likely_calls(subject, task, tool)
    return known[task.id, tool.name]


async def _likely_calls(subject: Subject, task: Task, tool: Tool) -> list[Call]:
    expert = await expert_calls(subject, task)
    own = [one for one in expert if one.tool == tool.name]
    pools = {name: list(_candidates(hint, name, task, expert)) for name, hint in tool.hints.items()}
    width = max((len(pool) for pool in pools.values()), default=1)
    made = [
        Call(tool.name, {name: pool[min(index, len(pool) - 1)] for name, pool in pools.items() if pool})
        for index in range(min(width, MOST_CANDIDATES))
    ]
    return [one for index, one in enumerate([*own, *made]) if one not in [*own, *made][:index]]


async def explorer(subject: Subject, task: Task) -> ScriptedPolicy:
    """A policy that calls every tool once, with the likeliest arguments, and then answers."""
    calls = [(await likely_calls(subject, task, tool))[0] for tool in subject.tools.values()]
    said = [tool_call(one.tool, **one.arguments) for one in calls]
    return saying(EXPLORER, [*said, {"role": "assistant", "content": "done"}])


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
    said = [tool_call(one.tool, **one.arguments) for one in calls]
    return saying(STRANGER, [*said, {"role": "assistant", "content": "done"}])


async def players(subject: Subject, task: Task) -> list[ScriptedPolicy]:
    """Who shows what the environment does: its expert, and somebody who also calls what the expert does not."""
    expert = subject.expert(task)
    return [*([] if expert is None else [expert]), await explorer(subject, task)]


def leaves(value: Json, key: str = "") -> Iterator[tuple[str, Json]]:
    """All scalars in a JSON value with the key that they stand under."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, key)
    else:
        yield key, value


def alternatives(hint: Any) -> list[Any]:
    """The types of a union, or the one type; null left out."""
    if get_origin(hint) in (Union, types.UnionType):
        return [one for one in get_args(hint) if one is not type(None)]
    return [hint]


def _candidates(hint: Any, name: str, task: Task, expert: Sequence[Call]) -> Iterator[Json]:
    """Values for an argument, likeliest first, each once."""
    fields = list(leaves(task.fields))
    said = [value for one in expert for key, value in one.arguments.items() if key == name]
    named = [value for key, value in fields if key == name]
    near = [value for key, value in fields if key and (key in name or name in key)]
    words = [word for message in task.messages for word in _words(str(message.get("content")))]
    keys = [key for value in task.fields.values() if isinstance(value, Mapping) for key in value]
    others = [value for one in expert for value in one.arguments.values()]
    everything = [*said, *named, *near, *others, *words, *keys, *(value for _, value in fields), *_made_up(hint)]
    seen: list[Json] = []
    for value in everything:
        if fits(value, hint) and value is not None and value not in seen:
            seen.append(value)
            yield value
        if len(seen) == MOST_CANDIDATES:
            return


def _made_up(hint: Any) -> list[Json]:
    """Values of a type that mean nothing."""
    made: list[Json] = []
    for one in alternatives(hint):
        if get_origin(one) is Literal:
            made += get_args(one)
        elif (get_origin(one) or one) is list:
            made += [[item] for item in _made_up((get_args(one) or (str,))[0])[:1]] + [[]]
        elif (get_origin(one) or one) is dict:
            made.append({})
        else:
            made += {str: ["example"], int: [1, 2, 0], float: [1.5, 1], bool: [True, False]}.get(one, [])
    return made


def _words(text: str) -> list[str]:
    """Words of a prompt that look like names, codes or quoted texts, the last first: what is asked for stands at the end."""
    found = re.findall(r'"([^"\n]{1,60})"|\b([A-Z][\w-]*\d[\w-]*|\w+-\d+|[A-Z][a-z]+\d*)\b', text)
    return [first or second for first, second in reversed(found)]
