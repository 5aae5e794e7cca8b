"""Do the tools do what their schemas say: take the arguments that they offer, use them, and answer with JSON?"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args, get_origin

from sparring.agents.scripted import saying
from sparring.checks.answers import canonical
from sparring.checks.calls import (
    alternatives,
    answers_apart,
    answers_to_parts,
    before_legal,
    leaves,
    likely_calls,
    strange,
)
from sparring.checks.explore import Call, Tried, expert_calls, explored, is_nothing, is_refusal
from sparring.checks.limits import choices_of, limits_of
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.checks.survey import num_tasks
from sparring.checks.writes import writing_tools
from sparring.environments import answer, tool_call
from sparring.environments.tools import Tool, fits
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
MOST_SHOWN = 40
"""Characters of a text that a finding shows."""
NUM_LIMITED = 4
"""Tasks in which the limits of arguments are tried."""
FEWEST_TRIES = 3
"""Calls with different arguments after which a tool that always fails alike is broken."""
NUM_NAMED = 8
"""Tools that one finding shows."""


@check("environment.arguments_ignored", needs=("environment",))
async def arguments_ignored(subject: Subject) -> Iterable[Finding]:
    """What a tool answers depends on what it is asked.

    Tools are called with the right arguments and with others. A tool that answers the same to all of them, and something
    else in another task, hands out the right answer to wrong calls: the policy learns to call it with anything. Calls that
    mean the same, with a default left out say, are one. A warning where one required argument of a tool that reads makes no
    difference in any task.
    """
    varied: dict[str, list[tuple[Task, list[Call], set[str]]]] = {}
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for name, tool in subject.tools.items():
                if not tool.hints:
                    continue
                calls = (await likely_calls(subject, task, tool))[:4]
                calls = _different(tool, [*calls, *map(strange, calls[:1])])
                said = await answers_apart(subject, task, calls, await before_legal(subject, task, name))
                if len(said) > 1 and all(one.error is None for one in said):
                    varied.setdefault(name, []).append((task, calls, {one.content for one in said}))
    findings = []
    for name, seen in varied.items():
        depends_on_task = len({content for _, _, contents in seen for content in contents}) > 1
        if len(seen) > 1 and depends_on_task and all(len(contents) == 1 for _, _, contents in seen):
            task, calls, contents = seen[0]
            if await _acts_by_arguments(subject, task, calls):
                continue
            findings.append(
                Finding(
                    rule="environment.arguments_ignored",
                    severity=Severity.ERROR,
                    symptom=f"{name} gives the answer of the task whatever its arguments are.",
                    evidence={
                        "tool": name, "task": task.id, "calls": [str(one) for one in calls],
                        "answer_to_all": next(iter(contents)), "tasks": len(seen),
                    },
                    change="Look the answer up by the arguments, and say so when there is none.",
                    confirm=AGAIN,
                )
            )  # fmt: skip
    return [*findings, *await _unused(subject, known={one.evidence["tool"] for one in findings})]


def _different(tool: Tool, calls: Sequence[Call]) -> list[Call]:
    """The calls without those that mean the same: an argument that is left out has its default."""
    properties = tool.schema["function"].get("parameters", {}).get("properties", {})
    defaults = {name: part["default"] for name, part in properties.items() if "default" in part}
    return list({json.dumps({**defaults, **one.arguments}, sort_keys=True): one for one in calls}.values())


async def _acts_by_arguments(subject: Subject, task: Task, calls: Sequence[Call]) -> bool:
    """Whether what a tool does depends on its arguments: by the final state, or, where the environment gives none, whether it
    changes something at all. A tool that writes may answer with no more than an id."""
    said = [(str(one), (tool_call(one.tool, **one.arguments), answer("done"))) for one in calls]
    played = [await subject.play(task, saying(name, script), judged=False) for name, script in said]
    states = [one.final_state for one in played]
    if all(state is None for state in states):
        return calls[0].tool in await writing_tools(subject)
    return len(set(map(canonical, states))) > 1


@check("environment.tools_answer", needs=("environment",))
async def tools_answer(subject: Subject) -> Iterable[Finding]:
    """Every tool can be called so that it works and says something.

    The expert's calls are made, and calls that are found by trying: with the task's fields, with what the prompt and
    earlier results name, with what the schema offers, with recorded conversations. An error is a tool that fails at the
    expert's calls, or at every call in one way that has nothing to do with the arguments. A tool of which no legal call was
    found is not tested, neither passed nor failed, which is a note: name what to ask about in the prompt, write a
    `demonstrate`, or give recorded calls (`--production FILE`) or a model that explores (`--reference URL#MODEL`). A
    warning is a tool that answers nothing at every call; of one that changes something `null` is answer enough, and an
    empty text is none.
    """
    tried: dict[str, list[tuple[Task, Tried]]] = {name: [] for name in subject.tools}
    shown: set[str] = set()
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            shown |= {one.tool for one in await expert_calls(subject, task)}
            for one in (await explored(subject, task)).tried:
                tried[one.call.tool].append((task, one))
    findings: list[Finding] = []
    untested: dict[str, Json] = {}
    for name, seen in tried.items():
        evidence: dict[str, Json] = {"tool": name, "tried": [_shown(task, one) for task, one in seen[:4]]}
        if any(one.is_legal for _, one in seen):
            is_meant = any(_is_meant(task, one) for task, one in seen)
            is_silent = is_meant and not any(one.says_something for _, one in seen)
            if is_silent and not (
                await _answers_after_expert(subject, [(task, one.call) for task, one in seen[:2]])
                or await answers_to_parts(subject, name)
            ):
                nothing = sorted({one.result.content.strip() for _, one in seen if one.is_legal})
                is_writing = name in await writing_tools(subject)
                # What a writing tool does stands elsewhere; of its answer it is enough that there is one.
                if is_writing and "" not in nothing:
                    continue
                findings.append(_silent(name, len(seen), nothing, evidence, is_writing=is_writing))
        elif seen and (name in shown or _is_broken([one for _, one in seen])):
            findings.append(
                Finding(
                    rule="environment.tools_answer",
                    severity=Severity.ERROR,
                    symptom=f"{name} failed at every one of {len(seen)} calls, "
                    + ("the expert's among them." if name in shown else "in the same way whatever its arguments were."),
                    evidence=evidence,
                    change="Put the line in the evidence right, or take the tool out.",
                    confirm=AGAIN,
                )
            )
        else:
            untested[name] = evidence["tried"]
    if untested:
        # One finding, however many: an environment of several desks offers a hundred tools that a task has no use for.
        some = ", ".join(list(untested)[:NUM_NAMED]) + (", ..." if len(untested) > NUM_NAMED else "")
        findings.append(
            Finding(
                rule="environment.tools_answer",
                severity=Severity.NOTE,
                symptom=f"{len(untested)} of {len(subject.tools)} tools were not tested, since no legal call was found: {some}.",
                evidence={"not_tested": list(untested), "tried": dict(list(untested.items())[:NUM_NAMED])},
                change="Name in the prompt or the schema what these tools take, have `demonstrate` show it, or give recorded "
                "calls with --production FILE, or a model that explores with --reference URL#MODEL.",
                confirm="Run `sparring check` again: its first line counts these tools as reached.",
            )
        )
    return findings


def _silent(name: str, num: int, nothing: Sequence[str], evidence: Mapping[str, Json], *, is_writing: bool) -> Finding:
    read = " or ".join(f"`{one}`" if one else "an empty result" for one in nothing)
    return Finding(
        rule="environment.tools_answer",
        severity=Severity.WARNING,
        symptom=f"{name} returned nothing at every one of {num} calls, and no error: the model reads {read}.",
        evidence=evidence,
        change="Return a word at least: from an empty result the model cannot see whether the call did anything."
        if is_writing
        else "Return what the real tool returns; if it is a stub, have it say so or take it out.",
        confirm=AGAIN,
    )


def _shown(task: Task, tried: Tried) -> dict[str, Json]:
    shown: dict[str, Json] = {"task": task.id, "call": str(tried.call), "answer": tried.result.content[:200]}
    return shown if tried.line is None else {**shown, "line": tried.line}


def _is_meant(task: Task, tried: Tried) -> bool:
    """Whether a call must find something: what came back is no empty list of what fits, or the texts that were asked for are
    different ones of the task's own fields, where it has some, and no guesses."""
    known = {value for _, value in leaves(task.fields) if isinstance(value, str)}
    texts = [value for _, value in leaves(tried.call.arguments) if isinstance(value, str)]
    is_own = len(set(texts) & known) == len(texts)
    return tried.result.content.strip() not in ("[]", "{}") or not known or is_own


