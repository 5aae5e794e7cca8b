"""Right episodes of the tasks under check: the scripted expert's; else answers or calls that were found to be paid."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from sparring.agents.scripted import ScriptedPolicy, as_trajectory, saying
from sparring.checks.answers import (
    ANSWER_TAGS,
    AnswerForm,
    ReadFields,
    answer_form,
    frames_of,
    tagged,
    text_of,
    written_answers,
)
from sparring.checks.graded import NUM_PROBED, Aspect, graded_aspects, is_paid
from sparring.checks.plans import Plan, plans_of
from sparring.checks.subject import EXPERT, JudgeFailedError, JudgeName, Subject, UndecidedError
from sparring.checks.timing import OutOfTimeError
from sparring.environments import Environment, answer, tool_call
from sparring.types import Json, Message, Task, Trajectory

NUM_READ = 8
"""Tasks on which it is seen what the judges read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """One right episode: what the assistant says in it, and the parts of its answer (None when it is in no form)."""

    task: Task
    script: tuple[Message, ...]
    parts: Mapping[str, Json] | None

    @property
    def answer(self) -> Message:
        return self.script[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Golds:
    """The right episodes of the training tasks that are looked at, by task id."""

    by_task: Mapping[str, Gold]
    form: AnswerForm
    has_expert: bool
    """Whether they are the scripted expert's."""
    failed: Mapping[str, str]
    """Why the expert failed, by task id."""
    graded: frozenset[Aspect]
    """What the scorer depends on, or the reward where there is no scorer. Where the last message is not among it, answers have no
    parts: they may say anything."""
    read: frozenset[tuple[str, ...]]
    """What the judges read of the tasks' fields, as paths."""
    missed: frozenset[tuple[str, ...]]
    """What they asked for that a task does not have."""

    def labels(self) -> dict[str, list[Json]]:
        """The values of each part of the answers, one a task, in the tasks' order."""
        known = [gold.parts for gold in self.by_task.values() if gold.parts is not None]
        names = dict.fromkeys(name for parts in known for name in parts)
        return {name: [parts[name] for parts in known if name in parts] for name in names}

    def policy(self, task: Task) -> ScriptedPolicy:
        return saying(EXPERT, self.by_task[task.id].script)

    def sampled(self, subject: Subject) -> list[Gold]:
        """Those of the tasks that are played."""
        return [self.by_task[task.id] for task in subject.sample if task.id in self.by_task]


_known: WeakKeyDictionary[Subject, Golds | None] = WeakKeyDictionary()


async def golds_of(subject: Subject) -> Golds | None:
    """Made once; None when there is neither an expert, nor a field of the tasks that the scorer pays for as an answer or as a
    final state that tools were found to bring about."""
    if subject not in _known:
        _known[subject] = await _find(subject)
    return _known[subject]


async def _find(subject: Subject) -> Golds | None:
    tasks = {task.id: task for task in (*subject.looked_at, *subject.sample)}
    scripts: dict[str, tuple[Message, ...]] = {}
    failed: dict[str, str] = {}
    cls = subject.environment_class
    has_expert = cls is not None and cls.demonstrate is not Environment.demonstrate
    if has_expert:
        for task in tasks.values():
            try:
                scripts[task.id] = _expert_script(subject, task)
            except UndecidedError as error:
                failed[task.id] = str(error)
    else:
        scripts = {name: (message,) for name, message in (await _paid(subject, list(tasks.values()))).items()}
        scripts = scripts or {one.task.id: _script(one) for one in await plans_of(subject) if one.is_whole}
    if not scripts and not failed:
        return None
    plays = any(len(script) > 1 for script in scripts.values())
    right = await _right_episodes(subject, tasks, scripts) if has_expert or plays else {}
    graded = await graded_aspects(subject, "reward" if subject.scorer is None else "scorer", list(right.values()))
    form = answer_form([script[-1] for script in scripts.values()]) if scripts else AnswerForm()
    if _is_answer(form, scripts.values(), graded):
        graded |= {Aspect.MESSAGE}
    if Aspect.MESSAGE not in graded:
        form = AnswerForm()
    by_task = {
        task_id: Gold(
            task=tasks[task_id], script=script, parts=form.parts(script[-1]) if Aspect.MESSAGE in graded else None
        )
        for task_id, script in scripts.items()
    }
    read, missed = await _reads(subject, list(by_task.values()), right)
    return Golds(
        by_task=by_task, form=form, has_expert=has_expert, failed=failed, graded=graded, read=read, missed=missed
    )


def _script(plan: Plan) -> tuple[Message, ...]:
    """What a policy says that carries out a plan."""
    return (*(tool_call(one.tool, **one.arguments) for one in plan.calls), answer("Done."))


async def _right_episodes(
    subject: Subject, tasks: Mapping[str, Task], scripts: Mapping[str, tuple[Message, ...]]
) -> dict[str, Trajectory]:
    """What the expert plays of some of the tasks, unjudged, by task id; none without an environment. Raises OutOfTimeError where
    there is no time for one: what is graded would be guessed."""
    played: dict[str, Trajectory] = {}
    for task in [one for one in subject.sample if one.id in scripts][:NUM_PROBED]:
        try:
            played[task.id] = await subject.play(task, saying(EXPERT, scripts[task.id]), judged=False)
        except OutOfTimeError:
            if not played:
                raise
        except UndecidedError:
            continue
    return played


def _is_answer(form: AnswerForm, scripts: Iterable[Sequence[Message]], graded: frozenset[Aspect]) -> bool:
    """Whether the last message is to be taken for an answer, although that of another task did not lower the grade.

    Where nothing lowers it, the judge may be at fault, and is to be found out. Where certain words have to be there, the message
    is an answer if it has a form, and beside what was done a mere sign-off if not.
    """
    if not graded & {Aspect.STATE, Aspect.CALLS}:
        return True
    if form.tool is not None:
        return Aspect.STATE not in graded and _is_submitted(form.tool, scripts)
    return Aspect.WORDS in graded and (form.is_json or bool(form.tags))


def _is_submitted(tool: str, scripts: Iterable[Sequence[Message]]) -> bool:
    """Whether a tool is called once an episode, at its end: then its arguments are the answer, and else a step on the way."""
    return all(
        [one["function"]["name"] for message in script for one in message.get("tool_calls") or ()].count(tool) == 1
        for script in scripts
    )


def _expert_script(subject: Subject, task: Task) -> tuple[Message, ...]:
    """What the expert says, in order. Raises UndecidedError when it fails, or says nothing."""
    environment = subject.make_environment(observed=False)
    what = f"{type(environment).__name__}.demonstrate of task {task.id}"
    try:
        with subject.watch.calling(what):
            script = tuple(environment.demonstrate(copy.deepcopy(task)))
    except Exception as error:
        raise UndecidedError(f"{what} failed: {error!r}") from error
    if not script:
        raise UndecidedError(f"{what} says nothing; return the assistant's messages.")
    return script


async def _paid(subject: Subject, tasks: Sequence[Task]) -> dict[str, Message]:
    """By task id the answer that its fields hold, written as the scorer wants it; none when there is no such way."""
    first = tasks[0]
    prompt = "\n".join(text_of(message) for message in first.messages)
    tags = dict.fromkeys([*(tag for tag, _ in tagged(prompt)), *ANSWER_TAGS])
    names, frames = list(first.fields), frames_of(prompt)
    for way, message in written_answers(first, names, list(tags), frames):
        if await is_paid(subject, as_trajectory(first, message)):
            written = {task.id: dict(written_answers(task, names, list(tags), frames)) for task in tasks}
            return {task_id: ways[way] for task_id, ways in written.items() if way in ways}
    return {}


async def _reads(
    subject: Subject, golds: Sequence[Gold], right: Mapping[str, Trajectory]
) -> tuple[frozenset[tuple[str, ...]], frozenset[tuple[str, ...]]]:
    read: set[tuple[str, ...]] = set()
    missed: set[tuple[str, ...]] = set()
    judges: tuple[tuple[JudgeName, object], ...] = (("reward", subject.reward), ("scorer", subject.scorer))
    await subject.judge_ahead([*right.values(), *(as_trajectory(gold.task, gold.answer) for gold in golds[:NUM_READ])])
    for gold in [*(one for one in golds if one.task.id in right), *golds[:NUM_READ]]:
        for name, judge in judges:
            if judge is not None:
                fields = ReadFields(gold.task.fields)
                # A failure is the business of the rules on the reward.
                task = replace(gold.task, fields=fields)
                played = right.get(gold.task.id)
                read_by = as_trajectory(task, gold.answer) if played is None else replace(played, task=task)
                with suppress(JudgeFailedError):
                    await subject.ask_judge(name, read_by)
                read |= fields.read
                missed |= fields.missed
    return frozenset(read), frozenset(missed)


def silence() -> Message:
    return answer("")
