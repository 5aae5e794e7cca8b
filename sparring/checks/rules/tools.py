"""Rules on tools: they must do what their schemas state. They must accept the arguments that they offer, use them, and
answer with JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args, get_origin

from sparring.agents.scripted import saying
from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.explore import Call, TriedCall, explore_task, is_nothing, is_refusal, list_expert_calls
from sparring.checks.evidence.legal_calls import (
    accepts_parts,
    leaves,
    list_calls_before,
    list_likely_calls,
    list_types,
    make_strange,
    run_calls_apart,
)
from sparring.checks.evidence.stated_limits import list_choices, list_limits
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import choose_num_tasks
from sparring.checks.evidence.writing_tools import find_writing_tools
from sparring.environments import answer, tool_call
from sparring.environments.tools import Tool, fits
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
MOST_SHOWN = 40
"""The maximum number of characters of a string that a finding shows."""
NUM_LIMITED = 4
"""The number of tasks in which the limits of arguments are tried."""
FEWEST_TRIES = 3
"""A tool is broken if it fails in the same way for this number of calls with different arguments."""
NUM_NAMED = 8
"""The maximum number of tools that one finding shows."""


async def arguments_ignored(subject: Subject) -> Iterable[Finding]:
    """A tool's result depends on its arguments.

    The rule calls tools with the correct arguments and with other arguments. If a tool returns the same result for all
    arguments, but a different result in another task, it gives the correct result even to wrong calls. The policy then
    learns to call it with arbitrary arguments. Equivalent calls, for example with and without a default, count as one
    call. The rule warns if a required argument of a read-only tool makes no difference in any task.
    """
    varied = await _vary_arguments(subject)
    findings = []
    for name, seen in varied.items():
        depends_on_task = len({content for _, _, contents in seen for content in contents}) > 1
        if len(seen) > 1 and depends_on_task and all(len(contents) == 1 for _, _, contents in seen):
            task, calls, _ = seen[0]
            if await _acts_by_arguments(subject, task, calls):
                continue
            findings.append(_report_ignored(name, seen))
    return [*findings, *await _unused(subject, known={one.evidence["tool"] for one in findings})]


async def _vary_arguments(subject: Subject) -> dict[str, list[tuple[Task, list[Call], set[str]]]]:
    """Return for each tool and task the calls with different arguments, and their results, if no call fails."""
    varied: dict[str, list[tuple[Task, list[Call], set[str]]]] = {}
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for name, tool in subject.tools.items():
                if not tool.hints:
                    continue
                calls = (await list_likely_calls(subject, task, tool))[:4]
                calls = _different(tool, [*calls, *map(make_strange, calls[:1])])
                results = await run_calls_apart(subject, task, calls, await list_calls_before(subject, task, name))
                if len(results) > 1 and all(one.error is None for one in results):
                    varied.setdefault(name, []).append((task, calls, {one.content for one in results}))
    return varied


def _report_ignored(name: str, seen: Sequence[tuple[Task, list[Call], set[str]]]) -> Finding:
    task, calls, contents = seen[0]
    return Finding(
        rule="environment.arguments_ignored",
        severity=Severity.ERROR,
        symptom=f"{name} returns the answer of the task for any arguments.",
        evidence={
            "tool": name,
            "task": task.id,
            "calls": [str(one) for one in calls],
            "answer_to_all": next(iter(contents)),
            "tasks": len(seen),
        },
        change="Look up the answer by the arguments, and report an error if there is none.",
        confirm=AGAIN,
    )


def _different(tool: Tool, calls: Sequence[Call]) -> list[Call]:
    """Return one of each group of equivalent calls. An argument that is left out has its default value."""
    properties = tool.schema["function"].get("parameters", {}).get("properties", {})
    defaults = {name: part["default"] for name, part in properties.items() if "default" in part}
    return list({json.dumps({**defaults, **one.arguments}, sort_keys=True): one for one in calls}.values())


async def _acts_by_arguments(subject: Subject, task: Task, calls: Sequence[Call]) -> bool:
    """Return True if a tool's effect on the final state depends on its arguments. If the environment has no final
    state, return True if the tool changes anything. The result is not compared, because a tool that writes may return
    only an id."""
    scripts = [(str(one), (tool_call(one.tool, **one.arguments), answer("done"))) for one in calls]
    played = [await subject.run_episode(task, saying(name, script), graded=False) for name, script in scripts]
    states = [one.final_state for one in played]
    if all(state is None for state in states):
        return calls[0].tool in await find_writing_tools(subject)
    return len(set(map(canonical, states))) > 1


async def tools_answer(subject: Subject) -> Iterable[Finding]:
    """For every tool, there is a call that works and returns something.

    The rule makes the expert's calls, and other calls that it derives from the task's fields, the names in the prompt
    and in earlier results, the schema, and recorded conversations. It reports an error if a tool fails on the expert's
    calls, or fails on every call in the same way regardless of the arguments. If no legal call of a tool is known, the
    tool is not tested, which is reported as a note. In this case, name its arguments in the prompt, define
    `demonstrate`, or provide recorded calls (`--production FILE`) or a model that explores (`--reference URL#MODEL`).
    The rule warns if a tool returns nothing on every call. A tool that changes something may return `null`, but not an
    empty text.
    """
    tried: dict[str, list[tuple[Task, TriedCall]]] = {name: [] for name in subject.tools}
    shown: set[str] = set()
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            shown |= {one.tool for one in await list_expert_calls(subject, task)}
            for one in (await explore_task(subject, task)).tried:
                tried[one.call.tool].append((task, one))
    findings: list[Finding] = []
    untested: dict[str, Json] = {}
    for name, seen in tried.items():
        evidence: dict[str, Json] = {"tool": name, "tried": [_shown(task, one) for task, one in seen[:4]]}
        if any(one.is_legal for _, one in seen):
            is_meant = any(_is_meant(task, one) for task, one in seen)
            is_silent = is_meant and not any(one.is_informative for _, one in seen)
            if is_silent and not (
                await _answers_after_expert(subject, [(task, one.call) for task, one in seen[:2]])
                or await accepts_parts(subject, name)
            ):
                nothing = sorted({one.result.content.strip() for _, one in seen if one.is_legal})
                is_writing = name in await find_writing_tools(subject)
                # The effect of a writing tool is in the state; its result only has to exist.
                if is_writing and "" not in nothing:
                    continue
                findings.append(_silent(name, len(seen), nothing, evidence, is_writing=is_writing))
        elif seen and (name in shown or _is_broken([one for _, one in seen])):
            findings.append(
                Finding(
                    rule="environment.tools_answer",
                    severity=Severity.ERROR,
                    symptom=f"{name} failed at every one of {len(seen)} calls, "
                    + ("including the expert's." if name in shown else "in the same way for all arguments."),
                    evidence=evidence,
                    change="Correct the line in the evidence, or remove the tool.",
                    confirm=AGAIN,
                )
            )
        else:
            untested[name] = evidence["tried"]
    if untested:
        # One finding lists all untested tools, because an environment may offer a hundred tools that a task does not
        # need.
        some = ", ".join(list(untested)[:NUM_NAMED]) + (", ..." if len(untested) > NUM_NAMED else "")
        findings.append(
            Finding(
                rule="environment.tools_answer",
                severity=Severity.NOTE,
                symptom=f"{len(untested)} of {len(subject.tools)} tools were not tested, because no legal call is "
                f"known: {some}.",
                evidence={"not_tested": list(untested), "tried": dict(list(untested.items())[:NUM_NAMED])},
                change="Name in the prompt or the schema what these tools accept, or show it in `demonstrate`. Or "
                "provide recorded calls with --production FILE, or a model that explores with --reference URL#MODEL.",
                confirm="Run `sparring check` again: its first line counts these tools as reached.",
            )
        )
    return findings


def _silent(name: str, num: int, nothing: Sequence[str], evidence: Mapping[str, Json], *, is_writing: bool) -> Finding:
    read = " or ".join(f"`{one}`" if one else "an empty result" for one in nothing)
    return Finding(
        rule="environment.tools_answer",
        severity=Severity.WARNING,
        symptom=f"{name} returned nothing at every one of {num} calls, but no error: the model reads {read}.",
        evidence=evidence,
        change="Return at least a word: an empty result does not show the model whether the call did anything."
        if is_writing
        else "Return what the real tool returns. If the tool is a stub, let it report that, or remove it.",
        confirm=AGAIN,
    )


def _shown(task: Task, tried: TriedCall) -> dict[str, Json]:
    shown: dict[str, Json] = {"task": task.id, "call": str(tried.call), "answer": tried.result.content[:200]}
    return shown if tried.line is None else {**shown, "line": tried.line}


def _is_meant(task: Task, tried: TriedCall) -> bool:
    """Return True if a call must find something. Either its result is not an empty list of matches, or the requested
    texts are not guesses but different texts from the task's own fields, if the task has any."""
    known = {value for _, value in leaves(task.fields) if isinstance(value, str)}
    texts = [value for _, value in leaves(tried.call.arguments) if isinstance(value, str)]
    is_own = len(set(texts) & known) == len(texts)
    return tried.result.content.strip() not in ("[]", "{}") or not known or is_own


