"""What a policy can read in every task in the same way: from the prompt, and from calls with what it read."""

from __future__ import annotations

import copy
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sparring.checks.answers import text_of
from sparring.checks.arguments import fitted_to
from sparring.checks.calls import SLOW_SECONDS, strange
from sparring.checks.explore import Call, is_nothing, is_refusal
from sparring.checks.golds import Golds
from sparring.checks.rows import fields_in, listings_in, parsed
from sparring.checks.subject import Subject
from sparring.checks.survey import reading_tools
from sparring.environments import execute
from sparring.environments.base import reset
from sparring.types import Json, Task

MOST_TASKS = 40
NUM_TRIED = 4
"""Tasks in which it is found out which calls work."""
MOST_CALLS = 60
"""Of one tool, that are tried in a task."""
MOST_KEPT = 24
"""Ways to call tools that are used in all tasks."""
SECONDS = 4.0
"""What finding out which calls work may take, and what making them in all tasks may."""
FIXED = 0.3
"""Share of the prompts that have a word, from which it belongs to the question and not to the task."""
_LONGEST = 80
"""Characters of a value."""
_WORD = re.compile(r"[^\W_][\w.'/@:+-]*[^\W_]|[^\W_]|\S")
Role: TypeAlias = tuple[str, str]
"""Where a value of a task comes from, such as ("prompt", "meter"): what follows that word."""
Way: TypeAlias = tuple[str, tuple[tuple[str, Role], ...]]
"""A tool, and where each of its arguments comes from."""


@dataclass(slots=True)
class Read:
    """What is known in one task."""

    task: Task
    words: frozenset[str]
    """Of its prompt."""
    values: dict[Role, str]
    """From the prompt, the task's own scalars, and its answer."""
    results: dict[Way, tuple[Call, Json]] = field(default_factory=dict)

    def scalars(self) -> Iterator[tuple[Way, str, Call, Json]]:
        """The fields of results that are no lists, with the way there and the call."""
        roles = {value: " ".join(role) for role, value in self.values.items()}
        for way, (call, value) in self.results.items():
            for name, one in fields_in(value).items():
                yield way, roles.get(name, name), call, one

    def rows(self) -> Iterator[tuple[Way, Call, list[dict[str, Json]]]]:
        for way, (call, value) in self.results.items():
            listings = list(listings_in(value).values())
            if len(listings) == 1:
                yield way, call, listings[0]


async def read_everywhere(subject: Subject, golds: Golds | None) -> list[Read]:
    """The first training tasks with what can be read in them; made once. Tasks only, where environments start slowly."""
    if "read everywhere" not in subject.shared:
        subject.shared["read everywhere"] = await _read(subject, golds)
    return subject.shared["read everywhere"]


async def _read(subject: Subject, golds: Golds | None) -> list[Read]:
    reads = readings(list(subject.looked_at[:MOST_TASKS]), golds)
    if subject.environment_class is None or subject.timing.episode_seconds > SLOW_SECONDS:
        return reads
    ways = await ways_to_find(subject, reads)
    ends = time.monotonic() + SECONDS
    with subject.timing.as_far_as_it_goes():
        for one in reads if ways else ():
            await _call_all(subject, one, ways, ends)
    return reads


def readings(tasks: Sequence[Task], golds: Golds | None) -> list[Read]:
    """What the prompts and fields of these tasks name, before any tool was called."""
    prompts = {task.id: [_WORD.findall(user_text(task))] for task in tasks}
    counts = Counter(word for (words,) in prompts.values() for word in set(words))
    fixed = {word for word, count in counts.items() if count >= _fixed_from(word) * len(tasks)}
    judged = set() if golds is None else {path[0] for path in golds.read}
    reads = []
    for task in tasks:
        values = {("prompt", name): value for name, value in _slots(prompts[task.id][0], fixed)}
        own = {name: one for name, one in task.fields.items() if name not in judged and _is_scalar(one)}
        values |= {("field", str(name)): str(one) for name, one in own.items()}
        parts = golds.by_task[task.id].parts if golds is not None and task.id in golds.by_task else None
        values |= {("answer", name): str(one) for name, one in (parts or {}).items() if _is_scalar(one)}
        reads.append(Read(task, frozenset(prompts[task.id][0]), values))
    return reads


def _fixed_from(word: str) -> float:
    """The share of the prompts from which a word belongs to the question; codes and names mostly belong to the task."""
    return 0.9 if any(map(str.isdigit, word)) else 2 * FIXED if word[0].isupper() else FIXED


