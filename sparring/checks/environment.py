"""Is the environment one that can be trusted: does it play, the same twice, whatever was asked before and beside it?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sparring.checks.calls import answers, explorer, likely_calls, players
from sparring.checks.explore import Call, expert_calls, explored
from sparring.checks.registry import check
from sparring.checks.residue import holds, kept_globals
from sparring.checks.scripted import Asked, ScriptedPolicy
from sparring.checks.subject import Subject, first_difference, transcript
from sparring.checks.writes import writing_tools
from sparring.environments import StatefulEnvironment, tool_call
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, Task

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
    """Tools that read give the same answers in another order, and when asked again.

    Legal calls are made backwards, and each twice, in fresh environments. Which tools read is found out by calling them: one
    that changes what another answers or the final state, ends the episode, or is refused the second time, changes something
    and is left alone; so is a `StatefulEnvironment`, and one with a single tool. An answer that depends on what was asked
    before is a state.
    """
    assert subject.environment_class is not None, "the rule needs an environment"
    if issubclass(subject.environment_class, StatefulEnvironment) or len(subject.tools) < 2:
        return ()
    found: dict[str, dict[str, Json]] = {}
    with subject.timing.as_far_as_it_goes():
        writing = await writing_tools(subject)
        for task in subject.sample:
            calls = await _legal_calls(subject, task)
            if not calls or any(one.tool in writing for one in calls):
                continue
            forth = await answers(subject, task, calls)
            back = (await answers(subject, task, calls[::-1]))[::-1]
            twice = (await answers(subject, task, [one for one in calls for _ in range(2)]))[1::2]
            for call, first, *others in zip(calls, forth, back, twice, strict=True):
                for how, other in zip(("backwards", "asked_again"), others, strict=True):
                    if first.content != other.content and call.tool not in found:
                        found[call.tool] = {
                            "task": task.id,
                            "call": str(call),
                            "in_order": first.content,
                            how: other.content,
                        }
    return [
        Finding(
            rule="environment.order",
            severity=Severity.WARNING,
            symptom=f"the answer of {name} depends on what was called before, although no other tool shows a change.",
            evidence=evidence,
            change="Answer from the task alone; or, if it is meant, derive from StatefulEnvironment.",
            confirm=AGAIN,
        )
        for name, evidence in found.items()
    ]


async def _legal_calls(subject: Subject, task: Task) -> list[Call]:
    """The expert's calls, or where there is none a legal call of each tool, and what it needs before it."""
    expert = await expert_calls(subject, task)
    found = await explored(subject, task)
    return expert or [one for one in found.script if any(one == legal.call for legal in found.legal(one.tool))]


@check("environment.twins", needs=("environment",))
async def twins(subject: Subject) -> Iterable[Finding]:
    """Two episodes played side by side give what each gives alone, and nothing of one is seen in the other.

    Episodes run concurrently, so whatever they share leaks: class attributes, module globals, files and database rows under
    fixed names. A marked text is given to the tools of one episode, and looked for in the other's conversation and in what
    the modules keep afterwards. Keep state on `self`, made in `reset`.
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
        findings += await _canaries(subject, *pairs[0])
    return findings


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
