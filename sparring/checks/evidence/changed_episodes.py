"""Changed versions of the expert's episodes: the answer is wrong, truncated, repeated or in another place, or the calls
are different."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from weakref import WeakKeyDictionary

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.agents.scripts import actions_of, left_out
from sparring.checks.evidence import changed_calls
from sparring.checks.evidence.answer_forms import find_tagged, get_text
from sparring.checks.evidence.changed_answers import Kind, Mutation, mutate_answer
from sparring.checks.evidence.correct_calls import Deeds, Verdict, find_deeds, make_idle_policy
from sparring.checks.evidence.grading_inputs import Aspect, replace_last_message
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, ReferenceEpisodes, find_references
from sparring.checks.evidence.scripted_episodes import Episode, get_episodes, grade_episode
from sparring.checks.evidence.subject import EXPERT, Subject, UndecidedError
from sparring.checks.running.time_budget import Deadline
from sparring.environments import answer
from sparring.scorers.conduct import grades_behavior
from sparring.types import Json, Message, Trajectory

NUM_MUTATED = 6
"""The number of tasks whose correct answers are changed, if there is no LLM judge."""
MUTATION_SECONDS = 5.0
"""The time limit in seconds for the changed answers, and again for the changed calls."""
MOST_CHANGED = 4
"""The maximum number of calls of one script whose arguments are changed."""


@dataclass(frozen=True, slots=True)
class Mutated:
    """A mutation and its graded episode."""

    mutation: Mutation
    episode: Episode
    parts: Mapping[str, Json] | None
    """The parts of the changed answer, or None if the answer is not in the requested format."""

    @property
    def shown(self) -> dict[str, Json]:
        """The values that a finding shows as evidence."""
        shown = {"change": self.mutation.name, **{k: v for k, v in self.episode.shown.items() if k != "policy"}}
        if self.mutation.calls is None:
            return shown
        return {**shown, "calls": list(self.mutation.calls), "final_state": self.episode.trajectory.final_state}


_changed: WeakKeyDictionary[Subject, list[Mutated]] = WeakKeyDictionary()


async def mutate_episodes(subject: Subject) -> list[Mutated]:
    """Return the graded changed episodes of the expert, computed once. The list is empty without reference episodes."""
    if subject not in _changed:
        references = await find_references(subject)
        found = [] if references is None else [one async for one in _mutate(subject, references)]
        deeds = await find_deeds(subject)
        if references is not None and deeds is not None:
            found += [one async for one in _act_otherwise(subject, references, deeds)]
        _changed[subject] = found
    return _changed[subject]


async def _mutate(subject: Subject, references: ReferenceEpisodes) -> AsyncIterator[Mutated]:
    ends, labels = Deadline(MUTATION_SECONDS), references.labels()
    for one in (await get_episodes(subject, EXPERT))[: _count_mutated(subject)]:
        if one.reference.answer.get("tool_calls") and references.form.tool is None:
            continue  # the environment ended the episode before an answer
        prompt = "\n".join(map(get_text, one.reference.task.messages))
        tags = list(dict.fromkeys(tag for tag, _ in find_tagged(prompt)))
        changes = [*mutate_answer(references.form, one.reference.answer, labels, tags)]
        if Aspect.MESSAGE not in references.graded:
            changes = [replace(change, kind=Kind.SAME) for change in changes]
        elif grades_behavior(subject.scorer):
            # A different wording may be equally correct, even if only a few letters are changed.
            changes = [replace(one, kind=Kind.OTHER) if one.kind in (Kind.WRONG, Kind.FORM) else one for one in changes]
        if references.form.tool is None:
            await subject.grade_ahead([replace_last_message(one.trajectory, change.message) for change in changes])
        for mutation in changes:
            if ends.is_over:
                return
            try:
                trajectory = await _apply(subject, references, one, mutation)
            except UndecidedError:
                continue
            episode = await grade_episode(subject, references, mutation.name, one.reference, trajectory)
            yield Mutated(mutation, episode, references.form.parts(mutation.message))
        for name, policy in _answer_elsewhere(references, one.reference) if Aspect.MESSAGE in references.graded else ():
            try:
                trajectory = await subject.run_episode(one.reference.task, policy, graded=False)
            except UndecidedError:
                continue
            episode = await grade_episode(subject, references, name, one.reference, trajectory)
            yield Mutated(Mutation(name, Kind.WRONG, get_last_message(trajectory)), episode, None)


def _count_mutated(subject: Subject) -> int:
    """Return the number of tasks to change. It is 1 with an LLM judge, since each verdict costs money."""
    return 1 if subject.model_judges else NUM_MUTATED


_INSTEAD = " in place of the right calls"
_KINDS = {
    Verdict.RIGHT: Kind.SAME,
    Verdict.WRONG: Kind.WRONG,
    Verdict.DOUBTFUL: Kind.DOUBTFUL,
    Verdict.UNKNOWN: Kind.OTHER,
}


async def _act_otherwise(subject: Subject, references: ReferenceEpisodes, deeds: Deeds) -> AsyncIterator[Mutated]:
    """Run the expert's episodes again with changed calls, and grade them."""
    ends = Deadline(MUTATION_SECONDS)
    for reference in references.sampled(subject)[: _count_mutated(subject)]:
        async for name, policy in _change_scripts(subject, references, deeds, reference):
            if ends.is_over:
                return
            try:
                trajectory = await subject.run_episode(reference.task, policy, graded=False)
            except UndecidedError:
                continue
            episode = await grade_episode(subject, references, name, reference, trajectory)
            calls = tuple(f"{one['tool']}({one['arguments']})" for one in trajectory.transitions)
            kind = _KINDS[episode.verdict]
            if kind is Kind.DOUBTFUL and name.endswith(_INSTEAD):
                kind = Kind.WRONG  # a shortcut that skips the required calls
            yield Mutated(Mutation(name, kind, get_last_message(trajectory), calls=calls), episode, None)


