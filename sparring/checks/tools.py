"""Do the tools do what their schemas say: take the arguments that they offer, heed them, and answer with JSON?"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, get_args, get_origin

from sparring.checks.calls import Call, alternatives, answers, changes, expert_calls, leaves, likely_calls, strange
from sparring.checks.registry import check
from sparring.checks.scripted import saying
from sparring.checks.subject import Subject
from sparring.environments import answer, tool_call
from sparring.environments.tools import Tool, fits
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
NUM_NAMED = 8
"""Tools that one finding shows."""


@check("environment.arguments_ignored", needs=("environment",))
async def arguments_ignored(subject: Subject) -> Iterable[Finding]:
    """What a tool answers depends on what it is asked.

    Tools are called with the right arguments and with others. A tool that answers the same to all of them, and something
    else in another task, hands out the right answer to wrong calls: the policy learns to call it with anything. A warning
    where one required argument of a tool that reads makes no difference in any task.
    """
    varied: dict[str, list[tuple[Task, list[Call], set[str]]]] = {}
    for task in subject.sample:
        for name, tool in subject.tools.items():
            if not tool.hints:
                continue
            calls = (await likely_calls(subject, task, tool))[:4]
            calls = [*calls, *map(strange, calls[:1])]
            said = [(await answers(subject, task, [one]))[0] for one in calls]
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
    return [*findings, *await _unheeded(subject, told={one.evidence["tool"] for one in findings})]


async def _acts_by_arguments(subject: Subject, task: Task, calls: Sequence[Call]) -> bool:
    """Whether what a tool does depends on its arguments, by the final state; by its name where the environment says no state.
    A tool that writes may answer with no more than an id."""
    said = [(str(one), (tool_call(one.tool, **one.arguments), answer("done"))) for one in calls]
    played = [await subject.play(task, saying(name, script), judged=False) for name, script in said]
    states = [one.final_state for one in played]
    if all(state is None for state in states):
        return changes(calls[0].tool)
    return len({json.dumps(state, sort_keys=True) for state in states}) > 1


@check("environment.tools_answer", needs=("environment",))
async def tools_answer(subject: Subject) -> Iterable[Finding]:
    """Every tool can be called so that it works and says something.

    A tool that fails whatever it is asked, or that returns nothing as if that were a success, teaches that calling it is
    useless, and hides what the procedure needs. The expert's calls and plausible ones are tried.
    """
    findings = []
    unneeded: dict[str, list[dict[str, Json]]] = {}
    shown: list[tuple[Task, Call, str, bool]] = []
    for task in subject.sample:
        # In their order: a tool may work only after others.
        calls = await expert_calls(subject, task)
        in_order = zip(calls, await answers(subject, task, calls), strict=True)
        shown += [(task, call, said.content, said.error is not None) for call, said in in_order]
    for name, tool in subject.tools.items():
        tried = [one for one in shown if one[1].tool == name]
        by_expert = bool(tried)
        for task in subject.sample:
            for call in await likely_calls(subject, task, tool):
                said = (await answers(subject, task, [call]))[0]
                tried.append((task, call, said.content, said.error is not None))
        # Crashes first: they are what makes an error of it.
        tried.sort(key=lambda one: not _is_crash(one[2]))
        evidence: list[dict[str, Json]] = [
            {"task": task.id, "call": str(call), "answer": said[:200]} for task, call, said, _ in tried[:4]
        ]
        if all(failed for *_, failed in tried):
            crashed = any(" failed: " in said and _is_crash(said) for _, _, said, _ in tried)
            if not by_expert and not crashed:
                unneeded[name] = evidence
                continue
            findings.append(
                Finding(
                    rule="environment.tools_answer",
                    severity=Severity.ERROR,
                    symptom=f"{name} failed at every one of {len(tried)} calls.",
                    evidence={"tool": name, "tried": evidence},
                    change="Mend the tool, or take it out; if it only works after other calls, have the expert show it.",
                    confirm=AGAIN,
                )
            )
        elif all(_is_nothing(said) for *_, said, failed in tried if not failed) and not await _answers_after_expert(
            subject, [(task, call) for task, call, *_ in tried[:2]]
        ):
            findings.append(
                Finding(
                    rule="environment.tools_answer",
                    severity=Severity.WARNING,
                    symptom=f"{name} returned nothing at every one of {len(tried)} calls, and no error.",
                    evidence={"tool": name, "tried": evidence},
                    change="Return what the real tool returns; if it is a stub, have it say so or take it out.",
                    confirm=AGAIN,
                )
            )
    if unneeded:
        # One finding, however many: an environment of several desks offers a hundred tools that a task has no use for.
        some = ", ".join(list(unneeded)[:NUM_NAMED]) + (", ..." if len(unneeded) > NUM_NAMED else "")
        findings.append(
            Finding(
                rule="environment.tools_answer",
                severity=Severity.WARNING,
                symptom=f"{len(unneeded)} of {len(subject.tools)} tools failed at every call, and the expert calls none of "
                f"them: {some}.",
                evidence={"tools": list(unneeded), "tried": dict(list(unneeded.items())[:NUM_NAMED])},
                change="Mend them, or offer each task its own tools only; where they only work after other calls or for other "
                "tasks than the sample's, have the expert show it.",
                confirm=AGAIN,
            )
        )
    return findings


@check("environment.schema", needs=("environment",))
async def schema(subject: Subject) -> Iterable[Finding]:
    """Tools take what their schemas offer.

    From calls that work, each optional argument is left out, each value of an enumeration tried, and 0, "" and false given
    where they are allowed; and arguments of the task's own data must have the declared type. The model sees the schema
    only: what it offers and the code refuses costs turns and teaches superstition.
    """
    found: dict[tuple[str, str], dict[str, Json]] = {}
    for task in subject.sample:
        for name, tool in subject.tools.items():
            given = {key for one in await expert_calls(subject, task) for key in one.arguments}
            for what, seen in _misfits(task, tool, known=given).items():
                found.setdefault((name, what), seen)
            working = await _working(subject, task, tool)
            if working is None:
                continue
            for what, call in _variations(tool, working):
                said = (await answers(subject, task, [call]))[0]
                if _is_refusal(what, said.content, failed=said.error is not None):
                    if "falsy" in what and await _fails_anyway(subject, task, working, call):
                        continue
                    seen = {"task": task.id, "works": str(working), "call": str(call), "answer": said.content[:300]}
                    found.setdefault((name, what), seen)
    return [
        Finding(
            rule="environment.schema",
            severity=Severity.WARNING if "falsy" in what else Severity.ERROR,
            symptom=f"{name}: {what}.",
            evidence=evidence,
            change="Have the type hints, defaults and code of the tool agree.",
            confirm=AGAIN,
        )
        for (name, what), evidence in found.items()
    ]


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


async def _unheeded(subject: Subject, told: Collection[str]) -> Iterator[Finding]:
    """Arguments that alone make no difference, of tools that are not told of already."""
    seen: dict[tuple[str, str], list[tuple[Task, list[Call], set[str]]]] = {}
    for task in subject.sample:
        for tool in subject.tools.values():
            if changes(tool.name) or len(tool.required) < 2:
                continue
            working = await _working(subject, task, tool)
            for name, calls in () if working is None else _one_by_one(tool, working):
                said = [(await answers(subject, task, [one]))[0] for one in calls]
                contents = {one.content for one in said}
                seen.setdefault((tool.name, name), []).append((task, calls, contents))
    return (
        Finding(
            rule="environment.arguments_ignored",
            severity=Severity.WARNING,
            symptom=f"{tool} answers the same whatever its argument {name!r} is.",
            evidence={"task": tried[0][0].id, "calls": [str(one) for one in tried[0][1]], "tasks": len(tried)},
            change=f"Heed {name!r}, or take it out of the schema: the policy learns that arguments mean nothing.",
            confirm=AGAIN,
        )
        for (tool, name), tried in seen.items()
        if tool not in told
        and len({content for *_, contents in tried for content in contents}) > 1
        and all(len(contents) == 1 for *_, contents in tried)
    )


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
        said = await answers(subject, task, [*await expert_calls(subject, task), call])
        if not _is_nothing(said[-1].content):
            return True
    return False


def _is_nothing(said: str) -> bool:
    return said.strip() in ("", "null", "{}", "[]", '""', "None")


async def _working(subject: Subject, task: Task, tool: Tool) -> Call | None:
    """A call that fails not; None when none was found."""
    for call in await likely_calls(subject, task, tool):
        if (await answers(subject, task, [call]))[0].error is None:
            return call
    return None


async def all_answers(subject: Subject) -> list[tuple[Task, Call, str]]:
    """What tools were heard to say, in the expert's episodes and to likely calls."""
    if "answers" not in subject.shared:
        heard = []
        for task in subject.sample:
            calls = await expert_calls(subject, task)
            in_order = zip(calls, await answers(subject, task, calls), strict=True)
            heard += [(task, call, said.content) for call, said in in_order]
            for tool in subject.tools.values():
                for call in await likely_calls(subject, task, tool):
                    heard.append((task, call, (await answers(subject, task, [call]))[0].content))
        subject.shared["answers"] = heard
    return subject.shared["answers"]


def _variations(tool: Tool, working: Call) -> Iterator[tuple[str, Call]]:
    """Calls that the schema allows as much as one that works, each with what is wrong when it fails."""
    for name, hint in tool.hints.items():
        if name not in tool.required and name in working.arguments:
            left = {key: value for key, value in working.arguments.items() if key != name}
            yield f"the optional argument {name!r} cannot be left out", Call(tool.name, left)
        for one in alternatives(hint):
            if get_origin(one) is Literal:
                for value in get_args(one):
                    what = f"the value {value!r} of {name!r}, which the schema offers, is refused"
                    yield what, Call(tool.name, {**working.arguments, name: value})
            elif one in (str, int, float, bool) and fits(_FALSY[one], hint):
                what = f"the falsy value {_FALSY[one]!r} of {name!r} is taken for a missing one"
                yield what, Call(tool.name, {**working.arguments, name: _FALSY[one]})


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
    said = (await answers(subject, task, [Call(falsy.tool, unknown)]))[0]
    return said.error is not None and _is_crash(said.content)


def _misfits(task: Task, tool: Tool, known: Collection[str]) -> dict[str, dict[str, Json]]:
    """Arguments whose declared type the task's own data does not have. Of those `known` the expert shows that it fits: what
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
