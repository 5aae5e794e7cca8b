"""Calls that write, in fresh environments, with the readable state before and after them."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from sparring.checks.evidence.arguments import Known, fit_to_schema, split_words
from sparring.checks.evidence.explore import Call, TriedCall, explore_task, is_nothing, is_refusal
from sparring.checks.evidence.legal_calls import combine_likeliest, list_calls_before
from sparring.checks.evidence.snapshots import STATE, Change, View, flatten, parse_content, refuses
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.writing_tools import find_writing_tools
from sparring.checks.running.time_budget import Deadline, OutOfTimeError
from sparring.environments import ToolResult, execute
from sparring.environments.base import final_state, reset
from sparring.types import Json, Task

NUM_TASKS = 3
LONGEST_READ = 50_000
"""The maximum length of a result that is read before and after each call that writes."""
SECONDS = 5.0
"""The time limit for the probes of all tasks, in seconds of CPU time."""
MOST_READS = 8
"""The maximum number of calls to one read-only tool in a view."""
MOST_VIEWED = 40
"""The maximum number of calls to all read-only tools in a view."""
MOST_COMBINED = 60
"""The maximum number of combinations of values to try until a tool accepts one."""
MOST_BASES = 8
"""The maximum number of calls to try until a call changes something."""
LOOK: Final = None
"""A step that calls all read-only tools."""
UNKNOWN_TEXT, UNKNOWN_NUMBER = "Xanthe 61", 987_654
PLAIN = "Quince 77"
TEXTS: Mapping[str, str] = {
    "plain": PLAIN,
    "long": "The courier from Eastbridge rang at seven and left two parcels with the porter, since neither neighbour was in; "
    "one of them is heavy, marked fragile, and should stay upright until somebody from the workshop collects it on Thursday "
    "before noon, or calls.",
    "accents": "Zoë Brandýs, Łódź – 東京",
    "blanks": "two  blanks inside",
    "lines": "first line\nsecond line",
    "case": "McDonald iPad XL",
    "quote": 'O\'Neil "ten" 100%',
}
"""Valid texts of several kinds."""
_NUMBERS = (7, 3, 2, 1, 37)


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """The results of the calls of one episode, and the view at each LOOK."""

    steps: tuple[Call | None, ...]
    results: tuple[ToolResult, ...]
    views: tuple[View, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """One call that writes, with its result and its changes. It follows the calls of `Bench.opening`."""

    call: Call
    result: ToolResult
    after: View
    changes: tuple[Change, ...]
    ended: bool
    parameter: str | None = None
    """The argument in which this call differs from a call that changes something, or None if this is that call."""
    kind: str = ""
    """The kind of the difference: a key of TEXTS, `unknown`, `known`, `spelling`, `number`, `member`."""

    @property
    def is_refused(self) -> bool:
        """True if the tool refused the call."""
        return refuses(self.result, self.call.arguments)

    @property
    def value(self) -> Json:
        """The value of the argument that differs, or None if no argument differs."""
        return None if self.parameter is None else self.call.arguments[self.parameter]


@final
@dataclass
class Bench:
    """The probes of one task: the read-only calls, their first results, and probes of the tools that write."""

    subject: Subject
    task: Task
    known: Known = field(default_factory=Known)
    opening: tuple[Call, ...] = ()
    readers: tuple[Call, ...] = ()
    writing: frozenset[str] = frozenset()
    """The tools that write, and the tools without a legal call, since these may write."""
    first: View = field(default_factory=lambda: View({}))
    """The view before any call that writes."""
    bases: dict[str, list[Probe]] = field(default_factory=dict)
    """For each tool that writes, calls that change something, with different identifiers if there are any."""
    identifying: dict[tuple[str, str], bool] = field(default_factory=dict)
    """For each tested pair of a tool that writes and its argument, True if the argument identifies an existing item."""
    probes: list[Probe] = field(default_factory=list)
    """All probes."""
    carried: list[Change] = field(default_factory=list)
    """Differences between the first view and the view of a fresh episode after all probes."""

    async def run(self, steps: Sequence[Call | None]) -> ProbeRun:
        """Make calls after the opening in a fresh environment, and read the state at each LOOK. Raises the same errors
        as `Subject.opened`."""
        own = copy.deepcopy(self.task)
        results: list[ToolResult] = []
        views: list[View] = []
        ended = False
        async with self.subject.opened(own) as environment:
            await reset(environment, own)
            for one in self.opening:
                await execute(environment, one.tool, dict(one.arguments))
            for step in steps:
                if step is not None:
                    results.append(await execute(environment, step.tool, copy.deepcopy(dict(step.arguments))))
                    ended = ended or bool(environment.is_done)
                    continue
                leaves = dict(flatten(await final_state(environment, self.task), (STATE,)))
                for reader in () if ended else self.readers:
                    result = await execute(environment, reader.tool, dict(reader.arguments))
                    if not refuses(result, reader.arguments):
                        leaves |= flatten(
                            parse_content(result.content), (reader.tool, *map(str, reader.arguments.values()))
                        )
                views.append(View(leaves))
        return ProbeRun(tuple(steps), tuple(results), tuple(views), ended)

    async def probed(self, call: Call, parameter: str | None = None, kind: str = "") -> Probe:
        """Make one call that writes, and return it with its changes."""
        played = await self.run([call, LOOK])
        changes = tuple(self.first.changes_to(played.views[0]))
        probe = Probe(call, played.results[0], played.views[0], changes, played.ended, parameter, kind)
        self.probes.append(probe)
        return probe

    def schema(self, tool: str) -> Mapping[str, Json]:
        """Return the JSON Schema of a tool's arguments."""
        return self.subject.tools[tool].schema["function"].get("parameters", {})

    def is_allowed(self, call: Call) -> bool:
        """Return True if the arguments of a call fit the schema."""
        return self.subject.problem_with(call.tool, call.arguments) is None

    def is_known(self, value: Json) -> bool:
        """Return True if a value is the name of an item in the first view, or an argument of a read-only call."""
        return not isinstance(value, bool | float) and str(value) in self.first.names

    def keys(self, call: Call) -> list[str]:
        """Return the arguments that identify existing items."""
        properties = self.schema(call.tool).get("properties", {})
        return [
            name
            for name, value in call.arguments.items()
            if "enum" not in properties.get(name, {}) and self.identifying.get((call.tool, name), self.is_known(value))
        ]

    def choices(self, tool: str, name: str) -> list[Json]:
        """Return values for an argument, the most likely first."""
        part = self.schema(tool).get("properties", {}).get(name, {})
        if "enum" in part:
            return list(part["enum"])
        own = [one.call.arguments[name] for one in _legal(self, tool) if name in one.call.arguments]
        asked = [value for one in self.readers for value in one.arguments.values()]
        same = [one.arguments[name] for one in self.readers if name in one.arguments]
        ranked = [one.value for one in self.known.ranked(tool, name, part, ())]
        is_number = _kind(part) in ("integer", "number")
        found: dict[str, Json] = {}
        for value in (*own[:3], *same, *ranked[:4], *asked, *ranked[4:], *(_NUMBERS if is_number else ())):
            fitted = fit_to_schema(value, part)
            if fitted is not None:
                found.setdefault(str(fitted), fitted)
        ordered = list(found.values())
        ordered.sort(key=lambda one: not self.is_known(one))
        if is_number and not same:
            names, others = ordered[: sum(map(self.is_known, ordered))], [one for one in _NUMBERS if str(one) in found]
            mixed = [one for pair in itertools.zip_longest(names, others) for one in pair if one is not None]
            return list(dict.fromkeys((*mixed, *ordered)))
        # An identifier that is the beginning of another identifier reveals a tool that confuses the two.
        begins = {
            str(one) for one in ordered if any(str(two) != str(one) and str(two).startswith(str(one)) for two in found)
        }
        return sorted(ordered, key=lambda one: not (self.is_known(one) and str(one) in begins))