def _is_broken(tried: Sequence[TriedCall]) -> bool:
    """Return True if a tool failed at the same line and in the same way for all arguments, and no author would intend
    this."""
    failures = {(one.result.content, one.line) for one in tried}
    is_tried = len(tried) >= FEWEST_TRIES or not any(one.call.arguments for one in tried)
    return is_tried and len(failures) == 1 and _is_crash(tried[0].result.content)


async def schema(subject: Subject) -> Iterable[Finding]:
    """Tools accept what their schemas offer.

    The rule starts from calls that work. It leaves out each optional argument, tries each value of an enumeration, and
    passes 0, "" and false if they are allowed. Arguments from the task's own data must have the declared type. If a
    schema or a description states limits or lists values, the rule passes these values and, for each limit, the next
    value inside it. It warns if the limit itself is refused although the value inside it is accepted. The model sees
    only the schema. Values that the schema offers but the code refuses cost turns and teach wrong conclusions.
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
            change="Correct the type hints, defaults or code of the tool, so that they agree.",
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
    """Make the tool accept what its schema allows. If a value of an enumeration is `taken` in another task, the schema
    is correct, and the named item does not exist in this task."""
    working = await _working(subject, task, tool)
    if working is None:
        return
    before = await list_calls_before(subject, task, tool.name)
    variations = [
        (what, call)
        for what, call in _variations(tool, working)
        if (tool.name, what) not in taken and (what.endswith(_OFFERED) or (tool.name, what) not in found)
    ]
    results = await run_calls_apart(subject, task, [call for _, call in variations], before)
    for (what, call), result in zip(variations, results, strict=True):
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
    """Return the limits that tools refuse in every task although they accept the next value inside the limit."""
    seen: dict[tuple[str, str], list[tuple[bool, bool, dict[str, Json]]]] = {}
    for task in subject.sample[: choose_num_tasks(subject, NUM_LIMITED)]:
        for name, tool in subject.tools.items():
            working = await _working(subject, task, tool)
            limits = [*list_limits(tool.schema), *list_choices(tool.schema)] if working is not None else []
            if working is None or not limits:
                continue
            calls = [Call(name, {**working.arguments, key: value}) for key, *values in limits for value in values]
            allowed = [subject.problem_with(name, one.arguments) is None for one in calls]
            if not all(allowed):
                continue
            results = await run_calls_apart(subject, task, calls, await list_calls_before(subject, task, name))
            for index, (key, limit, _) in enumerate(limits):
                at_limit, inside = results[2 * index : 2 * index + 2]
                what = f"the limit {_show_limit(limit)} of {key!r}, which is allowed, is refused"
                evidence: dict[str, Json] = {
                    "task": task.id,
                    "call": str(calls[2 * index]),
                    "answer": at_limit.content[:300],
                    "inside": str(calls[2 * index + 1]),
                    "answer_inside": inside.content[:300],
                }
                seen.setdefault((name, what), []).append((is_refusal(at_limit), is_refusal(inside), evidence))
    return {
        key: tried[0][2]
        for key, tried in seen.items()
        if all(limit for limit, _, _ in tried)
        and sum(not inside for _, inside, _ in tried) >= min(2, len(subject.sample))
    }


def _show_limit(limit: Json) -> str:
    is_long = isinstance(limit, str) and len(limit) > MOST_SHOWN
    return f"of {len(limit)} characters" if is_long else repr(limit)


async def json_results(subject: Subject) -> Iterable[Finding]:
    """Tools return valid JSON or plain text.

    NaN, Infinity, dates, sets and objects are not JSON. A call that returns them fails, and the policy reads an error
    instead of the result. A Python dictionary written with `str` looks like JSON but cannot be parsed. Return plain
    values.
    """
    found: dict[str, tuple[Severity, str, dict[str, Json]]] = {}
    for task, call, content in await collect_answers(subject):
        evidence: dict[str, Json] = {"task": task.id, "call": str(call), "answer": content[:300]}
        if "not JSON compliant" in content or "is not JSON serializable" in content:
            found.setdefault(call.tool, (Severity.ERROR, "returns a value that JSON cannot represent", evidence))
        elif _has_constant(content):
            found.setdefault(call.tool, (Severity.ERROR, "returns NaN or Infinity, which are not JSON", evidence))
        elif content[:1] in ("{", "[") and not _parses(content) and _is_python(content):
            what = "returns a Python value that looks like JSON, but is not"
            found.setdefault(call.tool, (Severity.WARNING, what, evidence))
    return [
        Finding(
            rule="environment.json",
            severity=severity,
            symptom=f"{name} {what}.",
            evidence=evidence,
            change="Return None for missing values, and plain values (dict, list, str, int, float, bool) for the rest.",
            confirm=AGAIN,
        )
        for name, (severity, what, evidence) in found.items()
    ]


async def _unused(subject: Subject, known: Collection[str]) -> Iterable[Finding]:
    """Return findings on individual arguments that make no difference, except for tools that another finding names."""
    seen: dict[tuple[str, str], list[tuple[Task, list[Call], set[str]]]] = {}
    with subject.timing.as_far_as_it_goes():
        writing = await find_writing_tools(subject)
        for task in subject.sample:
            for tool in subject.tools.values():
                if tool.name in writing or len(tool.required) < 2:
                    continue
                working = await _working(subject, task, tool)
                for name, calls in () if working is None else _one_by_one(tool, working):
                    before = await list_calls_before(subject, task, tool.name)
                    contents = {one.content for one in await run_calls_apart(subject, task, calls, before)}
                    seen.setdefault((tool.name, name), []).append((task, calls, contents))
    return [
        Finding(
            rule="environment.arguments_ignored",
            severity=Severity.WARNING,
            symptom=f"{tool} returns the same result for every value of its argument {name!r}.",
            evidence={"task": tried[0][0].id, "calls": [str(one) for one in tried[0][1]], "tasks": len(tried)},
            change=f"Use {name!r}, or remove it from the schema. Otherwise, the policy learns that arguments mean "
            f"nothing.",
            confirm=AGAIN,
        )
        for (tool, name), tried in seen.items()
        if tool not in known
        and len({content for *_, contents in tried for content in contents}) > 1
        and all(len(contents) == 1 for *_, contents in tried)
    ]


def _one_by_one(tool: Tool, working: Call) -> Iterator[tuple[str, list[Call]]]:
    """Yield, for each required argument, a call that works, and variants of this call that differ only in the value of
    this argument."""
    for name in tool.required & working.arguments.keys():
        values: list[Json] = [make_strange(working).arguments[name]]
        for one in list_types(tool.hints[name]):
            values = list(get_args(one)) if get_origin(one) is Literal else values
        others = [value for value in values if value != working.arguments[name]]
        if others:
            yield name, [working, *(Call(tool.name, {**working.arguments, name: value}) for value in others)]


async def _answers_after_expert(subject: Subject, calls: Sequence[tuple[Task, Call]]) -> bool:
    """Return True if a tool returns something after the expert has finished. Before that, a list may be empty."""
    for task, call in calls:
        results = await run_calls_apart(subject, task, [call], await list_expert_calls(subject, task))
        if not is_nothing(results[-1].content):
            return True
    return False


async def _working(subject: Subject, task: Task, tool: Tool) -> Call | None:
    """Return a call that does not fail, or None if no such call is known."""
    legal = (await explore_task(subject, task)).legal(tool.name)
    return legal[0].call if legal else None


async def collect_answers(subject: Subject) -> list[tuple[Task, Call, str]]:
    """Return the results of the expert's calls and of the calls that were tried."""
    heard: list[tuple[Task, Call, str]] = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            heard += [(task, one.call, one.result.content) for one in (await explore_task(subject, task)).tried]
    return heard


