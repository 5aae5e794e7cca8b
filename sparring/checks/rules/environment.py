"""Rules on reliable environments: episodes run to their end, can be repeated, and do not depend on earlier calls or
concurrent episodes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparring.agents.scripted import Asked, ScriptedPolicy, saying
from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call, explore_task, list_expert_calls
from sparring.checks.evidence.leaked_resources import find_holding, find_kept_globals
from sparring.checks.evidence.legal_calls import (
    list_likely_calls,
    make_explorer,
    make_policies,
    run_calls,
    run_calls_apart,
    split_into_turns,
)
from sparring.checks.evidence.subject import Subject, find_first_difference, write_transcript
from sparring.checks.evidence.survey import (
    choose_num_tasks,
    get_documentation,
    is_worded_as_reading,
    is_worded_as_writing,
    survey_task,
)
from sparring.checks.evidence.writing_tools import find_writing_tools
from sparring.checks.running.time_budget import OutOfTimeError, TimedOutError, UndecidedError
from sparring.environments import StatefulEnvironment, tool_call
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, Task

MOST_STEADY = 4
"""The number of calls to one tool that are made in a different order."""
_SPEAKS_OF_STATE = re.compile(
    r"\b(?:next|last|current(?:ly)?|previous|selected|again|continues?|cursor|chosen|so "
    r"far|opened|random(?:ly)?|rolls?|draws?|"
    r"attempts?|guess|moves on|pops?)\b"
)
_COMMON = frozenset(("get", "list", "find", "search", "show", "read", "look", "all", "of", "the", "by", "for", "in"))
AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."


async def plays(subject: Subject) -> Iterable[Finding]:
    """Episodes run to their end.

    The rule runs a sample of the training tasks with the scripted expert, if there is one, and with a policy that calls
    every tool once. A `reset` or `close` that raises an exception, or a call that does not return or terminates the
    process, makes every other check worthless. Training would lose each such episode. Fix this finding first.
    """
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for policy in await make_policies(subject, task):
                await subject.run_episode(task, policy, graded=False)
    return ()


async def same_twice(subject: Subject) -> Iterable[Finding]:
    """The same task and the same actions give the same conversation when they run twice in one process.

    The rewards within a group can only be compared if all its episodes see the same environment. Draw random numbers
    from `random.Random(task.seed)`, keep nothing between episodes, and sort everything that is read from sets and
    directories.
    """
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for policy in await make_policies(subject, task):
                first = await subject.run_episode(task, policy, graded=False)
                second = await subject.run_episode(task, policy, repeat=1, graded=False)
                difference = find_first_difference(write_transcript(first.messages), write_transcript(second.messages))
                if difference is not None:
                    return [_not_the_same(task, policy, difference)]
    return ()


def _not_the_same(task: Task, policy: ScriptedPolicy, difference: Mapping[str, Json]) -> Finding:
    return Finding(
        rule="environment.same_twice",
        severity=Severity.ERROR,
        symptom=f"running task {task.id} twice with the same actions gives two different conversations.",
        evidence={"task": task.id, "policy": policy.name, **difference},
        change="Draw random values from a generator seeded by the task, and keep nothing between episodes. "
        "`environment.randomness` and `environment.clock` report the lines of code.",
        confirm=AGAIN,
    )


async def order(subject: Subject) -> Iterable[Finding]:
    """Read-only tools return the same results when they are called in a different order, after other read-only tools,
    or again.

    Legal calls are made in reverse order, and each call is made twice, in fresh environments. If a result differs, the
    rule searches for the call that causes the difference. The results may differ for a tool that changes something, as
    shown by its effect, its name or its description. They may also differ for a tool whose description mentions the
    next or the last item, for a `StatefulEnvironment`, and for the only tool of an environment. Any other result that
    depends on earlier calls reveals a hidden state that the policy cannot know.
    """
    assert subject.environment_class is not None, "the rule needs an environment"
    if issubclass(subject.environment_class, StatefulEnvironment) or len(subject.tools) < 2:
        return ()
    found: dict[str, dict[str, Json]] = {}
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[: choose_num_tasks(subject, len(subject.sample))]:
            calls = await _steady_calls(subject, task)
            before = list((await survey_task(subject, task)).opening)
            if not calls:
                continue
            alone = await run_calls_apart(subject, task, calls, before)
            forth = (await run_calls(subject, task, [*before, *calls]))[len(before) :]
            back = (await run_calls(subject, task, [*before, *calls[::-1]]))[len(before) :][::-1]
            twice = (await run_calls(subject, task, [*before, *(one for one in calls for _ in range(2))]))[
                len(before) :
            ]
            for call, first, *others in zip(calls, alone, forth, back, twice[1::2], strict=True):
                if call.tool in found or all(one.content == first.content for one in others):
                    continue
                seen = await _made_different(subject, task, before, calls, call, first.content)
                if seen is not None:
                    found[call.tool] = {"task": task.id, "call": str(call), "alone": first.content[:300], **seen}
    subject.shared["unsteady tools"] = frozenset(found)
    return [
        Finding(
            rule="environment.order",
            severity=Severity.WARNING,
            symptom=f"the result of {name} depends on earlier calls: "
            + (
                "it differs when the tool is called again"
                if evidence["culprit"] == name
                else f"on {evidence['culprit']}"
            )
            + ", although no description announces a change.",
            evidence=evidence,
            change="Compute the result only from the task. If the difference is intended, state it in the description "
            "of both tools.",
            confirm=AGAIN,
        )
        for name, evidence in found.items()
    ]


async def _steady_calls(subject: Subject, task: Task) -> list[Call]:
    """Return some legal calls to each tool that, according to its name and description, is not meant to change
    anything."""
    survey, explored_calls = await survey_task(subject, task), await explore_task(subject, task)
    writing = await find_writing_tools(subject)
    calls = []
    for name in subject.tools:
        description = subject.tools[name].schema["function"].get("description")
        is_writing = name in writing or (is_worded_as_writing(subject, name) and description)
        if (is_writing and not is_worded_as_reading(subject, name)) or _SPEAKS_OF_STATE.search(
            get_documentation(subject, name)
        ):
            continue
        own = [one.call for one in survey.found(name)] or [one.call for one in explored_calls.legal(name)[:1]]
        step = max(1, len(own) // MOST_STEADY)
        calls += own[::step][:MOST_STEADY]
    return calls


async def _made_different(
    subject: Subject, task: Task, before: Sequence[Call], calls: Sequence[Call], call: Call, alone: str
) -> dict[str, Json] | None:
    """Return the one call after which another call returns a different result. Return None if no single call causes the
    difference, or if the difference is allowed."""
    if (await run_calls(subject, task, [*before, call]))[-1].content != alone:
        return None  # the result depends on other episodes
    others = [one for one in calls if one.tool != call.tool] + [one for one in calls if one.tool == call.tool]
    for other in others:
        result = (await run_calls(subject, task, [*before, other, call]))[-1].content
        if result != alone:
            words = set(split_words(other.tool)) - _COMMON
            is_meant = any(word in get_documentation(subject, call.tool) for word in words) or not is_worded_as_reading(
                subject, other.tool
            )
            if is_meant and other.tool != call.tool:
                return None
            return {"culprit": other.tool, "after": str(other), "then": result[:300]}
    return None


async def isolation(subject: Subject) -> Iterable[Finding]:
    """Two concurrent episodes run exactly as they would run alone, and no data from one episode appears in the other.

    Training runs episodes concurrently, so everything that they share leaks: class attributes, module globals, and
    files and database rows with fixed names. The same is true of names derived from the task, because all episodes of a
    group have the same task. The rule passes a marked text to the tools of one episode. Afterwards, it searches for
    this text in the other episode's conversation and in the module globals. In addition, two episodes of one task make
    the same calls concurrently, and must end in the same state as an episode that runs alone. Keep state on `self`, and
    create it in `reset`.
    """
    findings: list[Finding] = []
    pairs = list(zip(subject.sample, [*subject.sample[1:], subject.sample[0]], strict=True))
    with subject.timing.as_far_as_it_goes():
        for one, other in pairs[:4]:
            for policies in zip(await make_policies(subject, one), await make_policies(subject, other), strict=True):
                found = await _compare_with_concurrent(subject, (one, other), policies)
                if found is not None and not findings:
                    findings.append(found)
        findings += await _canaries(subject, *pairs[0]) or ([] if findings else await _of_one_task(subject))
    return findings


async def _compare_with_concurrent(
    subject: Subject, tasks: tuple[Task, Task], policies: Sequence[ScriptedPolicy]
) -> Finding | None:
    """Run the episodes of two tasks one after the other, and then concurrently. Return a finding if one of them runs
    differently."""
    alone = [
        await subject.run_episode(task, policy, graded=False) for task, policy in zip(tasks, policies, strict=True)
    ]
    subject.timing.need(2)
    together = await asyncio.gather(
        *(subject.run_new_episode(task, policy) for task, policy in zip(tasks, policies, strict=True))
    )
    for first, second in zip(alone, together, strict=True):
        difference = find_first_difference(write_transcript(first.messages), write_transcript(second.messages))
        if difference is not None:
            concurrent = tasks[1] if first.task is tasks[0] else tasks[0]
            symptom = (
                f"task {first.task.id} runs differently while an episode of task {concurrent.id} runs concurrently."
            )
            return _shared(symptom, {"task": first.task.id, **difference})
    return None


async def _of_one_task(subject: Subject) -> list[Finding]:
    """Return a finding if an episode has different results or a different final state while another episode of the same
    task makes the same calls."""

    async def seen(task: Task, policy: ScriptedPolicy) -> list[tuple[str, str]]:
        try:
            played = await subject.run_new_episode(task, policy)
        except (OutOfTimeError, TimedOutError):
            raise
        except UndecidedError as error:
            return [("episode", str(error))]
        return [*write_transcript(played.messages), ("final state", repr(played.final_state))]

    for task in subject.sample[:2]:
        calls = (await explore_task(subject, task)).script
        # Two rounds are necessary: the second reads what the first wrote.
        twice = saying(
            "everything twice", [*split_into_turns(subject, [*calls, *calls]), {"role": "assistant", "content": "done"}]
        )
        alone, again = [await seen(task, twice) for _ in range(2)]
        for concurrent in await asyncio.gather(seen(task, twice), seen(task, twice)) if alone == again else ():
            difference = find_first_difference(alone, concurrent)
            if difference is not None:
                symptom = f"task {task.id} runs differently while another episode of the same task runs concurrently."
                return [_shared(symptom, {"task": task.id, **difference})]
    return []


def _shared(symptom: str, evidence: Mapping[str, Json]) -> Finding:
    return Finding(
        rule="environment.isolation",
        severity=Severity.ERROR,
        symptom=symptom,
        evidence=evidence,
        change="Keep an episode's data on `self`, create it in `reset`, and use names that are unique to the episode.",
        confirm=AGAIN,
    )


async def _canaries(subject: Subject, one: Task, other: Task) -> list[Finding]:
    """Mark the texts that one episode passes to its tools. Then search for the mark in the other episode and in the
    modules."""
    mark = f"canary{subject.rng('canary').randrange(10**6)}"
    marked = await _marked(subject, one, mark)
    neighbour = await make_explorer(subject, other)
    _, concurrent = await asyncio.gather(
        subject.run_new_episode(one, marked), subject.run_new_episode(other, neighbour)
    )
    for index, (role, text) in enumerate(write_transcript(concurrent.messages)):
        if mark in text and role != "assistant":
            evidence = {"task": one.id, "seen_in_task": other.id, "message": index, "text": text[:300], "mark": mark}
            return [_shared(f"a text of task {one.id} appears in task {other.id}.", evidence)]
    kept = find_kept_globals(subject)
    keeping = find_holding(kept, mark)
    if keeping:
        evidence = {"task": one.id, "kept_in": keeping, "mark": mark}
        finding = _shared(f"a text of task {one.id} is kept in {keeping[0]} after its end.", evidence)
        # A cache of the standard library returns the same result to all callers. It only grows.
        is_cache = all(hasattr(kept[name], "cache_info") for name in keeping)
        return [replace(finding, severity=Severity.WARNING) if is_cache else finding]
    return []


async def _marked(subject: Subject, task: Task, mark: str) -> ScriptedPolicy:
    """Return a policy that calls every tool with a mark in every text, and then makes the expert's calls."""
    calls = []
    for tool in subject.tools.values():
        likely = (await list_likely_calls(subject, task, tool))[0]
        calls.append(
            Call(
                tool.name,
                {name: mark if tool.hints[name] is str else value for name, value in likely.arguments.items()},
            )
        )
    messages = [tool_call(one.tool, **one.arguments) for one in [*calls, *await list_expert_calls(subject, task)]]

    def act(asked: Asked) -> Message:
        return messages[asked.turn] if asked.turn < len(messages) else {"role": "assistant", "content": mark}

    return ScriptedPolicy("marked", act)