def _legal(bench: Bench, tool: str) -> list[TriedCall]:
    return bench.subject.shared["explored"][bench.task.id].legal(tool)


def _kind(part: Mapping[str, Json]) -> str:
    for one in (part, *part.get("anyOf", ())):
        if isinstance(one.get("type"), str) and one["type"] != "null":
            return one["type"]
    return ""


def is_number_part(part: Mapping[str, Json], *, whole: bool) -> bool:
    """Return True if a schema accepts numbers; with `whole` False, only if it accepts fractions."""
    return _kind(part) == "number" or (whole and _kind(part) == "integer")


def show_write(bench: Bench, probe: Probe, changes: Iterable[Change], *, most: int = 8) -> dict[str, Json]:
    """Return the evidence of a call that writes: the call, its result, and the first `most` changes."""
    return {
        "task": bench.task.id,
        "call": str(probe.call),
        "answer": probe.result.content[:200],
        "changed": [one.as_json() for one in itertools.islice(changes, most)],
    }


async def probe_writing_tools(subject: Subject) -> list[Bench]:
    """Return the probes for a few tasks of the tools that write. They are computed once."""
    if "benches" not in subject.shared:
        made: list[Bench] = []
        subject.shared["benches"] = made
        ends = Deadline(SECONDS)
        with subject.timing.as_far_as_it_goes():
            writing = await find_writing_tools(subject)
            for task in subject.sample[:NUM_TASKS]:
                if made and ends.is_over:
                    break
                bench = Bench(subject, task)
                if await _prepare(bench, writing):
                    made.append(bench)
                    await _probe(bench, ends)
                    made += await _set_up(bench, ends)
    return subject.shared["benches"]


