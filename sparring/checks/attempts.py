"""How many guesses, moves or questions a text promises, and after how many calls the episode is over."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from sparring.checks.answers import text_of
from sparring.checks.arguments import words_of
from sparring.checks.explore import Call, explored
from sparring.checks.subject import Subject
from sparring.environments import execute
from sparring.environments.base import reset
from sparring.types import Json, Task

NUM_TASKS = 4
FEWEST = 2
"""Tasks that must end alike."""
MOST_TRIED = 6
"""Calls of a tool that are repeated until the end, one an episode."""
MOST_PROMISED = 30
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NOUNS = "guess|move|turn|attempt|try|tries|question|shot|step|action|throw|round"
_PROMISED = re.compile(
    r"\b(?:have|get|given|allowed|at most|up to|within|more than|limit of|after|are|only|exactly) "
    rf"(?:only |exactly |just |at most |up to )?(\d+|{'|'.join(_WORDS)}) ({_NOUNS})(?:e?s)?\b",
    re.IGNORECASE,
)
_OVER = re.compile(
    r"\b(?:(?:is|are) over|no (?:more )?\w+ left|none left|used up|out of (?:guess|mov|turn|attempt|tr|question)\w+)\b"
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A task whose episodes end after another number of calls than its text promises."""

    task: Task
    promise: str
    promised: int
    call: Call
    calls: int


async def ends_apart(subject: Subject) -> list[Ended]:
    """Episodes that are over one call before or after the promised number, in all tasks that were played alike.

    A tool is called until the episode is over, with arguments that are legal and others next to them. The longest of these
    episodes counts: the others may be over because the right thing was done.
    """
    seen: list[Ended] = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[:NUM_TASKS]:
            promise = _promise(task)
            tool = None if promise is None else _tool_of(subject, promise[2])
            if promise is None or tool is None:
                return []
            longest = await _longest(subject, task, tool, promise[1])
            if longest is not None:
                seen.append(Ended(task, promise[0], promise[1], *longest))
    apart = {one.calls - one.promised for one in seen}
    return seen if len(seen) >= FEWEST and apart in ({-1}, {1}) else []


def _promise(task: Task) -> tuple[str, int, str] | None:
    """The words, the number and the noun of the one promise in a task's messages."""
    text = " ".join(" ".join(text_of(one).split()) for one in task.messages)
    found = {match[0]: (match[1].lower(), match[2].lower()) for match in _PROMISED.finditer(text)}
    numbers = {int(one) if one.isdigit() else 1 + _WORDS.index(one) for one, _ in found.values()}
    if len(numbers) != 1 or not 2 <= max(numbers) <= MOST_PROMISED:
        return None
    words = next(iter(found))
    return words, max(numbers), found[words][1]


def _tool_of(subject: Subject, noun: str) -> str | None:
    """The tool whose calls are counted: the only one, or the one that has the noun in its name."""
    named = [name for name in subject.tools if noun in words_of(name)]
    names = named if len(subject.tools) > 1 else list(subject.tools)
    return names[0] if len(names) == 1 else None


async def _longest(subject: Subject, task: Task, tool: str, promised: int) -> tuple[Call, int] | None:
    """The call after whose repetitions the episode is over last, and how many these are; None where one goes on and on."""
    legal = [one for one in (await explored(subject, task)).legal(tool) if not one.before]
    calls = [one.call for one in legal[: MOST_TRIED // 2]]
    calls += [_next_to(one) for one in calls]
    found: list[tuple[Call, int]] = []
    for call in {str(one): one for one in calls if subject.problem_with(tool, one.arguments) is None}.values():
        num = await _calls_until_over(subject, task, call, promised + 2)
        if num is None:
            return None
        found.append((call, num))
    return max(found, key=lambda one: one[1], default=None)


async def _calls_until_over(subject: Subject, task: Task, call: Call, most: int) -> int | None:
    own = copy.deepcopy(task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        for num in range(most):
            if environment.is_done:
                return num
            if (
                _OVER.search((await execute(environment, call.tool, dict(call.arguments))).content)
                and not environment.is_done
            ):
                return num
    return None


def _next_to(call: Call) -> Call:
    """The call with its numbers one further."""

    def moved(value: Json) -> Json:
        return value + 1 if isinstance(value, int) and not isinstance(value, bool) else value

    return Call(call.tool, {name: moved(value) for name, value in call.arguments.items()})