def _is_broken(tried: Sequence[Tried]) -> bool:
    """Whether a tool failed in one way at one line whatever it was given, and in a way that no author raises on purpose."""
    failures = {(one.result.content, one.line) for one in tried}
    is_tried = len(tried) >= FEWEST_TRIES or not any(one.call.arguments for one in tried)
    return is_tried and len(failures) == 1 and _is_crash(tried[0].result.content)


@check("environment.schema", needs=("environment",))
async def schema(subject: Subject) -> Iterable[Finding]:
    """Tools take what their schemas offer.

    From calls that work, each optional argument is left out, each value of an enumeration tried, and 0, "" and false given
    where they are allowed; and arguments of the task's own data must have the declared type. Where a schema or a description
    states limits or lists values, these are given, and one a step further inside: a warning where the one is refused and the
    other is not. The model sees the schema only: what it offers and the code refuses costs turns and teaches superstition.
    """
    found: dict[tuple[str, str], dict[str, Json]] = {}
    taken: set[tuple[str, str]] = set()
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for name, tool in subject.tools.items():
                given = {key for one in await _shown_to_fit(subject, task, name) for key in one.arguments}
                for what, seen in _misfits(task, tool, known=given).items():
                    found.setdefault((name, what), seen)
                await _try_variations(subject, task, tool, found, taken)
        found |= await _refused_limits(subject)
    return [
        Finding(
            rule="environment.schema",
            severity=Severity.WARNING if "falsy" in what or "limit" in what else Severity.ERROR,
            symptom=f"{name}: {what}.",
            evidence=evidence,
            change="Have the type hints, defaults and code of the tool agree.",
            confirm=AGAIN,
        )
        for (name, what), evidence in found.items()
    ]


