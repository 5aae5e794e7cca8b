"""A search for legal calls to every tool. It makes calls, reads their results, and uses the values in the results for
the next calls."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sparring.agents.scripts import Call
from sparring.checks.evidence.arguments import Known
from sparring.checks.evidence.literals import find_compared
from sparring.checks.evidence.model_episodes import run_reference_baseline
from sparring.checks.evidence.own_data import unpack
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.user_inputs import list_calls
from sparring.checks.running.time_budget import Deadline, OutOfTimeError, UndecidedError
from sparring.data.files import read_rows
from sparring.environments import ToolError, ToolResult, execute
from sparring.environments.base import reset
from sparring.runtime.plugins import load_object
from sparring.types import Json, Message, Task

MOST_TRIES = 24
"""The maximum number of calls to one tool in one environment."""
NUM_ENVIRONMENTS = 3
"""The search in a task ends after this number of consecutive fresh environments without a legal call of another
tool."""
SECONDS = 1.0
"""After this time in seconds, the search in a task ends as soon as one environment brings no success, or if the missing
tools have legal calls in other tasks."""
NUM_DEMONSTRATIONS = 16
"""The number of demonstrations of the warm start whose calls are tried."""
MOST_LEGAL = 3
"""The number of legal calls to one tool to look for in a task."""

Worked: TypeAlias = Mapping[tuple[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class TriedCall:
    """A call, its result, and the calls before it in the same environment."""

    call: Call
    result: ToolResult
    before: tuple[Call, ...]
    line: str | None
    """The innermost line of the user's code that raised an exception, or None if the user's code raised none."""

    @property
    def is_legal(self) -> bool:
        """True if the tool accepted the call."""
        return not is_refusal(self.result)

    @property
    def is_informative(self) -> bool:
        """True if the tool accepted the call and returned a result that is not empty."""
        return self.is_legal and not is_nothing(self.result.content)


@dataclass(slots=True)
class Explored:
    """The calls that were tried in one task."""

    task: Task
    tried: list[TriedCall] = field(default_factory=list)

    def legal(self, tool: str) -> list[TriedCall]:
        """Return the legal calls to a tool. Calls with a result that is not empty come first. Among these, and among
        the others, calls that need no earlier calls come first."""
        legal = [one for one in self.tried if one.call.tool == tool and one.is_legal]
        return sorted(legal, key=lambda one: (not one.is_informative, bool(one.before)))

    def of(self, tool: str) -> list[TriedCall]:
        """Return all calls to a tool."""
        return [one for one in self.tried if one.call.tool == tool]

    @property
    def script(self) -> list[Call]:
        """One legal call of each tool, after the calls that it needs, in the order in which they were found. Then one
        call of each tool that has no known legal call."""
        calls: dict[str, Call] = {}
        reached: set[str] = set()
        best = {
            tool: self.legal(tool)[0] for tool in dict.fromkeys(one.call.tool for one in self.tried) if self.legal(tool)
        }
        for one in self.tried:
            if best.get(one.call.tool) is one:
                calls |= {str(call): call for call in (*one.before, one.call)}
                reached.add(one.call.tool)
        failing = {one.call.tool: one.call for one in reversed(self.tried) if one.call.tool not in reached}
        return [*calls.values(), *failing.values()]


def is_nothing(content: str) -> bool:
    """Return True if a result is empty: no text, null, or an empty object or list."""
    return content.strip() in ("", "null", "{}", "[]", '""', "None")


def is_refusal(result: ToolResult) -> bool:
    """Return True if a result is an error, or reports a failure in its text."""
    if result.error is not None:
        return True
    text = result.content.strip()
    try:
        value = json.loads(text) if text[:1] in ("{", '"') else text
    except ValueError:
        value = text
    if isinstance(value, Mapping):
        status = str(value.get("status", "")).lower()
        named = any(value.get(name) for name in ("error", "errors", "Error", "error_message"))
        return named or value.get("success") is False or value.get("found") is False or status in _BAD_STATUS
    if not isinstance(value, str):
        return False
    lowered = value.strip().lower()
    return lowered.startswith(_REFUSALS) or (len(lowered) <= LONGEST_REFUSAL and _NOT_THERE.search(lowered) is not None)


LONGEST_REFUSAL = 100
"""The maximum length of a message in which a few words mean that something does not exist."""
_NOT_THERE = re.compile(r"\b(?:there is no|no such|not found|does not exist|is not known|is unknown|out of range)\b")
_BAD_STATUS = ("error", "failed", "failure", "not_found", "not found", "invalid")
_REFUSALS = (
    "error",
    "not found",
    "no such",
    "unknown ",
    "invalid ",
    "cannot ",
    "could not ",
    "does not exist",
    "missing ",
)


async def explore_task(subject: Subject, task: Task) -> Explored:
    """Return the calls that were tried in a task, computed once. Raises UndecidedError if the environment fails."""
    known: dict[str, Explored | UndecidedError] = subject.shared.setdefault("explored", {})
    if task.id not in known:
        try:
            known[task.id] = await _explore(subject, task)
        except OutOfTimeError:
            raise
        except UndecidedError as error:
            known[task.id] = error
    found = known[task.id]
    if isinstance(found, UndecidedError):
        raise found
    return found


def reached(subject: Subject) -> dict[str, bool]:
    """Return for every tool whether a legal call was found in some task."""
    tasks = [one for one in subject.shared.get("explored", {}).values() if isinstance(one, Explored)]
    return {name: any(one.legal(name) for one in tasks) for name in subject.tools}


def reach(subject: Subject) -> dict[str, Json]:
    """Return the tools with and without a legal call, for the report, or an empty mapping if no tool was tried."""
    if not any(isinstance(one, Explored) for one in subject.shared.get("explored", {}).values()):
        return {}
    found = reached(subject)
    return {
        "tools_reached": [name for name, is_reached in found.items() if is_reached],
        "tools_not_tested": [name for name, is_reached in found.items() if not is_reached],
    }


async def _explore(subject: Subject, task: Task) -> Explored:
    found = Explored(task)
    known = collect_known(subject, task)
    recorded = await _collect_recorded(subject)
    ends = Deadline(SECONDS)
    script = await list_expert_calls(subject, task)
    if script:
        await _run_in_one_environment(subject, known, found, iter(script))
    num_futile = 0
    while num_futile < NUM_ENVIRONMENTS:
        missing = [name for name in subject.tools if not found.legal(name)]
        is_late = bool(found.tried) and ends.is_over
        if not missing or (is_late and (num_futile or all(reached(subject).get(name) for name in missing))):
            break
        # Another tool is first each time, since some tools work only before any other call.
        missing = missing[num_futile % len(missing) :] + missing[: num_futile % len(missing)]
        try:
            await _run_in_one_environment(subject, known, found, _list_tries(subject, known, found, missing, recorded))
        except OutOfTimeError:
            if not found.tried:
                raise
            break
        num_futile = num_futile + 1 if all(not found.legal(name) for name in missing) else 0
    return found


async def _run_in_one_environment(subject: Subject, known: Known, found: Explored, calls: Iterator[Call]) -> None:
    """Make calls in a fresh environment and record their results. `calls` may depend on earlier results."""
    own = copy.deepcopy(found.task)
    made: list[Call] = []
    async with subject.opened(own) as environment:
        for message in await reset(environment, own):
            _read_message(known, message)
        for call in calls:
            result = await execute(environment, call.tool, dict(call.arguments))
            raised = subject.watch.raised if result.error is ToolError.TOOL_RAISED else None
            line = subject.own_code.line_of(raised.__traceback__) if raised is not None else None
            found.tried.append(TriedCall(call, result, tuple(made), line))
            if not is_refusal(result):
                made.append(call)
                known.add_legal(call.arguments)
            known.add_text(result.content, f"result of {call.tool}", ())
            if environment.is_done:
                break


def _list_tries(
    subject: Subject, known: Known, found: Explored, first: Sequence[str], recorded: Mapping[str, Sequence[Call]]
) -> Iterator[Call]:
    """Yield the calls to try next, built from the values that are known by then. Each round yields the most likely new
    call of each tool. The tools in `first`, for which no legal call is known yet, come first."""
    names = [*first, *(name for name in subject.tools if name not in first)]
    asked: set[str] = set()
    already = {name: len(found.of(name)) for name in names}
    worked = get_worked_sources(subject)
    is_first = True
    while True:
        progress = False
        for name in names:
            tried = found.of(name)
            num_here = len(tried) - already[name]
            num_legal = sum(one.is_informative for one in tried)
            if num_legal >= MOST_LEGAL or num_here >= MOST_TRIES or (num_legal and not is_first):
                continue
            call, sources = _choose_next(subject, known, name, asked, worked, recorded.get(name, ()))
            if call is None:
                continue
            progress = True
            asked.add(str(call))
            before = len(found.tried)
            yield call
            if len(found.tried) > before and found.tried[-1].is_legal:
                for argument, source in sources.items():
                    worked[name, argument].append(source)
        is_first = False
        if not progress:
            return


def _choose_next(
    subject: Subject, known: Known, name: str, asked: set[str], worked: Worked, recorded: Sequence[Call]
) -> tuple[Call | None, dict[str, str]]:
    """Return the most likely new call of a tool that fits the tool's schema, and the sources of its values. The call is
    None if there is no such call."""
    for call in recorded[:8]:
        if str(call) not in asked:
            return call, {}
    schema = subject.tools[name].schema["function"].get("parameters", {})
    for arguments, sources in itertools.islice(known.arguments(name, schema, worked), 200):
        call = Call(name, arguments)
        if str(call) not in asked and subject.problem_with(name, arguments) is None:
            return call, sources
    return None, {}


def get_worked_sources(subject: Subject) -> defaultdict[tuple[str, str], list[str]]:
    """Return, for each pair of tool and argument, the sources whose values made calls legal in earlier tasks."""
    return subject.shared.setdefault("worked", defaultdict(list))


def collect_known(subject: Subject, task: Task) -> Known:
    """Return the values that are known in a task before any call."""
    known = Known(constants=find_constants(subject))
    for message in reversed(task.messages):
        _read_message(known, message)
    # The fields may contain recorded answers, and records by their ids.
    known.add_json(unpack(task.fields), "field")
    return known


def find_constants(subject: Subject) -> Mapping[str, Mapping[str, Sequence[Json]]]:
    """Return, for each tool and argument, the constants with which the tool's code compares the argument. The result is
    cached."""
    if "constants" not in subject.shared:
        cls = subject.environment_class
        subject.shared["constants"] = {name: find_compared(getattr(cls, name, None)) for name in subject.tools}
    return subject.shared["constants"]


def _read_message(known: Known, message: Message) -> None:
    content = message.get("content")
    if isinstance(content, str):
        known.add_text(content, "system" if message.get("role") == "system" else "prompt")


async def _collect_recorded(subject: Subject) -> Mapping[str, list[Call]]:
    """Return the calls in recorded conversations, grouped by tool. The conversations are production logs, the
    demonstrations of the warm start, and episodes of a reference endpoint. The result is cached."""
    if "recorded calls" not in subject.shared:
        rows: list[Mapping[str, Json]] = [*(subject.user_inputs.production or ()), *load_demonstrations(subject)]
        for reference in subject.user_inputs.reference:
            played = await run_reference_baseline(subject, reference)
            rows += [row for one in played.trajectories for row in one.transitions]
        calls: dict[str, list[Call]] = {}
        for row in rows:
            for tool, arguments, _ in list_calls(row):
                known = calls.setdefault(tool, [])
                if tool in subject.tools and len(known) < MOST_TRIES and Call(tool, arguments) not in known:
                    known.append(Call(tool, arguments))
        subject.shared["recorded calls"] = calls
    return subject.shared["recorded calls"]


def load_demonstrations(subject: Subject) -> list[Mapping[str, Json]]:
    """Return the demonstrations that the warm start imitates, if a file contains them or a function returns them."""
    section = subject.config.warm_start
    if section is None or section.demonstrations == "expert":
        return []
    try:
        with subject.watch.calling(f"warm_start.demonstrations({section.demonstrations})"):
            if ":" not in section.demonstrations:
                found = [row for _, row in read_rows(subject.folder / section.demonstrations)]
            else:
                function = load_object(section.demonstrations, folder=subject.folder)
                rows = function(NUM_DEMONSTRATIONS, subject.config.run.seed)
                found = [one if isinstance(one, Mapping) else {"messages": one} for one in rows]
    except Exception:  # noqa: BLE001 - the warm start reports the problem
        return []
    return [row for row in found[:NUM_DEMONSTRATIONS] if isinstance(row.get("messages"), list)]


async def list_expert_calls(subject: Subject, task: Task) -> list[Call]:
    """Return the expert's calls in order, or an empty list if there is no expert."""
    expert = subject.expert(task)
    if expert is None:
        return []
    played = await subject.run_episode(task, expert, graded=False)
    return [
        Call(str(one["tool"]), one["arguments"])
        for one in played.transitions
        if one["tool"] in subject.tools and isinstance(one["arguments"], Mapping)
    ]
