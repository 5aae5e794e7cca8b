"""Chains of calls: the number of successive calls that a task takes if each result contains what the next call
needs."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.explore import Call, explore_task, is_refusal
from sparring.checks.evidence.legal_calls import leaves
from sparring.checks.evidence.plans import make_plans
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.returned_rows import parse_result
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.walks import walk_states
from sparring.environments import execute
from sparring.environments.base import reset
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

NUM_FOLLOWED = 24
"""The number of tasks whose chains are followed."""
NUM_WALKED = 6
"""The number of tasks in which all calls are tried."""
MOST_CALLS = 64
FEWEST = 2
"""The number of tasks that must need more turns than allowed before the rule reports them."""


async def chains(subject: Subject) -> Iterable[Finding]:
    """There are enough turns for the calls that a task needs.

    Without an expert, the rule finds the necessary calls in three ways. First, it starts from what the prompt names. It
    searches each result for the single new value that the same tool takes, until there is no such value. The chain ends
    at the last result that contains a value of a graded field. This field must not contain any of the values that were
    passed earlier in the chain. Second, it searches for calls that lead to the final state described in a task field.
    Third, if there are only a few possible calls, as in a game, it tries all of them, breadth first, until an episode
    is rewarded. The rule warns if these calls and the answer need more turns than `max_turns`, with one call per turn.
    In this case, raise `max_turns` or make the tasks shorter.
    """
    most = subject.config.environment.max_turns
    needed = {name: (calls, len(calls) + 1, "for a chain") for name, calls in (await find_chains(subject)).items()}
    needed |= await _leading(subject)
    short = {name: one for name, one in needed.items() if one[1] > most}
    return [_report(short, len(needed), most)] if len(short) >= FEWEST else []


def _report(short: Mapping[str, tuple[list[Call], int, str]], num_tasks: int, max_turns: int) -> Finding:
    worst = max(short, key=lambda one: short[one][1])
    calls, turns, why = short[worst]
    return Finding(
        rule="budgets.chains",
        severity=Severity.WARNING,
        symptom=f"{len(short)} of {num_tasks} tasks take more turns than environment.max_turns = {max_turns}: "
        f"task {worst} takes "
        f"{turns}, {why} of {len(calls)} calls of {', '.join(dict.fromkeys(one.tool for one in calls))}"
        f"{' and an answer' * (turns > len(calls))}.",
        evidence={
            "task": worst,
            "calls": list(map(str, calls)),
            "turns": {name: turns for name, (_, turns, _) in short.items()},
        },
        change=f"Set environment.max_turns to at least {turns}, or make shorter tasks.",
        confirm="Run `sparring check RECIPE --only budgets` again: the finding is gone.",
    )


async def _leading(subject: Subject) -> dict[str, tuple[list[Call], int, str]]:
    """Return, for each task id, the calls that lead to a rewarded episode, the number of turns that they take, and a
    description. The result is empty if there is an expert, because its turns are counted instead."""
    if not subject.lacks("expert") or (subject.lacks("scorer") and subject.lacks("reward")):
        return {}
    found = {}
    for plan in await make_plans(subject):
        if plan.is_whole and plan.is_direct:
            found[plan.task.id] = (list(plan.calls), len(plan.calls) + (not plan.ends), "for a plan")
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[: 0 if found or subject.model_judges else NUM_WALKED]:
            walk = await walk_states(subject, task)
            if walk is not None and walk.calls is not None:
                found[task.id] = (list(walk.calls), len(walk.calls) + (not walk.ends), "for the shortest way")
    return found


async def find_chains(subject: Subject) -> dict[str, list[Call]]:
    """Return, for each task id, the calls of the longest chain, or no calls if there is no chain. Chains are followed
    once, as far as time allows."""
    found: dict[str, list[Call]] = subject.shared.setdefault("chains", {})
    sample = {task.id: task for task in (*subject.sample, *subject.looked_at)}
    with subject.timing.as_far_as_it_goes():
        tools = await _tools(subject)
        references = await find_references(subject) if tools else None
        graded = {path[0] for path in references.read} if references is not None else set()
        for task in list(sample.values())[: NUM_FOLLOWED if tools else 0]:
            if task.id not in found:
                found[task.id] = await _longest(subject, task, tools, graded)
    return found


async def _tools(subject: Subject) -> dict[str, str]:
    """Return the tools that take one text and have a known legal call, with the name of the argument that takes the
    text."""
    found = {}
    legal = await explore_task(subject, subject.sample[0])
    for name, tool in subject.tools.items():
        properties = tool.schema["function"].get("parameters", {}).get("properties", {})
        required = list(tool.required)
        if len(required) == 1 and properties.get(required[0], {}).get("type") == "string" and legal.legal(name):
            found[name] = required[0]
    return found


async def _longest(subject: Subject, task: Task, tools: dict[str, str], graded: set[str]) -> list[Call]:
    """Return the longest chain from a word in the prompt to what the task requires."""
    fields = {name: value for name, value in task.fields.items() if name in graded or not graded}
    words = dict.fromkeys(word for one in task.messages for word in re.findall(r"\w[\w-]*", get_text(one)))
    chains = []
    for tool, argument in tools.items():
        schema = subject.tools[tool].schema["function"]["parameters"]["properties"][argument]
        if "enum" in schema:
            continue
        named = {str(value) for _, value in leaves(task.fields)}
        for word in (word for word in words if re.search(r"\d", word) or word in named):
            chains.append(await _follow(subject, task, tool, argument, word, fields))
    return max(chains, key=len, default=[])


async def _follow(
    subject: Subject, task: Task, tool: str, argument: str, first: str, fields: Mapping[str, Json]
) -> list[Call]:
    """Return the calls of a chain up to what the task requires, or no calls if the chain forks or does not lead
    there."""
    own = copy.deepcopy(task)
    calls: list[Call] = []
    needed: list[Call] = []
    passed: list[str] = []
    async with subject.opened(own) as environment:
        await reset(environment, own)
        ahead, values = [first], set[Json]()
        while ahead and len(calls) < MOST_CALLS:
            found = []
            for value in ahead:
                call = Call(tool, {argument: value})
                result = await execute(environment, tool, dict(call.arguments))
                if not is_refusal(result):
                    found.append((call, value, _read_values(result.content)))
            if len(found) != 1:
                return needed
            call, value, values = found[0]
            calls.append(call)
            passed.append(value)
            needed = list(calls) if _is_wanted(fields, passed, values) else needed
            ahead = sorted(one for one in values if isinstance(one, str) and one not in passed and _may_be_asked(one))
    return needed


def _read_values(content: str) -> set[Json]:
    """Return the values in a result, and the words in its texts that contain a digit."""
    values = {one for _, one in leaves(parse_result(content)) if one is not None}
    return values | {word for one in values if isinstance(one, str) for word in _words_with_digits(one)}


def _words_with_digits(text: str) -> list[str]:
    return [word for word in re.findall(r"\w[\w-]*", text) if re.search(r"\d", word)]


def _may_be_asked(text: str) -> bool:
    """Return True if a value may be an argument, and is not a sentence that contains an argument."""
    return len(text) < 40 and (" " not in text or not _words_with_digits(text))


def _is_wanted(fields: Mapping[str, Json], passed: Sequence[str], values: set[Json]) -> bool:
    """Return True if a field contains a value of the last result, and no value that was passed earlier in the chain."""
    for value in fields.values():
        held = {one for _, one in leaves(value)} | {key for key, _ in leaves(value) if key}
        if len(passed) > 1 and held & values and not held & set(passed[:-1]):
            return True
    return False