async def _try_variations(
    subject: Subject,
    task: Task,
    tool: Tool,
    found: dict[tuple[str, str], dict[str, Json]],
    taken: set[tuple[str, str]],
) -> None:
    """Add what a tool refuses although its schema allows it. A value of an enumeration that is `taken` in another task is no
    fault of the schema: what it names is not there in this one."""
    working = await _working(subject, task, tool)
    if working is None:
        return
    before = await before_legal(subject, task, tool.name)
    variations = [
        (what, call)
        for what, call in _variations(tool, working)
        if (tool.name, what) not in taken and (what.endswith(_OFFERED) or (tool.name, what) not in found)
    ]
    said = await answers_apart(subject, task, [call for _, call in variations], before)
    for (what, call), result in zip(variations, said, strict=True):
        if not _is_refusal(what, result.content, failed=result.error is not None):
            if what.endswith(_OFFERED):
                taken.add((tool.name, what))
                found.pop((tool.name, what), None)
            continue
        if "falsy" in what and await _fails_anyway(subject, task, working, call):
            continue
        seen = {"task": task.id, "works": str(working), "call": str(call), "answer": result.content[:300]}
        found.setdefault((tool.name, what), seen)


async def _refused_limits(subject: Subject) -> dict[tuple[str, str], dict[str, Json]]:
    """Limits that tools refuse in every task, although they take what is a step inside."""
    seen: dict[tuple[str, str], list[tuple[bool, bool, dict[str, Json]]]] = {}
    for task in subject.sample[: num_tasks(subject, NUM_LIMITED)]:
        for name, tool in subject.tools.items():
            working = await _working(subject, task, tool)
            limits = [*limits_of(tool.schema), *choices_of(tool.schema)] if working is not None else []
            if working is None or not limits:
                continue
            calls = [Call(name, {**working.arguments, key: value}) for key, *values in limits for value in values]
            allowed = [subject.problem_with(name, one.arguments) is None for one in calls]
            if not all(allowed):
                continue
            said = await answers_apart(subject, task, calls, await before_legal(subject, task, name))
            for index, (key, limit, _) in enumerate(limits):
                at_limit, inside = said[2 * index : 2 * index + 2]
                is_long = isinstance(limit, str) and len(limit) > MOST_SHOWN
                shown = f"of {len(limit)} characters" if is_long else repr(limit)
                what = f"the limit {shown} of {key!r}, which is allowed, is refused"
                evidence: dict[str, Json] = {
                    "task": task.id, "call": str(calls[2 * index]), "answer": at_limit.content[:300],
                    "inside": str(calls[2 * index + 1]), "answer_inside": inside.content[:300],
                }  # fmt: skip
                seen.setdefault((name, what), []).append((is_refusal(at_limit), is_refusal(inside), evidence))
    return {
        key: tried[0][2]
        for key, tried in seen.items()
        if all(limit for limit, _, _ in tried)
        and sum(not inside for _, inside, _ in tried) >= min(2, len(subject.sample))
    }


