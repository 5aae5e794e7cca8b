"""Is the environment one that can be trusted: does it play, the same twice, whatever was asked before and beside it?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sparring.agents.scripted import Asked, ScriptedPolicy, saying
from sparring.checks.arguments import words_of
from sparring.checks.calls import answers, answers_apart, explorer, in_turns, likely_calls, players
from sparring.checks.explore import Call, expert_calls, explored
from sparring.checks.registry import check
from sparring.checks.residue import holds, kept_globals
from sparring.checks.subject import Subject, first_difference, transcript
from sparring.checks.survey import documented, is_worded_as_reading, is_worded_as_writing, num_tasks, surveyed
from sparring.checks.timing import OutOfTimeError, TimedOutError, UndecidedError
from sparring.checks.writes import writing_tools
from sparring.environments import StatefulEnvironment, tool_call
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, Task

MOST_STEADY = 4
"""Calls of one tool that are made in another order."""
_SPEAKS_OF_STATE = re.compile(
    r"\b(?:next|last|current(?:ly)?|previous|selected|again|continues?|cursor|chosen|so far|opened|random(?:ly)?|rolls?|draws?|"
    r"attempts?|guess|moves on|pops?)\b"
)
_COMMON = frozenset(("get", "list", "find", "search", "show", "read", "look", "all", "of", "the", "by", "for", "in"))
AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."


@check("environment.plays", needs=("environment",))
async def plays(subject: Subject) -> Iterable[Finding]:
    """Episodes can be played to their end.

    The scripted expert, where there is one, and a policy that calls every tool once play a sample of the training tasks. A
    `reset` or `close` that raises, a call that does not return or ends the process makes every other check worthless, and
    each such episode would be lost in training. Put it right first.
    """
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for policy in await players(subject, task):
                await subject.play(task, policy, judged=False)
    return ()


@check("environment.same_twice", needs=("environment",))
async def same_twice(subject: Subject) -> Iterable[Finding]:
    """The same task and the same actions give the same conversation, twice in one process.

    A reward can only be compared within a group when its members met the same world. Draw from `random.Random(task.seed)`,
    keep nothing between episodes, sort what comes out of sets and directories.
    """
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for policy in await players(subject, task):
                first = await subject.play(task, policy, judged=False)
                second = await subject.play(task, policy, repeat=1, judged=False)
                difference = first_difference(transcript(first.messages), transcript(second.messages))
                if difference is not None:
                    return [_not_the_same(task, policy, difference)]
    return ()


def _not_the_same(task: Task, policy: ScriptedPolicy, difference: Mapping[str, Json]) -> Finding:
    return Finding(
        rule="environment.same_twice",
        severity=Severity.ERROR,
        symptom=f"task {task.id} played twice with the same actions gives two conversations.",
        evidence={"task": task.id, "policy": policy.name, **difference},
        change="Draw whatever is random from a generator seeded by the task, and keep nothing between episodes; "
        "`environment.randomness` and `environment.clock` name lines.",
        confirm=AGAIN,
    )


@check("environment.order", needs=("environment",))
async def order(subject: Subject) -> Iterable[Finding]:
    """Tools that read give the same answers in another order, after other tools that read, and when asked again.

    Legal calls are made backwards, and each twice, in fresh environments. Where an answer differs, the call that makes the
    difference is looked for. A tool that changes something, by what it does and by what its name and description say, may do
    so; so may one whose description speaks of what comes next or was last, a `StatefulEnvironment`, and one with a single
    tool. An answer that depends on what was asked before is a state: the policy cannot know of it.
    """
    assert subject.environment_class is not None, "the rule needs an environment"
    if issubclass(subject.environment_class, StatefulEnvironment) or len(subject.tools) < 2:
        return ()
    found: dict[str, dict[str, Json]] = {}
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample[: num_tasks(subject, len(subject.sample))]:
            calls = await _steady_calls(subject, task)
            before = list((await surveyed(subject, task)).opening)
            if not calls:
                continue
            alone = await answers_apart(subject, task, calls, before)
            forth = (await answers(subject, task, [*before, *calls]))[len(before) :]
            back = (await answers(subject, task, [*before, *calls[::-1]]))[len(before) :][::-1]
            twice = (await answers(subject, task, [*before, *(one for one in calls for _ in range(2))]))[len(before) :]
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
            symptom=f"the answer of {name} depends on what was called before: "
            + (
                "it is another one when it is asked again"
                if evidence["culprit"] == name
                else f"on {evidence['culprit']}"
            )
            + ", although nothing describes a change.",
            evidence=evidence,
            change="Answer from the task alone; or, if it is meant, say so in the description of both tools.",
            confirm=AGAIN,
        )
        for name, evidence in found.items()
    ]


async def _steady_calls(subject: Subject, task: Task) -> list[Call]:
    """Some legal calls of each tool that does not change anything on purpose, as far as its words say."""
    survey, explored_calls = await surveyed(subject, task), await explored(subject, task)
    writing = await writing_tools(subject)
    calls = []
    for name in subject.tools:
        description = subject.tools[name].schema["function"].get("description")
        is_writing = name in writing or (is_worded_as_writing(subject, name) and description)
        if (is_writing and not is_worded_as_reading(subject, name)) or _SPEAKS_OF_STATE.search(
            documented(subject, name)
        ):
            continue
        own = [one.call for one in survey.found(name)] or [one.call for one in explored_calls.legal(name)[:1]]
        step = max(1, len(own) // MOST_STEADY)
        calls += own[::step][:MOST_STEADY]
    return calls


async def _made_different(
    subject: Subject, task: Task, before: Sequence[Call], calls: Sequence[Call], call: Call, alone: str
) -> dict[str, Json] | None:
    """The one call of those after which another one answers otherwise; None where none alone does, or where it may."""
    if (await answers(subject, task, [*before, call]))[-1].content != alone:
        return None  # it depends on what other episodes did
    others = [one for one in calls if one.tool != call.tool] + [one for one in calls if one.tool == call.tool]
    for other in others:
        said = (await answers(subject, task, [*before, other, call]))[-1].content
        if said != alone:
            words = set(words_of(other.tool)) - _COMMON
            is_meant = any(word in documented(subject, call.tool) for word in words) or not is_worded_as_reading(
                subject, other.tool
            )
            if is_meant and other.tool != call.tool:
                return None
            return {"culprit": other.tool, "after": str(other), "then": said[:300]}
    return None


@check("environment.twins", needs=("environment",))
async def twins(subject: Subject) -> Iterable[Finding]:
    """Two episodes played side by side give what each gives alone, and nothing of one is seen in the other.

    Episodes run concurrently, so whatever they share leaks: class attributes, module globals, files and database rows under
    fixed names, or under the name of the task, which all episodes of a group have. A marked text is given to the tools of one
    episode, and looked for in the other's conversation and in what the modules keep afterwards. Two episodes of one task make
    the same calls side by side, and must end in the state that one alone ends in. Keep state on `self`, made in `reset`.
    """
    findings: list[Finding] = []
    pairs = list(zip(subject.sample, [*subject.sample[1:], subject.sample[0]], strict=True))
    with subject.timing.as_far_as_it_goes():
        for one, other in pairs[:4]:
            for policies in zip(await players(subject, one), await players(subject, other), strict=True):
                alone = [
                    await subject.play(task, policy, judged=False)
                    for task, policy in zip((one, other), policies, strict=True)
                ]
                subject.timing.need(2)
                together = await asyncio.gather(
                    *(subject.episode(task, policy) for task, policy in zip((one, other), policies, strict=True))
                )
                for first, second in zip(alone, together, strict=True):
                    difference = first_difference(transcript(first.messages), transcript(second.messages))
                    if difference is not None and not findings:
                        beside = other if first.task is one else one
                        symptom = f"task {first.task.id} goes otherwise while task {beside.id} is played beside it."
                        findings.append(_shared(symptom, {"task": first.task.id, **difference}))
        findings += await _canaries(subject, *pairs[0]) or ([] if findings else await _of_one_task(subject))
    return findings


async def _of_one_task(subject: Subject) -> list[Finding]:
    """Whether an episode goes otherwise, or ends in another state, while one of the same task makes the same calls beside it."""

    async def seen(task: Task, policy: ScriptedPolicy) -> list[tuple[str, str]]:
        try:
            played = await subject.episode(task, policy)
        except (OutOfTimeError, TimedOutError):
            raise
        except UndecidedError as error:
            return [("episode", str(error))]
        return [*transcript(played.messages), ("final state", repr(played.final_state))]

    for task in subject.sample[:2]:
        calls = (await explored(subject, task)).script
        # Twice: what the one has written the other reads.
        twice = saying(
            "everything twice", [*in_turns(subject, [*calls, *calls]), {"role": "assistant", "content": "done"}]
        )
        alone, again = [await seen(task, twice) for _ in range(2)]
        for beside in await asyncio.gather(seen(task, twice), seen(task, twice)) if alone == again else ():
            difference = first_difference(alone, beside)
            if difference is not None:
                symptom = f"task {task.id} goes otherwise while another episode of the same task is played beside it."
                return [_shared(symptom, {"task": task.id, **difference})]
    return []


def _shared(symptom: str, evidence: Mapping[str, Json]) -> Finding:
    return Finding(
        rule="environment.twins",
        severity=Severity.ERROR,
        symptom=symptom,
        evidence=evidence,
        change="Keep what belongs to an episode on `self`, made in `reset`, under names of its own.",
        confirm=AGAIN,
    )


async def _canaries(subject: Subject, one: Task, other: Task) -> list[Finding]:
    """Mark what an episode gives its tools, and look for the mark where it must not be."""
    mark = f"canary{subject.rng('canary').randrange(10**6)}"
    marked = await _marked(subject, one, mark)
    neighbour = await explorer(subject, other)
    _, beside = await asyncio.gather(subject.episode(one, marked), subject.episode(other, neighbour))
    for index, (role, text) in enumerate(transcript(beside.messages)):
        if mark in text and role != "assistant":
            said = {"task": one.id, "seen_in_task": other.id, "message": index, "text": text[:300], "mark": mark}
            return [_shared(f"what was said in task {one.id} is seen in task {other.id}.", said)]
    kept = kept_globals(subject)
    keeping = [name for name, value in kept.items() if holds(value, mark)]
    if keeping:
        said = {"task": one.id, "kept_in": keeping, "mark": mark}
        finding = _shared(f"what was said in task {one.id} is kept in {keeping[0]} after its end.", said)
        # A cache of the standard library gives everybody the same; it only grows.
        is_cache = all(hasattr(kept[name], "cache_info") for name in keeping)
        return [replace(finding, severity=Severity.WARNING) if is_cache else finding]
    return []


async def _marked(subject: Subject, task: Task, mark: str) -> ScriptedPolicy:
    """Calls every tool with a mark in every text, and then once more as the expert would."""
    calls = []
    for tool in subject.tools.values():
        likely = (await likely_calls(subject, task, tool))[0]
        calls.append(Call(tool.name, {
            name: mark if tool.hints[name] is str else value for name, value in likely.arguments.items()
        }))  # fmt: skip
    said = [tool_call(one.tool, **one.arguments) for one in [*calls, *await expert_calls(subject, task)]]

    def act(asked: Asked) -> Message:
        return said[asked.turn] if asked.turn < len(said) else {"role": "assistant", "content": mark}

    return ScriptedPolicy("marked", act)