async def _prepare(bench: Bench, writing: frozenset[str]) -> bool:
    """Find the read-only calls and their first results. Return True if there is anything to probe."""
    subject, task = bench.subject, bench.task
    found = await explore_task(subject, task)
    bench.known.add_json(task.fields, "field")
    for message in task.messages:
        bench.known.add_text(str(message.get("content")), "prompt")
    for tried in found.tried:
        if tried.is_legal:
            bench.known.add_text(tried.result.content, f"result of {tried.call.tool}")
            bench.known.add_legal(tried.call.arguments)
    bench.opening = await _find_opening(bench)
    reading = [name for name in subject.tools if name not in writing and found.legal(name)]
    reading = [name for name in reading if not await _changes_something(bench, name)]
    calls = [one for name in reading for one in _reads(bench, name)]
    steady = await _find_steady_calls(bench, calls)
    if steady is None:
        return False
    bench.readers = tuple(_pick_some(steady))
    bench.writing = frozenset(name for name in subject.tools if name not in reading)
    if not await _look_twice(bench):
        return False
    # A tool may change something only if it is called with two different values.
    others = {
        name for name in reading if bench.schema(name).get("properties") and await _changes_something(bench, name)
    }
    bench.writing |= others
    bench.readers = tuple(one for one in bench.readers if one.tool not in others)
    return await _look_twice(bench)


async def _find_opening(bench: Bench) -> tuple[Call, ...]:
    """Return the calls that other tools need before they accept any call."""
    opening: dict[str, Call] = {}
    for name in bench.subject.tools:
        before = await list_calls_before(bench.subject, bench.task, name)
        if before and not await _works_alone(bench, name):
            opening |= {str(one): one for one in before}
    return tuple(opening.values())[:6]


async def _find_steady_calls(bench: Bench, calls: Sequence[Call]) -> list[Call] | None:
    """Return the calls that return the same short result twice, or None if the calls end the episode. Calls that
    return nothing are left out if the tool returns something for another call."""
    own = copy.deepcopy(bench.task)
    answers: list[dict[str, str]] = []
    async with bench.subject.opened(own) as environment:
        await reset(environment, own)
        for one in bench.opening:
            await execute(environment, one.tool, dict(one.arguments))
        for _ in range(2):
            results = [(str(one), await execute(environment, one.tool, dict(one.arguments))) for one in calls]
            answers.append({one: result.content for one, result in results if not is_refusal(result)})
            if environment.is_done:
                return None
    first, again = answers
    for name in {one.tool for one in calls}:
        if any(not is_nothing(first.get(str(one), "")) for one in calls if one.tool == name):
            calls = [one for one in calls if one.tool != name or not is_nothing(first.get(str(one), ""))]
    steady = [one for one in calls if str(one) in first and first[str(one)] == again.get(str(one))]
    return [one for one in steady if len(first[str(one)]) <= LONGEST_READ]


