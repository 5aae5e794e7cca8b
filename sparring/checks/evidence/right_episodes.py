"""Correct episodes of tasks that no immediate answer solves: the answer is the argument of a call, or it follows
calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from sparring.agents.scripted import saying
from sparring.checks.evidence.answer_forms import get_text, write_answers
from sparring.checks.evidence.arguments import fit_to_schema
from sparring.checks.evidence.explore import Call, explore_task
from sparring.checks.evidence.field_paths import list_paths
from sparring.checks.evidence.grading_inputs import is_paid, replace_last_message
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, split_into_turns
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import find_reading_tools
from sparring.checks.running.time_budget import UndecidedError
from sparring.environments import answer
from sparring.types import Json, Message, Task

MOST_TRIED = 60
Script = tuple[Message, ...]
_DONE = answer("Done.")


async def find_submitted(subject: Subject, tasks: Sequence[Task]) -> dict[str, Script]:
    """Return, for each task, a script with a single call that gets full marks. The tool has one argument, whose value
    is a field of the task."""
    if _is_left_out(subject):
        return {}
    first, *others = subject.sample
    if await _is_paid_after(subject, first, ()):
        return {}
    for tool, argument, path in itertools.islice(_list_ways(subject, first), MOST_TRIED):
        scripts = {
            task.id: script for task in tasks if (script := _call(subject, task, tool, argument, path)) is not None
        }
        if not await _is_paid_after(subject, first, scripts[first.id]):
            continue
        another = others[:1]
        if all([task.id in scripts and await _is_paid_after(subject, task, scripts[task.id]) for task in another]):
            return scripts
    return {}


async def find_answers_after_reading(subject: Subject) -> dict[str, Script]:
    """Return, for each sampled task, a script with calls to the read-only tools, followed by the answer that gets full
    marks."""
    if _is_left_out(subject):
        return {}
    scripts: dict[str, Script] = {}
    way: tuple[str, ...] | None = None
    for task in subject.sample:
        found, names = await explore_task(subject, task), await find_reading_tools(subject)
        calls = [legal[0].call for name in names if (legal := found.legal(name))]
        before = split_into_turns(subject, calls)
        written = dict(write_answers(task, "\n".join(map(get_text, await subject.opening(task)))))
        if way is None:
            way = await _find_paid_way(subject, task, before, written) if before else None
        if way is None:
            return {}
        if way in written:
            scripts[task.id] = (*before, written[way])
    return scripts


async def _find_paid_way(
    subject: Subject, task: Task, before: Sequence[Message], written: Mapping[tuple[str, ...], Message]
) -> tuple[str, ...] | None:
    try:
        played = await subject.run_episode(task, saying("reads first", (*before, _DONE)), graded=False)
    except UndecidedError:
        return None
    if played.messages[-1].get("role") != "assistant" or await is_paid(subject, played):
        return None
    for way, message in written.items():
        if await is_paid(subject, replace_last_message(played, message)):
            return way
    return None


def _is_left_out(subject: Subject) -> bool:
    return not subject.tools or subject.model_judges != () or subject.timing.episode_seconds > SLOW_SECONDS


async def _is_paid_after(subject: Subject, task: Task, script: Sequence[Message]) -> bool:
    try:
        return await is_paid(subject, await subject.run_new_episode(task, saying("submits", script or (_DONE,))))
    except UndecidedError:
        return False


def _list_ways(subject: Subject, task: Task) -> Iterator[tuple[str, str, str]]:
    """Yield (tool, argument, path) for tools with one required argument and the fields that fit it."""
    for name, tool in subject.tools.items():
        if len(tool.required) == 1:
            (argument,) = tool.required
            yield from (
                (name, argument, path) for path in list_paths(task) if _call(subject, task, name, argument, path)
            )


def _call(subject: Subject, task: Task, tool: str, argument: str, path: str) -> Script | None:
    """Return the call and a final message, or None if the field does not fit the argument."""
    schema = subject.tools[tool].schema["function"].get("parameters", {}).get("properties", {}).get(argument, {})
    value: Json = list_paths(task).get(path)
    fitted = None if value is None or isinstance(value, dict) else fit_to_schema(value, schema)
    if fitted is None or subject.problem_with(tool, {argument: fitted}) is not None:
        return None
    return (*split_into_turns(subject, [Call(tool, {argument: fitted})]), _DONE)
