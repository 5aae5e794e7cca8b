"""Values that a policy can read in the same way in every task: from the prompt, and from calls with values that it has
read."""

from __future__ import annotations

import copy
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.arguments import fit_to_schema
from sparring.checks.evidence.explore import Call, is_nothing, is_refusal
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, make_strange
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes
from sparring.checks.evidence.returned_rows import find_fields, find_listings, parse_result
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import find_reading_tools
from sparring.environments import execute
from sparring.environments.base import reset
from sparring.types import Json, Task

MOST_TASKS = 40
NUM_TRIED = 4
"""The number of tasks in which to find the calls that work."""
MOST_CALLS = 60
"""The maximum number of calls to one tool to try in a task."""
MOST_KEPT = 24
"""The maximum number of ways to call tools that are used in all tasks."""
SECONDS = 4.0
"""The time limit in seconds to find the calls that work, and again to make them in all tasks."""
FIXED = 0.3
"""A word belongs to the question rather than to the task if at least this share of the prompts contains it."""
_LONGEST = 80
"""The maximum length of a value."""
_WORD = re.compile(r"[^\W_][\w.'/@:+-]*[^\W_]|[^\W_]|\S")
Role: TypeAlias = tuple[str, str]
"""The origin of a task's value, such as ("prompt", "meter") for the text after the word "meter" in the prompt."""
Way: TypeAlias = tuple[str, tuple[tuple[str, Role], ...]]
"""A tool and the origin of each of its arguments."""


@dataclass(slots=True)
class ReadableValues:
    """The values that are known in one task."""

    task: Task
    words: frozenset[str]
    """The words of the task's prompt."""
    values: dict[Role, str]
    """Values from the prompt, the task's own scalars, and the parts of the reference answer."""
    results: dict[Way, tuple[Call, Json]] = field(default_factory=dict)

    def scalars(self) -> Iterator[tuple[Way, str, Call, Json]]:
        """Yield the fields of results that are not lists: the way of calling, the name, the call and the value."""
        roles = {value: " ".join(role) for role, value in self.values.items()}
        for way, (call, value) in self.results.items():
            for name, one in find_fields(value).items():
                yield way, roles.get(name, name), call, one

    def rows(self) -> Iterator[tuple[Way, Call, list[dict[str, Json]]]]:
        """Yield the rows of results that contain exactly one list: the way of calling, the call and the rows."""
        for way, (call, value) in self.results.items():
            listings = list(find_listings(value).values())
            if len(listings) == 1:
                yield way, call, listings[0]


async def read_everywhere(subject: Subject, references: ReferenceEpisodes | None) -> list[ReadableValues]:
    """Return the first training tasks with the values that can be read in them. They are computed once. No calls are
    made if environments start slowly."""
    if "read everywhere" not in subject.shared:
        subject.shared["read everywhere"] = await _read(subject, references)
    return subject.shared["read everywhere"]


async def _read(subject: Subject, references: ReferenceEpisodes | None) -> list[ReadableValues]:
    reads = read_without_calls(list(subject.looked_at[:MOST_TASKS]), references)
    if subject.environment_class is None or subject.timing.episode_seconds > SLOW_SECONDS:
        return reads
    ways = await find_ways(subject, reads)
    ends = time.monotonic() + SECONDS
    with subject.timing.as_far_as_it_goes():
        for one in reads if ways else ():
            await _call_all(subject, one, ways, ends)
    return reads


def read_without_calls(tasks: Sequence[Task], references: ReferenceEpisodes | None) -> list[ReadableValues]:
    """Return the values in the prompts and fields of these tasks, without calls."""
    prompts = {task.id: [_WORD.findall(get_user_text(task))] for task in tasks}
    counts = Counter(word for (words,) in prompts.values() for word in set(words))
    fixed = {word for word, count in counts.items() if count >= _fixed_from(word) * len(tasks)}
    graded = set() if references is None else {path[0] for path in references.read}
    reads = []
    for task in tasks:
        values = {("prompt", name): value for name, value in _find_slots(prompts[task.id][0], fixed)}
        own = {name: one for name, one in task.fields.items() if name not in graded and _is_scalar(one)}
        values |= {("field", str(name)): str(one) for name, one in own.items()}
        parts = references.by_task[task.id].parts if references is not None and task.id in references.by_task else None
        values |= {("answer", name): str(one) for name, one in (parts or {}).items() if _is_scalar(one)}
        reads.append(ReadableValues(task, frozenset(prompts[task.id][0]), values))
    return reads


def _fixed_from(word: str) -> float:
    """Return the minimum share of prompts in which a word must appear to count as part of the question. The share is
    higher for codes and names, which usually belong to the task."""
    return 0.9 if any(map(str.isdigit, word)) else 2 * FIXED if word[0].isupper() else FIXED


def get_user_text(task: Task) -> str:
    """Return the text of a task's messages, except system messages."""
    return "\n".join(get_text(message) for message in task.messages if message.get("role") != "system")


def _find_slots(words: Sequence[str], fixed: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts between the words that belong to the question. The name of each text is the word before it and
    the number of times that this word has occurred."""
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


async def find_ways(subject: Subject, reads: Sequence[ReadableValues]) -> list[Way]:
    """Return at most MOST_KEPT ways to call the read-only tools that find something in the first tasks."""
    ends = time.monotonic() + SECONDS
    found: Counter[Way] = Counter()
    names = await find_reading_tools(subject)
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
                        stranger = make_strange(call)
                        unknown = (await execute(environment, name, dict(stranger.arguments))).content
                    result = await execute(environment, name, dict(call.arguments))
                    is_lost = is_refusal(result) or is_nothing(result.content) or result.content == unknown
                    if (not is_lost or not call.arguments) and str(call) not in seen:
                        seen.add(str(call))
                        found[way] += 1
    kept = [way for way, count in found.most_common() if count >= min(2, len(reads))]
    return kept[:MOST_KEPT]


def _candidates(subject: Subject, read: ReadableValues, name: str) -> Iterator[tuple[Way, Call]]:
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


def _values(read: ReadableValues, argument: str, schema: Mapping[str, Json]) -> Iterator[tuple[Role, Json]]:
    if "enum" in schema:
        yield from ((("always", str(one)), one) for one in schema["enum"])
        return
    if schema.get("type") == "boolean":
        yield from ((("always", str(one)), one) for one in (True, False))
        return
    near = sorted(read.values.items(), key=lambda item: item[0][1].lower() != argument.lower())
    for role, value in near:
        fitted = fit_to_schema(value, schema)
        if fitted is not None and not isinstance(fitted, list | dict):
            yield role, fitted


async def _call_all(subject: Subject, read: ReadableValues, ways: Sequence[Way], ends: float) -> None:
    if time.monotonic() > ends:
        return
    own = copy.deepcopy(read.task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        for way, call in list_calls(subject, read, ways):
            if environment.is_done or time.monotonic() > ends:
                break
            result = await execute(environment, call.tool, dict(call.arguments))
            if result.error is None:
                read.results[way] = (call, parse_result(result.content))


def list_calls(subject: Subject, read: ReadableValues, ways: Sequence[Way]) -> Iterator[tuple[Way, Call]]:
    """Yield the calls that these ways of calling produce in a task. A way is left out if the task lacks its values."""
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
                arguments[argument] = fit_to_schema(read.values[role], schema)
        is_whole = len(arguments) == len(roles) and None not in arguments.values()
        if is_whole and subject.problem_with(name, arguments) is None:
            yield way, Call(name, arguments)
