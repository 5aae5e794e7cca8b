"""Episodes of the expert that were changed: the answer made wrong, cut, doubled or said elsewhere, the calls made otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from weakref import WeakKeyDictionary

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.agents.scripts import actions_of, left_out
from sparring.checks import actions
from sparring.checks.answers import tagged, text_of
from sparring.checks.deeds import Deeds, Verdict, deeds_of, idle_policy
from sparring.checks.episodes import Episode, episodes_of, judged
from sparring.checks.golds import Gold, Golds, golds_of
from sparring.checks.graded import Aspect, with_last
from sparring.checks.mutations import Kind, Mutation, mutations
from sparring.checks.subject import EXPERT, Subject, UndecidedError
from sparring.checks.timing import Deadline
from sparring.environments import answer
from sparring.scorers.conduct import grades_behavior
from sparring.types import Json, Message, Trajectory

NUM_MUTATED = 6
"""Tasks whose right answers are changed in every way, where judging is quick."""
MUTATION_SECONDS = 5.0
"""For the changed answers; as long again for the changed calls."""
MOST_CHANGED = 4
"""Calls of one script whose arguments are changed."""


@dataclass(frozen=True, slots=True)
class Mutated:
    mutation: Mutation
    episode: Episode
    parts: Mapping[str, Json] | None
    """What the changed answer says in the asked form; None when it is not in it."""

    @property
    def shown(self) -> dict[str, Json]:
        shown = {"change": self.mutation.name, **{k: v for k, v in self.episode.shown.items() if k != "policy"}}
        if self.mutation.calls is None:
            return shown
        return {**shown, "calls": list(self.mutation.calls), "final_state": self.episode.trajectory.final_state}


_changed: WeakKeyDictionary[Subject, list[Mutated]] = WeakKeyDictionary()


async def mutated(subject: Subject) -> list[Mutated]:
    if subject not in _changed:
        golds = await golds_of(subject)
        found = [] if golds is None else [one async for one in _mutate(subject, golds)]
        deeds = await deeds_of(subject)
        if golds is not None and deeds is not None:
            found += [one async for one in _act_otherwise(subject, golds, deeds)]
        _changed[subject] = found
    return _changed[subject]


async def _mutate(subject: Subject, golds: Golds) -> AsyncIterator[Mutated]:
    ends, labels = Deadline(MUTATION_SECONDS), golds.labels()
    for one in (await episodes_of(subject, EXPERT))[: _num_mutated(subject)]:
        if one.gold.answer.get("tool_calls") and golds.form.tool is None:
            continue  # the environment ended it, and nothing was said
        prompt = "\n".join(map(text_of, one.gold.task.messages))
        tags = list(dict.fromkeys(tag for tag, _ in tagged(prompt)))
        changes = [*mutations(golds.form, one.gold.answer, labels, tags)]
        if Aspect.MESSAGE not in golds.graded:
            changes = [replace(change, kind=Kind.SAME) for change in changes]
        elif grades_behavior(subject.scorer):
            # Another text may do the same, and so may one with a few letters changed.
            changes = [replace(one, kind=Kind.OTHER) if one.kind in (Kind.WRONG, Kind.FORM) else one for one in changes]
        if golds.form.tool is None:
            await subject.judge_ahead([with_last(one.trajectory, change.message) for change in changes])
        for mutation in changes:
            if ends.is_over:
                return
            try:
                trajectory = await _with(subject, golds, one, mutation)
            except UndecidedError:
                continue
            episode = await judged(subject, golds, mutation.name, one.gold, trajectory)
            yield Mutated(mutation, episode, golds.form.parts(mutation.message))
        for name, policy in _elsewhere(golds, one.gold) if Aspect.MESSAGE in golds.graded else ():
            try:
                trajectory = await subject.play(one.gold.task, policy, judged=False)
            except UndecidedError:
                continue
            episode = await judged(subject, golds, name, one.gold, trajectory)
            yield Mutated(Mutation(name, Kind.WRONG, policy_said(trajectory)), episode, None)


def _num_mutated(subject: Subject) -> int:
    """One task where a model judges, whose verdicts are paid."""
    return 1 if subject.model_judges else NUM_MUTATED


_INSTEAD = " in place of the right calls"
_KINDS = {
    Verdict.RIGHT: Kind.SAME, Verdict.WRONG: Kind.WRONG, Verdict.DOUBTFUL: Kind.DOUBTFUL, Verdict.UNKNOWN: Kind.OTHER,
}  # fmt: skip


async def _act_otherwise(subject: Subject, golds: Golds, deeds: Deeds) -> AsyncIterator[Mutated]:
    """The expert's episodes with its calls changed, played anew."""
    ends = Deadline(MUTATION_SECONDS)
    for gold in golds.sampled(subject)[: _num_mutated(subject)]:
        async for name, policy in _other_ways(subject, golds, deeds, gold):
            if ends.is_over:
                return
            try:
                trajectory = await subject.play(gold.task, policy, judged=False)
            except UndecidedError:
                continue
            episode = await judged(subject, golds, name, gold, trajectory)
            calls = tuple(f"{one['tool']}({one['arguments']})" for one in trajectory.transitions)
            kind = _KINDS[episode.verdict]
            if kind is Kind.DOUBTFUL and name.endswith(_INSTEAD):
                kind = Kind.WRONG  # a shortcut that passes by what was to be done
            yield Mutated(Mutation(name, kind, policy_said(trajectory), calls=calls), episode, None)


