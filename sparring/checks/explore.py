"""Find legal calls of every tool: by trying, by reading what comes back, and by trying again with what was read."""

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
from sparring.checks.arguments import Known
from sparring.checks.baseline import reference_baseline
from sparring.checks.given import calls_in
from sparring.checks.literals import compared_with
from sparring.checks.subject import Subject
from sparring.checks.timing import Deadline, OutOfTimeError, UndecidedError
from sparring.data.files import read_rows
from sparring.environments import ToolError, ToolResult, execute
from sparring.environments.base import reset
from sparring.plugins import load_object
from sparring.types import Json, Message, Task

MOST_TRIES = 24
"""Calls of one tool in one task."""
NUM_ENVIRONMENTS = 3
"""Fresh environments in one task that reach no further tool, after which no more is tried."""
SECONDS = 1.0
"""After which a task is left as soon as an environment reached no further tool, or another task reached them."""
NUM_DEMONSTRATIONS = 16
"""Of the warm start, whose calls are tried."""
MOST_LEGAL = 3
"""Legal calls of one tool that are looked for in a task."""

Worked: TypeAlias = Mapping[tuple[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Tried:
    """A call, what came back, and the calls that were made before it in the same environment."""

    call: Call
    result: ToolResult
    before: tuple[Call, ...]
    line: str | None
    """The innermost line of the user's code that raised; None where none did."""

    @property
    def is_legal(self) -> bool:
        return not is_refusal(self.result)

    @property
    def says_something(self) -> bool:
        return self.is_legal and not is_nothing(self.result.content)


@dataclass(slots=True)
class Explored:
    """What was tried in one task."""

    task: Task
    tried: list[Tried] = field(default_factory=list)

    def legal(self, tool: str) -> list[Tried]:
        """The legal calls of a tool, those first that say something, and need the least before them."""
        legal = [one for one in self.tried if one.call.tool == tool and one.is_legal]
        return sorted(legal, key=lambda one: (not one.says_something, bool(one.before)))

    def of(self, tool: str) -> list[Tried]:
        return [one for one in self.tried if one.call.tool == tool]

    @property
    def script(self) -> list[Call]:
        """One legal call of each tool, after the calls that it needs, in the order in which they were found; then those that
        were never legal."""
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
    return content.strip() in ("", "null", "{}", "[]", '""', "None")


def is_refusal(result: ToolResult) -> bool:
    """Whether a result is an error, or an answer that says that something went wrong."""
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
    said = value.strip().lower()
    return said.startswith(_REFUSALS) or (len(said) <= LONGEST_REFUSAL and _NOT_THERE.search(said) is not None)


LONGEST_REFUSAL = 100
"""Characters of a text in which a few words say that something is not there."""
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


async def explored(subject: Subject, task: Task) -> Explored:
    """What calls of a task's tools give; tried once. Raises UndecidedError when the environment fails."""
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
    """Of every tool whether a legal call was found in some task."""
    tasks = [one for one in subject.shared.get("explored", {}).values() if isinstance(one, Explored)]
    return {name: any(one.legal(name) for one in tasks) for name in subject.tools}


def reach(subject: Subject) -> dict[str, Json]:
    """For the report: the tools of which a legal call was found, and the others; nothing where no tool was tried."""
    if not any(isinstance(one, Explored) for one in subject.shared.get("explored", {}).values()):
        return {}
    found = reached(subject)
    return {
        "tools_reached": [name for name, is_reached in found.items() if is_reached],
        "tools_not_tested": [name for name, is_reached in found.items() if not is_reached],
    }


async def _explore(subject: Subject, task: Task) -> Explored:
    found = Explored(task)
    known = known_of(subject, task)
    recorded = await _recorded(subject)
    ends = Deadline(SECONDS)
    script = await expert_calls(subject, task)
    if script:
        await _in_one_environment(subject, known, found, iter(script))
    num_futile = 0
    while num_futile < NUM_ENVIRONMENTS:
        missing = [name for name in subject.tools if not found.legal(name)]
        is_late = bool(found.tried) and ends.is_over
        if not missing or (is_late and (num_futile or all(reached(subject).get(name) for name in missing))):
            break
        # Another one is first each time: some tools work only while no other was called.
        missing = missing[num_futile % len(missing) :] + missing[: num_futile % len(missing)]
        try:
            await _in_one_environment(subject, known, found, _tries(subject, known, found, missing, recorded))
        except OutOfTimeError:
            if not found.tried:
                raise
            break
        num_futile = num_futile + 1 if all(not found.legal(name) for name in missing) else 0
    return found


async def _in_one_environment(subject: Subject, known: Known, found: Explored, calls: Iterator[Call]) -> None:
    """Make calls in a fresh environment, and read what comes back; `calls` may depend on it."""
    own = copy.deepcopy(found.task)
    made: list[Call] = []
    async with subject.opened(own) as environment:
        for message in await reset(environment, own):
            _read_message(known, message)
        for call in calls:
            result = await execute(environment, call.tool, dict(call.arguments))
            raised = subject.watch.raised if result.error is ToolError.TOOL_RAISED else None
            line = subject.own_code.line_of(raised.__traceback__) if raised is not None else None
            found.tried.append(Tried(call, result, tuple(made), line))
            if not is_refusal(result):
                made.append(call)
                known.add_legal(call.arguments)
            known.add_text(result.content, f"result of {call.tool}", ())
            if environment.is_done:
                break


def _tries(
    subject: Subject, known: Known, found: Explored, first: Sequence[str], recorded: Mapping[str, Sequence[Call]]
) -> Iterator[Call]:
    """Calls to try next, given what is known by then: round after round the likeliest new call of each tool, those tools
    `first` that were not reached in another environment."""
    names = [*first, *(name for name in subject.tools if name not in first)]
    asked: set[str] = set()
    already = {name: len(found.of(name)) for name in names}
    worked = worked_sources(subject)
    is_first = True
    while True:
        progress = False
        for name in names:
            tried = found.of(name)
            num_here = len(tried) - already[name]
            num_legal = sum(one.says_something for one in tried)
            if num_legal >= MOST_LEGAL or num_here >= MOST_TRIES or (num_legal and not is_first):
                continue
            call, sources = _next(subject, known, name, asked, worked, recorded.get(name, ()))
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


def _next(
    subject: Subject, known: Known, name: str, asked: set[str], worked: Worked, recorded: Sequence[Call]
) -> tuple[Call | None, dict[str, str]]:
    """The likeliest call of a tool that was not made yet and that its schema allows."""
    for call in recorded[:8]:
        if str(call) not in asked:
            return call, {}
    schema = subject.tools[name].schema["function"].get("parameters", {})
    for arguments, sources in itertools.islice(known.arguments(name, schema, worked), 200):
        call = Call(name, arguments)
        if str(call) not in asked and subject.problem_with(name, arguments) is None:
            return call, sources
    return None, {}


def worked_sources(subject: Subject) -> defaultdict[tuple[str, str], list[str]]:
    """The sources whose values made legal calls in tasks before, by tool and argument."""
    return subject.shared.setdefault("worked", defaultdict(list))


def known_of(subject: Subject, task: Task) -> Known:
    """What is known of a task before any tool was called."""
    known = Known(constants=constants(subject))
    for message in reversed(task.messages):
        _read_message(known, message)
    # Recorded answers, and records by their ids.
    known.add_json(task.fields, "field")
    return known


def constants(subject: Subject) -> Mapping[str, Mapping[str, Sequence[Json]]]:
    """What the code of each tool compares its arguments with, by argument; read once."""
    if "constants" not in subject.shared:
        cls = subject.environment_class
        subject.shared["constants"] = {name: compared_with(getattr(cls, name, None)) for name in subject.tools}
    return subject.shared["constants"]


def _read_message(known: Known, message: Message) -> None:
    content = message.get("content")
    if isinstance(content, str):
        known.add_text(content, "system" if message.get("role") == "system" else "prompt")


async def _recorded(subject: Subject) -> Mapping[str, list[Call]]:
    """Calls of recorded conversations by tool: of production logs, of the warm start's demonstrations, of a reference
    endpoint's episodes. Read once."""
    if "recorded calls" not in subject.shared:
        rows: list[Mapping[str, Json]] = [*(subject.given.production or ()), *_demonstrations(subject)]
        for reference in subject.given.reference:
            played = await reference_baseline(subject, reference)
            rows += [row for one in played.trajectories for row in one.transitions]
        calls: dict[str, list[Call]] = {}
        for row in rows:
            for tool, arguments, _ in calls_in(row):
                known = calls.setdefault(tool, [])
                if tool in subject.tools and len(known) < MOST_TRIES and Call(tool, arguments) not in known:
                    known.append(Call(tool, arguments))
        subject.shared["recorded calls"] = calls
    return subject.shared["recorded calls"]


def _demonstrations(subject: Subject) -> list[Mapping[str, Json]]:
    """Conversations that the warm start imitates, where a file or a function gives them."""
    section = subject.config.warm_start
    if section is None or section.demonstrations == "expert":
        return []
    try:
        with subject.watch.calling(f"warm_start.demonstrations({section.demonstrations})"):
            if ":" not in section.demonstrations:
                found = [row for _, row in read_rows(subject.folder / section.demonstrations)]
            else:
                function = load_object(section.demonstrations, beside=subject.folder)
                found = [{"messages": one} for one in function(NUM_DEMONSTRATIONS, subject.config.run.seed)]
    except Exception:  # noqa: BLE001 - the warm start reports what is wrong with them
        return []
    return [row for row in found[:NUM_DEMONSTRATIONS] if isinstance(row.get("messages"), list)]


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