async def _look_twice(bench: Bench) -> bool:
    """Read the first view. Return True if this view is the same in two episodes."""
    bench.first, again = [(await bench.run([LOOK])).views[0] for _ in range(2)]
    return not bench.first.changes_to(again)


async def _changes_something(bench: Bench, tool: str) -> bool:
    """Return True if calls with different values change the results of the other read-only tools, or the final
    state."""
    if not bench.schema(tool).get("properties"):
        return False
    readers = bench.readers
    bench.readers = tuple(one for one in readers if one.tool != tool)
    try:
        calls = _combine_values(bench, tool)[: MOST_COMBINED // 2]
        before, after = (await bench.run([LOOK, *calls, LOOK])).views
    finally:
        bench.readers = readers
    return bool(before.changes_to(after))


async def _works_alone(bench: Bench, tool: str) -> bool:
    """Return True if a tool accepts some call in a fresh environment."""
    legal = [one.call for one in _legal(bench, tool)]
    calls = [one for name in legal[0].arguments for one in _list_with_choices(bench, legal[0], name)]
    played = await bench.run([*legal, *calls])
    return any(not refuses(one, call.arguments) for call, one in zip((*legal, *calls), played.results, strict=True))


def _list_with_choices(bench: Bench, call: Call, name: str) -> Iterator[Call]:
    for value in bench.choices(call.tool, name)[: 3 * MOST_READS]:
        varied = Call(call.tool, {**call.arguments, name: value})
        if bench.is_allowed(varied):
            yield varied


def _reads(bench: Bench, tool: str) -> Iterator[Call]:
    """Return legal calls to a read-only tool, and the same calls with one value changed."""
    legal = [one.call for one in _legal(bench, tool)]
    calls = {str(one): one for one in legal}
    for name in legal[0].arguments:
        for call in _list_with_choices(bench, legal[0], name):
            calls.setdefault(str(call), call)
    return iter(calls.values())


def _pick_some(calls: Sequence[Call]) -> Iterator[Call]:
    by_tool: dict[str, list[Call]] = {}
    for one in calls:
        by_tool.setdefault(one.tool, []).append(one)
    each = max(2, min(MOST_READS, MOST_VIEWED // max(1, len(by_tool))))
    return itertools.islice((one for some in by_tool.values() for one in some[:each]), MOST_VIEWED)


async def _set_up(bench: Bench, ends: Deadline) -> list[Bench]:
    """Return benches whose opening contains a call that writes, for tools that change nothing at first. For example, an
    item must be lent before it can be returned."""
    found: list[Bench] = []
    idle = set(bench.writing - bench.bases.keys())
    for bases in list(bench.bases.values()):
        if not idle or ends.is_over or bases[0].ended:
            break
        other = Bench(
            bench.subject, bench.task, copy.deepcopy(bench.known), (*bench.opening, bases[0].call), bench.readers
        )
        other.known.add_text(bases[0].result.content, f"result of {bases[0].call.tool}")
        other.known.add_legal(bases[0].call.arguments)
        other.writing = frozenset(idle)
        if await _look_twice(other):
            await _probe(other, ends)
            if other.bases:
                found.append(other)
                idle -= other.bases.keys()
    return found


async def _probe(bench: Bench, ends: Deadline) -> None:
    """Probe the tools that write."""
    try:
        for name in (name for name in bench.subject.tools if name in bench.writing):
            if not ends.is_over:
                await _find_bases(bench, name)
        varied = [_vary(bench, probe) for found in list(bench.bases.values()) for probe in found[:1]]
        # The tools alternate, so that each tool is probed even if time is short.
        for some in itertools.zip_longest(*varied):
            for call, name, kind in filter(None, some):
                if not ends.is_over:
                    await bench.probed(call, name, kind)
    except OutOfTimeError:
        if not bench.probes:
            raise
    last = await bench.run([LOOK])
    bench.carried = bench.first.changes_to(last.views[0])


async def _find_bases(bench: Bench, tool: str) -> None:
    """Find at most two calls to a tool that change something, with different identifiers if the tool takes
    identifiers."""
    num_played = 0
    for call in await _candidates(bench, tool):
        if num_played == MOST_BASES or len(bench.bases.get(tool, ())) == 2:
            return
        found = bench.bases.get(tool, [])
        if found and not any(
            call.arguments.get(key) != found[0].call.arguments[key] for key in bench.keys(found[0].call)
        ):
            continue
        num_played += 1
        probe = await bench.probed(call)
        if probe.changes and not probe.is_refused:
            if tool not in bench.bases:
                await _find_keys(bench, probe)
                free = Call(tool, {**call.arguments, **_choose_other_values(bench, call)})
                again = probe if str(free) == str(call) else await bench.probed(free)
                probe = again if again.changes and not again.is_refused else probe
            bench.bases.setdefault(tool, []).append(probe)


async def _find_keys(bench: Bench, base: Probe) -> None:
    """Find the arguments that identify existing items. With an unknown value, the tool changes nothing, or it creates
    an item with that name."""
    properties = bench.schema(base.call.tool).get("properties", {})
    for name, value in base.call.arguments.items():
        if isinstance(value, bool | float) or not isinstance(value, str | int) or "enum" in properties.get(name, {}):
            continue
        unknown = UNKNOWN_TEXT if isinstance(value, str) else UNKNOWN_NUMBER
        if not _fits(bench, base.call, name, unknown):
            continue
        probe = await bench.probed(Call(base.call.tool, {**base.call.arguments, name: unknown}), name, "unknown")
        is_listed = any(str(unknown) in one.path and one.after != unknown for one in probe.changes)
        is_without_effect = not probe.changes or probe.is_refused
        bench.identifying[base.call.tool, name] = is_listed or (is_without_effect and bench.is_known(value))


async def _candidates(bench: Bench, tool: str) -> list[Call]:
    """Return calls that are likely to change something, because their values differ from each other and from the
    existing values."""
    legal = [one.call for one in _legal(bench, tool)]
    apart = _combine_values(bench, tool)
    if not apart:
        return legal[:1] or [Call(tool, {})]
    own = [Call(tool, {**one.arguments, **_choose_other_values(bench, one)}) for one in legal]
    calls = {str(one): one for one in (*own[:1], *_renew_texts(bench, apart[0]), *own[1:], *legal)}
    own_environment = await bench.run(apart[:MOST_COMBINED])
    for one, result in zip(apart, own_environment.results, strict=False):
        if not refuses(result, one.arguments):
            other = Call(tool, {**one.arguments, **_choose_other_values(bench, one)})
            calls |= {str(two): two for two in (other, one)}
    calls |= {str(one): one for one in apart[:2]}
    return [one for one in calls.values() if bench.is_allowed(one)]


def _renew_texts(bench: Bench, call: Call) -> list[Call]:
    """Return the call with new texts in all text arguments, which a tool that creates something may need."""
    texts = [name for name, value in call.arguments.items() if isinstance(value, str)]
    fresh = dict(zip(texts, (PLAIN, "Medlar 78", "Sorrel 79"), strict=False))
    free = {name: text for name, text in fresh.items() if _fits(bench, call, name, text)}
    return [Call(call.tool, {**call.arguments, **free})] if free else []


def _combine_values(bench: Bench, tool: str) -> list[Call]:
    """Return calls with likely values that all differ, the most likely first."""
    schema = bench.schema(tool)
    required = [name for name in schema.get("properties", {}) if name in schema.get("required", ())]
    legal = [one.call for one in _legal(bench, tool)]
    pools = {
        name: bench.choices(tool, name)[:8]
        for name in dict.fromkeys((*required, *(legal[0].arguments if legal else ())))
    }
    together = combine_likeliest(list(pools.values()))
    combined = (Call(tool, dict(zip(pools, values, strict=True))) for values in together)
    return [one for one in combined if one.arguments and _are_apart(one) and bench.is_allowed(one)]


def _are_apart(call: Call) -> bool:
    """Return True if no two strings and no two numbers in a call are equal. A payer and a payee, for example, must
    differ."""
    values = [str(one) for one in call.arguments.values() if not isinstance(one, bool)]
    return len(set(values)) == len(values)


def _choose_other_values(bench: Bench, call: Call) -> dict[str, Json]:
    """Return new values for the arguments that do not identify anything."""
    keys = bench.keys(call)
    properties = bench.schema(call.tool).get("properties", {})
    others: dict[str, Json] = {}
    for name, value in call.arguments.items():
        part = properties.get(name, {})
        if name in keys:
            continue
        if "enum" in part:
            others[name] = part["enum"][-1] if value != part["enum"][-1] else part["enum"][0]
        elif isinstance(value, bool):
            others[name] = not value
        elif isinstance(value, int | float):
            others[name] = next((one for one in _NUMBERS if one != value and _fits(bench, call, name, one)), value)
        elif isinstance(value, str) and value and _is_free(bench, call, name) and _fits(bench, call, name, PLAIN):
            others[name] = PLAIN
    return others


def _is_free(bench: Bench, call: Call, name: str) -> bool:
    """Return True if an argument accepts any text: an arbitrary text was tried, or the argument's value does not look
    like a code."""
    return bench.identifying.get((call.tool, name)) is False or not re.search(r"\d", str(call.arguments[name]))


def _fits(bench: Bench, call: Call, name: str, value: Json) -> bool:
    return bench.is_allowed(Call(call.tool, {**call.arguments, name: value}))


def _vary(bench: Bench, base: Probe) -> Iterator[tuple[Call, str, str]]:
    """Yield (call, argument, kind) for each change to one argument of a call that changes something."""
    call = base.call
    properties = bench.schema(call.tool).get("properties", {})
    keys = bench.keys(call)
    for name, value in call.arguments.items():
        part = properties.get(name, {})
        others: list[tuple[Json, str]] = []
        if "enum" in part:
            others = [(one, "member") for one in part["enum"][:5]]
        elif isinstance(value, bool):
            others = [(not value, "member")]
        elif isinstance(value, str):
            others += [(one, "known") for one in bench.choices(call.tool, name)[:5]]
            others += [(one, "spelling") for one in _spell_otherwise(bench, value) if name in keys]
            others += [] if name in keys else [(text, kind) for kind, text in TEXTS.items()]
        elif isinstance(value, int | float):
            bounds = [part[bound] for bound in ("minimum", "maximum") if bound in part]
            others += [(one, "known") for one in bench.choices(call.tool, name)[:4] if name in keys]
            others += [(one, "number") for one in (*_NUMBERS[:2], 0, -5, *bounds)]
            others += [(12.34, "number")] if _kind(part) == "number" else []
        for other, kind in others:
            varied = Call(call.tool, {**call.arguments, name: other})
            if other != value and bench.is_allowed(varied):
                yield varied, name, kind


def _spell_otherwise(bench: Bench, value: str) -> list[str]:
    """Return a name in the spelling of other tools, and with its case swapped."""
    found = sorted(one for one in bench.first.names if one != value and one.casefold() == value.casefold())
    return [*found, value.swapcase()][:2] if value != value.swapcase() else found[:1]


def get_description(bench: Bench, tool: str) -> str:
    """Return the text about a tool: its description, the descriptions of its arguments, and its docstring."""
    function = bench.subject.tools[tool].schema["function"]
    parts = function.get("parameters", {}).get("properties", {}).values()
    method = getattr(bench.subject.environment_class, tool, None)
    texts = [
        function.get("description", ""),
        *(one.get("description", "") for one in parts),
        getattr(method, "__doc__", ""),
    ]
    return " ".join(str(one or "") for one in texts)


def documents(bench: Bench, tool: str, *stems: str) -> bool:
    """Return True if the text about a tool contains a word that begins with one of these strings."""
    return re.search(rf"\b(?:{'|'.join(stems)})", get_description(bench, tool), re.IGNORECASE) is not None


def describes(bench: Bench, pattern: str) -> bool:
    """Return True if the prompt matches the pattern."""
    return any(re.search(pattern, str(one.get("content")), re.IGNORECASE) for one in bench.task.messages)


def split_path(path: Sequence[str]) -> set[str]:
    """Return the words of all parts of a path."""
    return {word for part in path for word in split_words(part)}