@check("environment.json", needs=("environment",))
async def json_results(subject: Subject) -> Iterable[Finding]:
    """What tools return is valid JSON, or plain text.

    NaN and Infinity are no JSON, nor are dates, sets and objects: such a call fails, and the policy reads an error instead
    of its answer. A Python dictionary written with `str` looks like JSON and cannot be parsed. Return plain values.
    """
    found: dict[str, tuple[Severity, str, dict[str, Json]]] = {}
    for task, call, said in await all_answers(subject):
        evidence: dict[str, Json] = {"task": task.id, "call": str(call), "answer": said[:300]}
        if "not JSON compliant" in said or "is not JSON serializable" in said:
            found.setdefault(call.tool, (Severity.ERROR, "returns a value that JSON cannot say", evidence))
        elif _has_constant(said):
            found.setdefault(call.tool, (Severity.ERROR, "writes NaN or Infinity, which are no JSON", evidence))
        elif said[:1] in ("{", "[") and not _parses(said) and _is_python(said):
            what = "writes a Python value that looks like JSON and is none"
            found.setdefault(call.tool, (Severity.WARNING, what, evidence))
    return [
        Finding(
            rule="environment.json",
            severity=severity,
            symptom=f"{name} {what}.",
            evidence=evidence,
            change="Return None for what is missing, and plain values (dict, list, str, int, float, bool) for the rest.",
            confirm=AGAIN,
        )
        for name, (severity, what, evidence) in found.items()
    ]


async def _unused(subject: Subject, known: Collection[str]) -> Iterable[Finding]:
    """Arguments that alone make no difference, of tools that no other finding names."""
    seen: dict[tuple[str, str], list[tuple[Task, list[Call], set[str]]]] = {}
    with subject.timing.as_far_as_it_goes():
        writing = await writing_tools(subject)
        for task in subject.sample:
            for tool in subject.tools.values():
                if tool.name in writing or len(tool.required) < 2:
                    continue
                working = await _working(subject, task, tool)
                for name, calls in () if working is None else _one_by_one(tool, working):
                    before = await before_legal(subject, task, tool.name)
                    contents = {one.content for one in await answers_apart(subject, task, calls, before)}
                    seen.setdefault((tool.name, name), []).append((task, calls, contents))
    return [
        Finding(
            rule="environment.arguments_ignored",
            severity=Severity.WARNING,
            symptom=f"{tool} answers the same whatever its argument {name!r} is.",
            evidence={"task": tried[0][0].id, "calls": [str(one) for one in tried[0][1]], "tasks": len(tried)},
            change=f"Use {name!r}, or take it out of the schema: the policy learns that arguments mean nothing.",
            confirm=AGAIN,
        )
        for (tool, name), tried in seen.items()
        if tool not in known
        and len({content for *_, contents in tried for content in contents}) > 1
        and all(len(contents) == 1 for *_, contents in tried)
    ]


def _one_by_one(tool: Tool, working: Call) -> Iterator[tuple[str, list[Call]]]:
    """For each argument that has to be given, a call that works, and the same with other values of it alone."""
    for name in tool.required & working.arguments.keys():
        values: list[Json] = [strange(working).arguments[name]]
        for one in alternatives(tool.hints[name]):
            values = list(get_args(one)) if get_origin(one) is Literal else values
        others = [value for value in values if value != working.arguments[name]]
        if others:
            yield name, [working, *(Call(tool.name, {**working.arguments, name: value}) for value in others)]


async def _answers_after_expert(subject: Subject, calls: Sequence[tuple[Task, Call]]) -> bool:
    """Whether a tool says something once the expert has done its work: a list may be empty before."""
    for task, call in calls:
        said = await answers_apart(subject, task, [call], await expert_calls(subject, task))
        if not is_nothing(said[-1].content):
            return True
    return False


async def _working(subject: Subject, task: Task, tool: Tool) -> Call | None:
    """A call that does not fail; None when none was found."""
    legal = (await explored(subject, task)).legal(tool.name)
    return legal[0].call if legal else None