def user_text(task: Task) -> str:
    return "\n".join(text_of(message) for message in task.messages if message.get("role") != "system")


def _slots(words: Sequence[str], fixed: set[str]) -> Iterator[tuple[str, str]]:
    """What stands between the words that belong to the question, each by the word before it and how often that came."""
    before, own = "", []
    seen: Counter[str] = Counter()
    for word in (*words, None):
        if word is not None and word not in fixed:
            own.append(word)
            continue
        if own and len(" ".join(own)) <= _LONGEST:
            seen[before] += 1
            yield f"{before} #{seen[before]}", " ".join(own)
        own = []
        before = word or ""


def _is_scalar(value: Json) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) <= _LONGEST


async def ways_to_find(subject: Subject, reads: Sequence[Read]) -> list[Way]:
    """Ways to call the tools that read that find something in the first tasks."""
    ends = time.monotonic() + SECONDS
    found: Counter[Way] = Counter()
    names = await reading_tools(subject)
    for read in reads[:NUM_TRIED]:
        own = copy.deepcopy(read.task)
        async with subject.opened(own) as environment:
            await reset(environment, own)
            for name in names:
                seen: set[str] = set()
                unknown: str | None = None
                for way, call in itertools.islice(_candidates(subject, read, name), MOST_CALLS):
                    if environment.is_done or time.monotonic() > ends:
                        break
                    if unknown is None:
                        stranger = strange(call)
                        unknown = (await execute(environment, name, dict(stranger.arguments))).content
                    result = await execute(environment, name, dict(call.arguments))
                    is_lost = is_refusal(result) or is_nothing(result.content) or result.content == unknown
                    if (not is_lost or not call.arguments) and str(call) not in seen:
                        seen.add(str(call))
                        found[way] += 1
    kept = [way for way, count in found.most_common() if count >= min(2, len(reads))]
    return kept[:MOST_KEPT]


def _candidates(subject: Subject, read: Read, name: str) -> Iterator[tuple[Way, Call]]:
    parameters = subject.tools[name].schema["function"].get("parameters", {})
    properties = parameters.get("properties", {})
    required = list(parameters.get("required", ()))
    pools = [list(_values(read, argument, properties.get(argument, {}))) for argument in required]
    for chosen in itertools.product(*pools):
        if len({role for role, _ in chosen if role[0] != "always"}) < sum(role[0] != "always" for role, _ in chosen):
            continue
        arguments = {argument: value for argument, (_, value) in zip(required, chosen, strict=True)}
        if subject.problem_with(name, arguments) is None:
            way = (name, tuple((argument, role) for argument, (role, _) in zip(required, chosen, strict=True)))
            yield way, Call(name, arguments)


def _values(read: Read, argument: str, schema: Mapping[str, Json]) -> Iterator[tuple[Role, Json]]:
    if "enum" in schema:
        yield from ((("always", str(one)), one) for one in schema["enum"])
        return
    if schema.get("type") == "boolean":
        yield from ((("always", str(one)), one) for one in (True, False))
        return
    near = sorted(read.values.items(), key=lambda item: item[0][1].lower() != argument.lower())
    for role, value in near:
        fitted = fitted_to(value, schema)
        if fitted is not None and not isinstance(fitted, list | dict):
            yield role, fitted


async def _call_all(subject: Subject, read: Read, ways: Sequence[Way], ends: float) -> None:
    if time.monotonic() > ends:
        return
    own = copy.deepcopy(read.task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        for way, call in calls_of(subject, read, ways):
            if environment.is_done or time.monotonic() > ends:
                break
            result = await execute(environment, call.tool, dict(call.arguments))
            if result.error is None:
                read.results[way] = (call, parsed(result.content))


def calls_of(subject: Subject, read: Read, ways: Sequence[Way]) -> Iterator[tuple[Way, Call]]:
    """The calls of these ways in a task, as far as it has the values."""
    for way in ways:
        name, roles = way
        properties = subject.tools[name].schema["function"].get("parameters", {}).get("properties", {})
        arguments = {}
        for argument, role in roles:
            schema = properties.get(argument, {})
            if role[0] == "always":
                arguments[argument] = next(
                    (one for one in schema.get("enum", (True, False)) if str(one) == role[1]), None
                )
            elif role in read.values:
                arguments[argument] = fitted_to(read.values[role], schema)
        is_whole = len(arguments) == len(roles) and None not in arguments.values()
        if is_whole and subject.problem_with(name, arguments) is None:
            yield way, Call(name, arguments)