async def _other_ways(
    subject: Subject, golds: Golds, deeds: Deeds, gold: Gold
) -> AsyncIterator[tuple[str, ScriptedPolicy]]:
    """Changed scripts by what is changed. Of calls that change nothing that counts only their absence is tried."""
    numbers = count()

    def changed(name: str, script: Sequence[Message]) -> tuple[str, ScriptedPolicy]:
        return name, saying(f"change {next(numbers)}: {name}", script)

    calls = actions_of(gold.script)
    if not calls:
        return
    yield "no call at all", idle_policy(gold)
    essential = []
    for one in calls:
        name, policy = changed(f"{one.tool} left out", left_out(gold.script, [one]))
        yield name, policy
        try:
            without = await subject.play(gold.task, policy, judged=False)
        except UndecidedError:
            continue
        if (await deeds.verdict(gold, without))[0] is not Verdict.RIGHT:
            essential.append(one)
    if not essential:
        return
    idle, right = await deeds.idle_and_right(gold)
    used = {one.tool for one in calls}
    for tool in (tool for name, tool in subject.tools.items() if name not in used):
        for tried in await actions.tried(subject, gold, tool, idle, right):
            instead = actions.in_place_of(gold.script, essential, tried)
            yield changed(f"{tool.name}{_INSTEAD}", instead)
            if len(essential) > 1:
                but_last = actions.in_place_of(gold.script, essential[:-1], tried)
                yield changed(f"{tool.name} in place of all but the last right call", but_last)
            yield changed(f"{tool.name} afterwards", actions.followed_by(gold.script, tried))
    values = actions.argument_values(golds)
    for one in essential[:MOST_CHANGED]:
        for name, _, script in actions.with_other_arguments(gold.script, one, values):
            yield changed(f"{one.tool} with another {name}", script)
        yield changed(f"{one.tool} twice", actions.doubled(gold.script, one))
    if len(essential) > 1:
        yield changed("in another order", actions.in_another_order(gold.script, essential))
    other = next((one for one in golds.by_task.values() if one.script[:-1] != gold.script[:-1]), None)
    if other is not None:
        yield changed("the calls of another task", (*other.script[:-1], gold.script[-1]))


async def _with(subject: Subject, golds: Golds, right: Episode, mutation: Mutation) -> Trajectory:
    """The expert's episode with the changed answer. What is said last changes nothing in the world; a call may."""
    if golds.form.tool is None:
        return with_last(right.trajectory, mutation.message)
    script = (*right.gold.script[:-1], mutation.message)
    return await subject.play(right.gold.task, saying(f"change: {mutation.name}", script), judged=False)


def _elsewhere(golds: Golds, gold: Gold) -> Iterator[tuple[str, ScriptedPolicy]]:
    """The right answer said in another place than the last message."""
    if golds.form.tool is not None or len(gold.script) < 2:
        return
    text, end = text_of(gold.answer), answer("I cannot say.")
    beside: Message = {**gold.script[-2], "content": text}
    name = "the right answer beside a call, then none"
    yield name, saying(f"change: {name}", (*gold.script[:-2], beside, end))
    calls = [
        {**one, "function": {**one["function"], "arguments": _with_text(one["function"]["arguments"], text)}}
        for one in gold.script[-2].get("tool_calls") or ()
    ]
    if calls:
        name = "the right answer in an argument of a call, then none"
        inside: Message = {**gold.script[-2], "tool_calls": calls}
        yield name, saying(f"change: {name}", (*gold.script[:-2], inside, end))


def _with_text(arguments: Json, text: str) -> Json:
    if not isinstance(arguments, Mapping):
        return arguments
    return {name: text if isinstance(value, str) else value for name, value in arguments.items()}


def policy_said(trajectory: Trajectory) -> Message:
    return trajectory.messages[-1]
