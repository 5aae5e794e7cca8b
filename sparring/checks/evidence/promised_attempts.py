"""The number of guesses, moves or questions that a prompt promises, compared with the number of calls until the episode
ends."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call, explore_task
from sparring.checks.evidence.subject import Subject
from sparring.environments import execute
from sparring.environments.base import reset
from sparring.types import Json, Task

NUM_TASKS = 4
FEWEST = 2
"""The minimum number of tasks that must end in the same way."""
MOST_TRIED = 6
"""The maximum number of calls to a tool to repeat until the end, each in its own episode."""
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
class BrokenPromise:
    """A task whose episodes end after a different number of calls than its prompt promises."""

    task: Task
    promise: str
    promised: int
    call: Call
    calls: int


async def find_broken_promises(subject: Subject) -> list[BrokenPromise]:
    """Return the tasks whose episodes end one call before or after the promised number, if all tasks deviate in the
    same direction.

    A tool is called until the episode is over, with legal arguments and with similar ones. Only the longest of these
    episodes counts, since the others may end because the task was solved.
    """
    seen: list[BrokenPromise] = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[:NUM_TASKS]:
            promise = _parse_promise(task)
            tool = None if promise is None else _find_tool(subject, promise[2])
            if promise is None or tool is None:
                return []
            longest = await _find_longest(subject, task, tool, promise[1])
            if longest is not None:
                seen.append(BrokenPromise(task, promise[0], promise[1], *longest))
    apart = {one.calls - one.promised for one in seen}
    return seen if len(seen) >= FEWEST and apart in ({-1}, {1}) else []


def find_promise(task: Task) -> tuple[str, int] | None:
    """Return the words and the number of the only promise of guesses, moves or turns in a task's messages."""
    found = _parse_promise(task)
    return None if found is None else found[:2]


def _parse_promise(task: Task) -> tuple[str, int, str] | None:
    """Return the words, the number and the noun of the only promise in a task's messages, or None if there is not
    exactly one number."""
    text = " ".join(" ".join(get_text(one).split()) for one in task.messages)
    found = {match[0]: (match[1].lower(), match[2].lower()) for match in _PROMISED.finditer(text)}
    numbers = {int(one) if one.isdigit() else 1 + _WORDS.index(one) for one, _ in found.values()}
    if len(numbers) != 1 or not 2 <= max(numbers) <= MOST_PROMISED:
        return None
    words = next(iter(found))
    return words, max(numbers), found[words][1]


def _find_tool(subject: Subject, noun: str) -> str | None:
    """Return the tool whose calls are counted: the only tool, or the only one with the noun in its name. Return None if
    there is no such tool."""
    named = [name for name in subject.tools if noun in split_words(name)]
    names = named if len(subject.tools) > 1 else list(subject.tools)
    return names[0] if len(names) == 1 else None


async def _find_longest(subject: Subject, task: Task, tool: str, promised: int) -> tuple[Call, int] | None:
    """Return the call that gives the longest episode when it is repeated, and the number of repetitions. Return None if
    one of the episodes does not end."""
    legal = [one for one in (await explore_task(subject, task)).legal(tool) if not one.before]
    calls = [one.call for one in legal[: MOST_TRIED // 2]]
    calls += [_increase_integers(one) for one in calls]
    found: list[tuple[Call, int]] = []
    for call in {str(one): one for one in calls if subject.problem_with(tool, one.arguments) is None}.values():
        num = await _count_calls_until_over(subject, task, call, promised + 2)
        if num is None:
            return None
        found.append((call, num))
    return max(found, key=lambda one: one[1], default=None)


async def _count_calls_until_over(subject: Subject, task: Task, call: Call, most: int) -> int | None:
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


def _increase_integers(call: Call) -> Call:
    """Return the call with its integers increased by one."""

    def moved(value: Json) -> Json:
        return value + 1 if isinstance(value, int) and not isinstance(value, bool) else value

    return Call(call.tool, {name: moved(value) for name, value in call.arguments.items()})