def _variations(tool: Tool, working: Call) -> Iterator[tuple[str, Call]]:
    """Yield other calls that the schema allows, each with a description of the defect if it fails."""
    for name, hint in tool.hints.items():
        if name not in tool.required and name in working.arguments:
            left = {key: value for key, value in working.arguments.items() if key != name}
            yield f"the optional argument {name!r} cannot be left out", Call(tool.name, left)
        for one in list_types(hint):
            if get_origin(one) is Literal:
                for value in get_args(one):
                    what = f"the value {value!r} of {name!r}{_OFFERED}"
                    yield what, Call(tool.name, {**working.arguments, name: value})
            elif one in (str, int, float, bool) and fits(_FALSY[one], hint):
                what = f"the falsy value {_FALSY[one]!r} of {name!r} is treated as missing"
                yield what, Call(tool.name, {**working.arguments, name: _FALSY[one]})


_OFFERED = ", which the schema offers, is refused"
_FALSY = {str: "", int: 0, float: 0.0, bool: False}


def _is_refusal(what: str, content: str, *, failed: bool) -> bool:
    """Return True if a result shows the defect. A value that is out of range may be refused, but must not be reported
    as missing."""
    if "falsy" not in what:
        return failed
    words = ("missing", "required", "not given", "no value", "must be given", "not provided", "must provide", "is none")
    return (failed and _is_crash(content)) or (
        len(content) < 300 and any(word in content.lower() for word in words) and ("error" in content.lower() or failed)
    )


