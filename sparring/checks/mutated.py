"""Episodes whose right answer was made wrong, cut, doubled or said elsewhere."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sparring.checks.answers import tagged, text_of
from sparring.checks.episodes import Episode, episodes_of, judged
from sparring.checks.golds import Gold, Golds, golds_of, with_last
from sparring.checks.mutations import Kind, Mutation, mutations
from sparring.checks.scripted import ScriptedPolicy, saying
from sparring.checks.subject import EXPERT, Subject, UndecidedError
from sparring.environments import answer
from sparring.types import Json, Message, Trajectory

NUM_MUTATED = 6
"""Tasks whose right answers are changed in every way, where judging is quick."""


MUTATION_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Mutated:
    mutation: Mutation
    episode: Episode
    parts: Mapping[str, Json] | None
    """What the changed answer says in the asked form; None when it is not in it."""

    @property
    def shown(self) -> dict[str, Json]:
        return {"change": self.mutation.name, **{k: v for k, v in self.episode.shown.items() if k != "policy"}}


_changed: WeakKeyDictionary[Subject, list[Mutated]] = WeakKeyDictionary()


async def mutated(subject: Subject) -> list[Mutated]:
    if subject not in _changed:
        golds = await golds_of(subject)
        _changed[subject] = [] if golds is None else [one async for one in _mutate(subject, golds)]
    return _changed[subject]


async def _mutate(subject: Subject, golds: Golds) -> AsyncIterator[Mutated]:
    began, labels = time.monotonic(), golds.labels()
    for one in (await episodes_of(subject, EXPERT))[:NUM_MUTATED]:
        prompt = "\n".join(map(text_of, one.gold.task.messages))
        tags = list(dict.fromkeys(tag for tag, _ in tagged(prompt)))
        changes = [*mutations(golds.form, one.gold.answer, labels, tags)]
        for mutation in changes:
            if time.monotonic() - began > MUTATION_SECONDS:
                return
            try:
                trajectory = await _with(subject, golds, one, mutation)
            except UndecidedError:
                continue
            episode = await judged(subject, golds, mutation.name, one.gold, trajectory)
            yield Mutated(mutation, episode, golds.form.parts(mutation.message))
        for name, policy in _elsewhere(golds, one.gold):
            try:
                trajectory = await subject.play(one.gold.task, policy, judged=False)
            except UndecidedError:
                continue
            episode = await judged(subject, golds, name, one.gold, trajectory)
            yield Mutated(Mutation(name, Kind.WRONG, policy_said(trajectory)), episode, None)


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
