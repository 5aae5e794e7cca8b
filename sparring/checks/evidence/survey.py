"""Many calls to the read-only tools in one environment, so that rules can compare their results."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparring.checks.evidence.arguments import Known
from sparring.checks.evidence.explore import (
    Call,
    collect_known,
    explore_task,
    get_worked_sources,
    is_nothing,
    is_refusal,
)
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, list_calls_before, make_strange
from sparring.checks.evidence.returned_rows import find_fields, find_listings, parse_result
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.writing_tools import find_writing_tools
from sparring.checks.running.time_budget import Deadline
from sparring.environments import Environment, ToolResult, execute
from sparring.environments.base import reset
from sparring.types import Json, Task

NUM_TASKS = 5
"""The number of tasks with a survey."""
MOST_OF_A_TOOL = 40
"""The maximum number of calls to one tool in a survey."""
MOST_IN_VAIN = 12
"""A tool is not called again after this number of consecutive calls without a result."""
MOST_VALUES = 40
"""The maximum number of values of one argument."""
LONGEST_UNKNOWN = 80
"""The maximum length of a result that reports an unknown identifier."""
_IN_RANGE = 0.873
"""The relative position of an unknown integer identifier between the minimum and the maximum of its schema."""
SECONDS = 1.5
"""The time limit of one survey in seconds."""
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
class CallResult:
    """A call of a survey and its result."""

    call: Call
    result: ToolResult

    @property
    def value(self) -> Json:
        """The result as parsed JSON, or as text."""
        return parse_result(self.result.content)

    @property
    def fields(self) -> Mapping[str, Json]:
        """The scalars of the result, keyed by name."""
        return find_fields(self.value)

    @property
    def listings(self) -> Mapping[str, Sequence[Mapping[str, Json]]]:
        """The lists of the result as rows, keyed by name."""
        return find_listings(self.value)

    @property
    def shape(self) -> str:
        """The result with the arguments replaced by `*`. Results for two unknown identifiers have the same shape."""
        shape = self.result.content
        for value in sorted(map(str, self.call.arguments.values()), key=len, reverse=True):
            shape = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "*", shape) if value else shape
        return shape


@dataclass(slots=True)
class Survey:
    """The results of the read-only tools in one task."""

    task: Task
    opening: tuple[Call, ...] = ()
    """Calls that some tools need before they work."""
    results: list[CallResult] = field(default_factory=list)
    unknown: dict[str, CallResult] = field(default_factory=dict)
    """The answer of each tool to an unknown identifier."""

    def is_unknown(self, one: CallResult) -> bool:
        """Return True if a result reports an unknown identifier."""
        stranger = self.unknown.get(one.call.tool)
        return (
            is_refusal(one.result)
            or is_nothing(one.result.content)
            or (stranger is not None and stranger.result.content == one.result.content)
            or (stranger is not None and stranger.shape == one.shape)
        )

    def found(self, tool: str | None = None) -> list[CallResult]:
        """Return the calls to one tool or to all tools that found something."""
        return [one for one in self.results if tool in (None, one.call.tool) and not self.is_unknown(one)]


async def find_reading_tools(subject: Subject) -> list[str]:
    """Return the tools that change nothing, according to the effects of their calls and to their names."""
    writing = await find_writing_tools(subject)
    return [name for name in subject.tools if name not in writing and not is_worded_as_writing(subject, name)]


def is_worded_as_writing(subject: Subject, tool: str) -> bool:
    """Return True if the name of a tool begins with a verb of change, and its description does not begin like the
    description of a read-only tool."""
    name, text = _get_first_words(subject, tool)
    if not _WRITING.fullmatch(name) or _READING.fullmatch(text):
        return False
    description = str(subject.tools[tool].schema["function"].get("description", ""))
    return re.match(r"\w+ (?:of|and|by|in|for|from)\b", description) is None  # a noun


def is_worded_as_reading(subject: Subject, tool: str) -> bool:
    """Return True if the name or the description of a tool begins like that of a read-only tool, and neither describes
    a tool that writes. Return False without a description."""
    words = _get_first_words(subject, tool)
    is_reading = any(map(_READING.fullmatch, words)) and not is_worded_as_writing(subject, tool)
    return is_reading and bool(words[1])


def _get_first_words(subject: Subject, tool: str) -> tuple[str, str]:
    """Return the first words of a tool's name and description, in lower case."""
    description = str(subject.tools[tool].schema["function"].get("description", ""))
    return tuple((re.findall(r"[A-Z]?[a-z]+", text) or [""])[0].lower() for text in (tool, description))  # type: ignore[return-value]


def get_documentation(subject: Subject, tool: str) -> str:
    """Return the schema and docstring of a tool, in lower case."""
    method = getattr(subject.environment_class, tool, None)
    schema = subject.tools[tool].schema["function"]
    return f"{json.dumps(schema, ensure_ascii=False)} {inspect.getdoc(method) or ''}".lower()


def distinguishes_unknown(survey: Survey, tool: str) -> bool:
    """Return True if a tool reports unknown identifiers as missing."""
    unknown = survey.unknown.get(tool)
    if unknown is None or isinstance(unknown.value, bool | int | float):
        return False
    return is_refusal(unknown.result) or is_nothing(unknown.result.content) or len(unknown.shape) < LONGEST_UNKNOWN