async def _fails_anyway(subject: Subject, task: Task, working: Call, falsy: Call) -> bool:
    """Return True if the tool fails in the same way for a value that is merely unknown."""
    name = next(key for key, value in falsy.arguments.items() if value != working.arguments.get(key))
    unknown = {**working.arguments, name: make_strange(working).arguments.get(name, "zzz-unknown")}
    result = (await run_calls_apart(subject, task, [Call(falsy.tool, unknown)]))[0]
    return result.error is not None and _is_crash(result.content)


async def _shown_to_fit(subject: Subject, task: Task, tool: str) -> list[Call]:
    """Return calls whose arguments a tool should accept: the expert's calls, and legal calls to a tool that refuses
    unknown values."""
    legal = [one.call for one in (await explore_task(subject, task)).legal(tool)[:1]]
    unknown = await run_calls_apart(subject, task, [make_strange(one) for one in legal])
    return [*await list_expert_calls(subject, task), *(legal if any(map(is_refusal, unknown)) else ())]


def _misfits(task: Task, tool: Tool, known: Collection[str]) -> dict[str, dict[str, Json]]:
    """Return arguments whose declared type differs from the type in the task's own data. Arguments in `known` are left
    out: a legal call shows that their type is correct, and that the data uses their name for something else."""
    found = {}
    for key, value in leaves(task.fields):
        if (
            key in tool.hints
            and key not in known
            and isinstance(value, str | int | float | bool)
            and not fits(value, tool.hints[key])
        ):
            what = f"{key!r} is declared with a different type than the task's own data has"
            declared = tool.schema["function"]["parameters"]["properties"][key]
            if declared.get("type") == "array":  # the argument takes several of these values
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
    """Return True if a string is JSON except for NaN and Infinity."""
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


def _is_crash(content: str) -> bool:
    """Return True if no author raises such an error on purpose."""
    crashes = (
        "TypeError", "AttributeError", "NameError", "UnboundLocalError", "KeyError", "IndexError", "NotImplementedError",
        "ZeroDivisionError", "RecursionError", "AssertionError", "ImportError", "ModuleNotFoundError",
    )  # fmt: skip
    return any(f" failed: {name}" in content for name in crashes)
