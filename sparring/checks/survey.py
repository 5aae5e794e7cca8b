"""Many calls of the tools that read, in one environment: what they say of the same things is then compared."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparring.checks.arguments import Known
from sparring.checks.calls import SLOW_SECONDS, before_legal, strange
from sparring.checks.explore import Call, explored, is_nothing, is_refusal, known_of, worked_sources
from sparring.checks.rows import fields_in, listings_in, parsed
from sparring.checks.subject import Subject
from sparring.checks.timing import Deadline
from sparring.checks.writes import writing_tools
from sparring.environments import Environment, ToolResult, execute
from sparring.environments.base import reset
from sparring.types import Json, Task

NUM_TASKS = 5
"""In which the tools are asked."""
MOST_OF_A_TOOL = 40
"""Calls of one tool in a survey."""
MOST_IN_VAIN = 12
"""Calls of one tool in a row that find nothing, after which it is left alone."""
MOST_VALUES = 40
"""Values of one argument."""
LONGEST_UNKNOWN = 80
"""Characters of a text that says that something is not there."""
SECONDS = 1.5
"""What one survey may take."""
_WRITING = re.compile(
    r"add|append|apply|approve|archive|assign|ban|book|buy|cancel|change|checkout|clear|close|commit|"
    r"confirm|copy|create|deduct|delete|deliver|deposit|discard|drop|edit|empty|enter|enrol|execute|"
    r"finish|give|go|insert|issue|join|leave|lend|lock|log|make|mark|merge|move|open|order|pay|"
    r"place|post|press|publish|push|put|queue|record|refund|register|reject|release|remove|rename|"
    r"replace|reply|report|reschedule|reserve|reset|resolve|restore|return|rewind|save|select|sell|"
    r"send|set|ship|sign|start|stop|store|submit|swap|switch|take|toggle|transfer|turn|undo|unlock|"
    r"update|upload|use|walk|withdraw|write|hand"
)
"""First words of the names and texts of tools that change something."""
_READING = re.compile(
    r"a|all|an|any|browse|calculate|check|compare|compute|count|describe|details|display|every|"
    r"everybody|everything|fetch|find|get|has|how|is|list|load|lookup|look|names|number|one|overview|"
    r"peek|query|read|retrieve|search|show|shows|status|sum|summarise|summarize|summary|tell|tells|"
    r"text|texts|the|these|those|titles|total|view|what|when|where|whether|which|who"
)
"""First words of the names and texts of tools that read."""


@dataclass(frozen=True, slots=True)
class Said:
    """A call of a survey, and what came back."""

    call: Call
    result: ToolResult

    @property
    def value(self) -> Json:
        return parsed(self.result.content)

    @property
    def fields(self) -> Mapping[str, Json]:
        return fields_in(self.value)

    @property
    def listings(self) -> Mapping[str, Sequence[Mapping[str, Json]]]:
        return listings_in(self.value)

    @property
    def shape(self) -> str:
        """The result without what was asked for: what two answers to unknown things have in common."""
        shape = self.result.content
        for value in sorted(map(str, self.call.arguments.values()), key=len, reverse=True):
            shape = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "*", shape) if value else shape
        return shape


@dataclass(slots=True)
class Survey:
    """What tools that read said in one task."""

    task: Task
    opening: tuple[Call, ...] = ()
    """Calls that some tools need before them."""
    said: list[Said] = field(default_factory=list)
    unknown: dict[str, Said] = field(default_factory=dict)
    """By tool, what it says of a thing that is not there."""

    def is_unknown(self, one: Said) -> bool:
        """Whether a result says that there is no such thing."""
        stranger = self.unknown.get(one.call.tool)
        return (
            is_refusal(one.result)
            or is_nothing(one.result.content)
            or (stranger is not None and stranger.result.content == one.result.content)
            or (stranger is not None and stranger.shape == one.shape)
        )

    def found(self, tool: str | None = None) -> list[Said]:
        """The calls, of one tool or all, that found something."""
        return [one for one in self.said if tool in (None, one.call.tool) and not self.is_unknown(one)]


async def reading_tools(subject: Subject) -> list[str]:
    """The tools that change nothing, by what their calls do and by their names."""
    writing = await writing_tools(subject)
    return [name for name in subject.tools if name not in writing and not is_worded_as_writing(subject, name)]


def is_worded_as_writing(subject: Subject, tool: str) -> bool:
    """Whether the name of a tool begins with a verb of change, and its description does not begin as of one that reads."""
    name, text = _first_words(subject, tool)
    if not _WRITING.fullmatch(name) or _READING.fullmatch(text):
        return False
    description = str(subject.tools[tool].schema["function"].get("description", ""))
    return re.match(r"\w+ (?:of|and|by|in|for|from)\b", description) is None  # a noun


def is_worded_as_reading(subject: Subject, tool: str) -> bool:
    """Whether name or description of a tool begin as those of tools that read do, and neither with a verb of change; not
    without a description."""
    words = _first_words(subject, tool)
    is_reading = any(map(_READING.fullmatch, words)) and not is_worded_as_writing(subject, tool)
    return is_reading and bool(words[1])


def _first_words(subject: Subject, tool: str) -> tuple[str, str]:
    """Of the name and of the description of a tool, in lower case."""
    description = str(subject.tools[tool].schema["function"].get("description", ""))
    return tuple((re.findall(r"[A-Z]?[a-z]+", text) or [""])[0].lower() for text in (tool, description))  # type: ignore[return-value]


def documented(subject: Subject, tool: str) -> str:
    """All that is written about a tool, in lower case: its schema, and its whole docstring."""
    method = getattr(subject.environment_class, tool, None)
    schema = subject.tools[tool].schema["function"]
    return f"{json.dumps(schema, ensure_ascii=False)} {inspect.getdoc(method) or ''}".lower()


def tells_unknown(survey: Survey, tool: str) -> bool:
    """Whether a tool says of unknown things that they are not there."""
    unknown = survey.unknown.get(tool)
    if unknown is None or isinstance(unknown.value, bool | int | float):
        return False
    return is_refusal(unknown.result) or is_nothing(unknown.result.content) or len(unknown.shape) < LONGEST_UNKNOWN


async def surveys(subject: Subject) -> list[Survey]:
    """A survey of each of the first sampled tasks, as far as the time of the rule goes."""
    found = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[: num_tasks(subject, NUM_TASKS)]:
            found.append(await surveyed(subject, task))
    return found


def num_tasks(subject: Subject, most: int) -> int:
    """In how many tasks to look: in one, where environments start slowly."""
    return 1 if subject.timing.episode_seconds > SLOW_SECONDS else most


async def surveyed(subject: Subject, task: Task) -> Survey:
    """What tools that read say in a task; asked once."""
    known: dict[str, Survey] = subject.shared.setdefault("surveys", {})
    if task.id not in known:
        known[task.id] = await _survey(subject, task)
    return known[task.id]


async def _survey(subject: Subject, task: Task) -> Survey:
    names = await reading_tools(subject)
    found = await explored(subject, task)
    names = [name for name in names if found.legal(name)]
    befores = [await before_legal(subject, task, name) for name in names]
    survey = Survey(task, opening=max(befores, key=len, default=()))
    known = known_of(subject, task)
    known.most = MOST_VALUES
    own = copy.deepcopy(task)
    ends = Deadline(SECONDS)
    async with subject.opened(own) as environment:
        for message in await reset(environment, own):
            known.add_text(str(message.get("content") or ""), "prompt")
        for call in survey.opening:
            result = await execute(environment, call.tool, dict(call.arguments))
            known.add_text(result.content, f"result of {call.tool}")
        for name in names:
            call = strange(found.legal(name)[0].call)
            if call.arguments and call != found.legal(name)[0].call and not environment.is_done:
                survey.unknown[name] = await _ask(environment, call)
        for tool, call in _legal_first(found.tried, names):
            if not environment.is_done:
                survey.said.append(await _ask(environment, call))
                known.add_text(survey.said[-1].result.content, f"result of {tool}")
                known.add_legal(call.arguments)
        left = dict.fromkeys(names)
        in_vain = dict.fromkeys(names, 0)
        while left and not environment.is_done and not ends.is_over:
            for name in list(left):
                call = _next(subject, known, survey, name)
                if call is None or environment.is_done:
                    del left[name]
                    continue
                said = await _ask(environment, call)
                survey.said.append(said)
                known.add_text(said.result.content, f"result of {name}")
                if not is_refusal(said.result):
                    known.add_legal(call.arguments)
                in_vain[name] = in_vain[name] + 1 if survey.is_unknown(said) else 0
                if in_vain[name] >= MOST_IN_VAIN or sum(one.call.tool == name for one in survey.said) >= MOST_OF_A_TOOL:
                    del left[name]
    _forget_equal_shapes(survey)
    return survey


def _legal_first(tried: Sequence, names: Sequence[str]) -> Iterator[tuple[str, Call]]:
    """The calls of these tools that were legal when they were explored, each once."""
    seen: set[str] = set()
    for one in tried:
        if one.call.tool in names and one.is_legal and str(one.call) not in seen:
            seen.add(str(one.call))
            yield one.call.tool, one.call


def _forget_equal_shapes(survey: Survey) -> None:
    """A tool that answers everything alike says nothing about what is there."""
    for name, stranger in list(survey.unknown.items()):
        shapes = {one.shape for one in survey.said if one.call.tool == name and not is_refusal(one.result)}
        if shapes <= {stranger.shape} and not is_refusal(stranger.result) and not is_nothing(stranger.result.content):
            del survey.unknown[name]


def _next(subject: Subject, known: Known, survey: Survey, name: str) -> Call | None:
    """The likeliest call of a tool that was not made yet."""
    asked = {str(one.call) for one in survey.said}
    schema = subject.tools[name].schema["function"].get("parameters", {})
    candidates = known.arguments(name, schema, worked_sources(subject))
    for arguments, _ in itertools.islice(candidates, 4 * MOST_OF_A_TOOL):
        call = Call(name, arguments)
        if str(call) not in asked and subject.problem_with(name, arguments) is None:
            return call
    return None


async def _ask(environment: Environment, call: Call) -> Said:
    return Said(call, await execute(environment, call.tool, dict(call.arguments)))


async def steady_surveys(subject: Subject) -> list[Survey]:
    """The surveys without what tools said whose answers depend on what was called before, which `environment.order` names."""
    unsteady = subject.shared.get("unsteady tools", frozenset())
    return [
        replace(one, said=[said for said in one.said if said.call.tool not in unsteady])
        for one in await surveys(subject)
    ]