async def all_answers(subject: Subject) -> list[tuple[Task, Call, str]]:
    """What tools returned, to the expert's calls and to those that were tried."""
    heard: list[tuple[Task, Call, str]] = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            heard += [(task, one.call, one.result.content) for one in (await explored(subject, task)).tried]
    return heard


def _variations(tool: Tool, working: Call) -> Iterator[tuple[str, Call]]:
    """Calls that the schema allows as much as one that works, each with what is wrong when it fails."""
    for name, hint in tool.hints.items():
        if name not in tool.required and name in working.arguments:
            left = {key: value for key, value in working.arguments.items() if key != name}
            yield f"the optional argument {name!r} cannot be left out", Call(tool.name, left)
        for one in alternatives(hint):
            if get_origin(one) is Literal:
                for value in get_args(one):
                    what = f"the value {value!r} of {name!r}{_OFFERED}"
                    yield what, Call(tool.name, {**working.arguments, name: value})
            elif one in (str, int, float, bool) and fits(_FALSY[one], hint):
                what = f"the falsy value {_FALSY[one]!r} of {name!r} is taken for a missing one"
                yield what, Call(tool.name, {**working.arguments, name: _FALSY[one]})


_OFFERED = ", which the schema offers, is refused"
_FALSY = {str: "", int: 0, float: 0.0, bool: False}


def _is_refusal(what: str, said: str, *, failed: bool) -> bool:
    """Whether an answer shows the fault. A value out of range may be refused; one that is there is not missing."""
    if "falsy" not in what:
        return failed
    words = ("missing", "required", "not given", "no value", "must be given", "not provided", "must provide", "is none")
    return (failed and _is_crash(said)) or (
        len(said) < 300 and any(word in said.lower() for word in words) and ("error" in said.lower() or failed)
    )


async def _fails_anyway(subject: Subject, task: Task, working: Call, falsy: Call) -> bool:
    """Whether the tool fails likewise at a value that is merely unknown."""
    name = next(key for key, value in falsy.arguments.items() if value != working.arguments.get(key))
    unknown = {**working.arguments, name: strange(working).arguments.get(name, "zzz-unknown")}
    said = (await answers_apart(subject, task, [Call(falsy.tool, unknown)]))[0]
    return said.error is not None and _is_crash(said.content)


async def _shown_to_fit(subject: Subject, task: Task, tool: str) -> list[Call]:
    """Calls whose arguments are what a tool is meant to take: the expert's, and legal ones of a tool that refuses unknown
    values."""
    legal = [one.call for one in (await explored(subject, task)).legal(tool)[:1]]
    unknown = await answers_apart(subject, task, [strange(one) for one in legal])
    return [*await expert_calls(subject, task), *(legal if any(map(is_refusal, unknown)) else ())]


def _misfits(task: Task, tool: Tool, known: Collection[str]) -> dict[str, dict[str, Json]]:
    """Arguments whose declared type the task's own data does not have. Of those `known` a legal call shows that it fits: what
    the data calls so is something else."""
    found = {}
    for key, value in leaves(task.fields):
        if (
            key in tool.hints
            and key not in known
            and isinstance(value, str | int | float | bool)
            and not fits(value, tool.hints[key])
        ):
            what = f"{key!r} is declared otherwise than the task's own data has it"
            declared = tool.schema["function"]["parameters"]["properties"][key]
            if declared.get("type") == "array":  # several of what the data has one of
                continue
            found[what] = {"task": task.id, "value": value, "declared": declared}
    return found


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _has_constant(text: str) -> bool:
    """Whether a text is JSON but for NaN and Infinity."""
    constants: list[str] = []
    try:
        json.loads(text, parse_constant=constants.append)
    except ValueError:
        return False
    return bool(constants)


def _is_python(text: str) -> bool:
    try:
        return isinstance(ast.literal_eval(text), dict | list)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _is_crash(said: str) -> bool:
    """Whether an error is one that no author raises on purpose."""
    crashes = (
        "TypeError", "AttributeError", "NameError", "UnboundLocalError", "KeyError", "IndexError", "NotImplementedError",
        "ZeroDivisionError", "RecursionError", "AssertionError", "ImportError", "ModuleNotFoundError",
    )  # fmt: skip
    return any(f" failed: {name}" in said for name in crashes)