async def survey_tasks(subject: Subject) -> list[Survey]:
    """Return surveys of the first sampled tasks, as many as the rule has time for."""
    found = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[: choose_num_tasks(subject, NUM_TASKS)]:
            found.append(await survey_task(subject, task))
    return found


def choose_num_tasks(subject: Subject, most: int) -> int:
    """Return the number of tasks to survey: `most`, or one if environments start slowly."""
    return 1 if subject.timing.episode_seconds > SLOW_SECONDS else most


async def survey_task(subject: Subject, task: Task) -> Survey:
    """Return the survey of a task, which is computed once."""
    known: dict[str, Survey] = subject.shared.setdefault("surveys", {})
    if task.id not in known:
        known[task.id] = await _survey(subject, task)
    return known[task.id]


async def _survey(subject: Subject, task: Task) -> Survey:
    names = await find_reading_tools(subject)
    found = await explore_task(subject, task)
    names = [name for name in names if found.legal(name)]
    befores = [await list_calls_before(subject, task, name) for name in names]
    survey = Survey(task, opening=max(befores, key=len, default=()))
    known = collect_known(subject, task)
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
            call = _make_unknown(subject, found.legal(name)[0].call)
            if call.arguments and call != found.legal(name)[0].call and not environment.is_done:
                survey.unknown[name] = await _ask(environment, call)
        for tool, call in _list_legal_first(found.tried, names):
            if not environment.is_done:
                survey.results.append(await _ask(environment, call))
                known.add_text(survey.results[-1].result.content, f"result of {tool}")
                known.add_legal(call.arguments)
        await _call_in_turn(subject, environment, known, survey, names, ends)
    _forget_equal_shapes(survey)
    return survey


async def _call_in_turn(
    subject: Subject, environment: Environment, known: Known, survey: Survey, names: Sequence[str], ends: Deadline
) -> None:
    """Call the tools in turn with likely arguments, and add the results to the survey, until there is nothing more to
    call or the time is over."""
    left = dict.fromkeys(names)
    in_vain = dict.fromkeys(names, 0)
    while left and not environment.is_done and not ends.is_over:
        for name in list(left):
            call = _choose_next(subject, known, survey, name)
            if call is None or environment.is_done:
                del left[name]
                continue
            received = await _ask(environment, call)
            survey.results.append(received)
            known.add_text(received.result.content, f"result of {name}")
            if not is_refusal(received.result):
                known.add_legal(call.arguments)
            in_vain[name] = in_vain[name] + 1 if survey.is_unknown(received) else 0
            num_calls = sum(one.call.tool == name for one in survey.results)
            if in_vain[name] >= MOST_IN_VAIN or num_calls >= MOST_OF_A_TOOL:
                del left[name]


def _make_unknown(subject: Subject, call: Call) -> Call:
    """Return the call with values that do not occur in any task. Integers stay within the limits of the schema."""
    properties = subject.tools[call.tool].schema["function"].get("parameters", {}).get("properties", {})
    arguments = dict(make_strange(call).arguments)
    for name, value in arguments.items():
        part = properties.get(name, {})
        if isinstance(value, int) and not isinstance(value, bool) and "maximum" in part:
            low = part.get("minimum", 0)
            arguments[name] = int(low + (part["maximum"] - low) * _IN_RANGE)
    return Call(call.tool, arguments)


def _list_legal_first(tried: Sequence, names: Sequence[str]) -> Iterator[tuple[str, Call]]:
    """Yield the explored legal calls to these tools, each once."""
    seen: set[str] = set()
    for one in tried:
        if one.call.tool in names and one.is_legal and str(one.call) not in seen:
            seen.add(str(one.call))
            yield one.call.tool, one.call


def _forget_equal_shapes(survey: Survey) -> None:
    """For tools that answer every call in the same way, remove the recorded answers to unknown identifiers, since these
    answers do not show what exists."""
    for name, stranger in list(survey.unknown.items()):
        shapes = {one.shape for one in survey.results if one.call.tool == name and not is_refusal(one.result)}
        if shapes <= {stranger.shape} and not is_refusal(stranger.result) and not is_nothing(stranger.result.content):
            del survey.unknown[name]


def _choose_next(subject: Subject, known: Known, survey: Survey, name: str) -> Call | None:
    """Return the most likely call of a tool that has not been made yet, or None."""
    asked = {str(one.call) for one in survey.results}
    schema = subject.tools[name].schema["function"].get("parameters", {})
    candidates = known.arguments(name, schema, get_worked_sources(subject))
    for arguments, _ in itertools.islice(candidates, 4 * MOST_OF_A_TOOL):
        call = Call(name, arguments)
        if str(call) not in asked and subject.problem_with(name, arguments) is None:
            return call
    return None


async def _ask(environment: Environment, call: Call) -> CallResult:
    return CallResult(call, await execute(environment, call.tool, dict(call.arguments)))


async def survey_steady_tools(subject: Subject) -> list[Survey]:
    """Return the surveys without the tools whose results depend on earlier calls. The rule `environment.order` reports
    such tools."""
    unsteady = subject.shared.get("unsteady tools", frozenset())
    return [
        replace(one, results=[result for result in one.results if result.call.tool not in unsteady])
        for one in await survey_tasks(subject)
    ]