async def _change_scripts(
    subject: Subject, references: ReferenceEpisodes, deeds: Deeds, reference: ReferenceEpisode
) -> AsyncIterator[tuple[str, ScriptedPolicy]]:
    """Yield changed scripts, each with the name of its change. Calls that do not affect the grade are left out, but not
    changed in other ways."""
    numbers = count()

    def changed(name: str, script: Sequence[Message]) -> tuple[str, ScriptedPolicy]:
        return name, saying(f"change {next(numbers)}: {name}", script)

    calls = actions_of(reference.script)
    if not calls:
        return
    yield "no call at all", make_idle_policy(reference)
    essential = []
    for one in calls:
        name, policy = changed(f"{one.tool} left out", left_out(reference.script, [one]))
        yield name, policy
        try:
            without = await subject.run_episode(reference.task, policy, graded=False)
        except UndecidedError:
            continue
        if (await deeds.verdict(reference, without))[0] is not Verdict.RIGHT:
            essential.append(one)
    if not essential:
        return
    idle, right = await deeds.idle_and_right(reference)
    played = await subject.run_episode(reference.task, references.policy(reference.task), graded=False)
    is_ended_by_answer = played.messages[-1].get("role") == "assistant"
    used = {one.tool for one in calls}
    for tool in (tool for name, tool in subject.tools.items() if name not in used):
        for tried in await changed_calls.list_series(subject, reference, tool, idle, right):
            instead = changed_calls.replace_calls(reference.script, essential, tried)
            yield changed(f"{tool.name}{_INSTEAD}", instead)
            if len(essential) > 1:
                but_last = changed_calls.replace_calls(reference.script, essential[:-1], tried)
                yield changed(f"{tool.name} in place of all but the last right call", but_last)
            yield changed(f"{tool.name} afterwards", changed_calls.append_calls(reference.script, tried))
    values = changed_calls.collect_argument_values(references)
    for one in essential[:MOST_CHANGED]:
        for name, _, script in changed_calls.change_arguments(reference.script, one, values):
            yield changed(f"{one.tool} with another {name}", script)
        if is_ended_by_answer:  # otherwise the environment ends the episode after the first call
            yield changed(f"{one.tool} twice", changed_calls.double_call(reference.script, one))
    if len(essential) > 1:
        yield changed("in another order", changed_calls.reverse_calls(reference.script, essential))
    other = next((one for one in references.by_task.values() if one.script[:-1] != reference.script[:-1]), None)
    if other is not None:
        yield changed("the calls of another task", (*other.script[:-1], reference.script[-1]))


async def _apply(subject: Subject, references: ReferenceEpisodes, right: Episode, mutation: Mutation) -> Trajectory:
    """Return the expert's episode with the changed answer. A text in the last message does not change the environment.
    A call may change the environment, so an answer that is a call needs a new episode."""
    if references.form.tool is None:
        return replace_last_message(right.trajectory, mutation.message)
    script = (*right.reference.script[:-1], mutation.message)
    return await subject.run_episode(right.reference.task, saying(f"change: {mutation.name}", script), graded=False)


def _answer_elsewhere(
    references: ReferenceEpisodes, reference: ReferenceEpisode
) -> Iterator[tuple[str, ScriptedPolicy]]:
    """Yield policies that give the correct answer outside the last message."""
    if references.form.tool is not None or len(reference.script) < 2:
        return
    text, end = get_text(reference.answer), answer("I cannot say.")
    with_call: Message = {**reference.script[-2], "content": text}
    name = "the right answer next to a call, then none"
    yield name, saying(f"change: {name}", (*reference.script[:-2], with_call, end))
    calls = [
        {**one, "function": {**one["function"], "arguments": _fill_with_text(one["function"]["arguments"], text)}}
        for one in reference.script[-2].get("tool_calls") or ()
    ]
    if calls:
        name = "the right answer in an argument of a call, then none"
        inside: Message = {**reference.script[-2], "tool_calls": calls}
        yield name, saying(f"change: {name}", (*reference.script[:-2], inside, end))


def _fill_with_text(arguments: Json, text: str) -> Json:
    if not isinstance(arguments, Mapping):
        return arguments
    return {name: text if isinstance(value, str) else value for name, value in arguments.items()}


def get_last_message(trajectory: Trajectory) -> Message:
    """Return the last message of an episode."""
    return trajectory.messages[-1]
