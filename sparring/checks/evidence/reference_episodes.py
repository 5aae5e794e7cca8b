"""Reference episodes of the tasks. They come from the scripted expert or, without one, from answers or calls that earn
the full score."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from sparring.agents.scripted import ScriptedPolicy, as_trajectory, saying
from sparring.checks.evidence.answer_forms import (
    AnswerForm,
    ReadFields,
    detect_answer_form,
    get_text,
    write_answers,
)
from sparring.checks.evidence.grading_inputs import NUM_PROBED, Aspect, find_graded_aspects, is_paid
from sparring.checks.evidence.plans import Plan, make_plans
from sparring.checks.evidence.right_episodes import find_answers_after_reading, find_submitted
from sparring.checks.evidence.subject import EXPERT, GraderName, GradingFailedError, Subject, UndecidedError
from sparring.checks.running.time_budget import OutOfTimeError
from sparring.environments import Environment, answer, tool_call
from sparring.types import Json, Message, Task, Trajectory

NUM_TRIED = 3
"""The number of tasks whose fields are tried as answers, until one earns the full score."""
NUM_READ = 8
"""The number of tasks for which the fields that the graders read are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEpisode:
    """A correct episode: the assistant's messages, and the parts of its answer (None if it has no recognized
    format)."""

    task: Task
    script: tuple[Message, ...]
    parts: Mapping[str, Json] | None

    @property
    def answer(self) -> Message:
        """The last message."""
        return self.script[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEpisodes:
    """The reference episodes of the training tasks, keyed by task id."""

    by_task: Mapping[str, ReferenceEpisode]
    form: AnswerForm
    has_expert: bool
    """True if the episodes come from the scripted expert."""
    failed: Mapping[str, str]
    """The reason why the expert failed, keyed by task id."""
    graded: frozenset[Aspect]
    """The aspects that the scorer (or the reward, without a scorer) depends on. If the last message is not among them,
    answers are free text without parts."""
    read: frozenset[tuple[str, ...]]
    """Paths of the task fields that the graders read."""
    missed: frozenset[tuple[str, ...]]
    """Paths that the graders look for but a task does not have."""

    def labels(self) -> dict[str, list[Json]]:
        """Return the values of each part of the answers, one per task, in the order of the tasks."""
        known = [reference.parts for reference in self.by_task.values() if reference.parts is not None]
        names = dict.fromkeys(name for parts in known for name in parts)
        return {name: [parts[name] for parts in known if name in parts] for name in names}

    def policy(self, task: Task) -> ScriptedPolicy:
        """Return a policy that repeats the reference episode of a task."""
        return saying(EXPERT, self.by_task[task.id].script)

    def sampled(self, subject: Subject) -> list[ReferenceEpisode]:
        """Return the reference episodes of the sampled tasks."""
        return [self.by_task[task.id] for task in subject.sample if task.id in self.by_task]


_known: WeakKeyDictionary[Subject, ReferenceEpisodes | None] = WeakKeyDictionary()


async def find_references(subject: Subject) -> ReferenceEpisodes | None:
    """Return the reference episodes, which are computed once. Return None if there is no expert, and no task field is a
    correct answer or a final state that the tools can reach."""
    if subject not in _known:
        _known[subject] = await _find(subject)
    return _known[subject]


async def _find(subject: Subject) -> ReferenceEpisodes | None:
    tasks = {task.id: task for task in (*subject.looked_at, *subject.sample)}
    cls = subject.environment_class
    has_expert = cls is not None and cls.demonstrate is not Environment.demonstrate
    failed: dict[str, str] = {}
    if has_expert:
        scripts, failed = _collect_expert_scripts(subject, list(tasks.values()))
    else:
        scripts = await _search_scripts(subject, list(tasks.values()))
    if not scripts and not failed:
        return None
    plays = any(len(script) > 1 for script in scripts.values())
    right = await _right_episodes(subject, tasks, scripts) if has_expert or plays else {}
    graded = await find_graded_aspects(subject, "reward" if subject.scorer is None else "scorer", list(right.values()))
    form = detect_answer_form([script[-1] for script in scripts.values()]) if scripts else AnswerForm()
    if _is_answer(form, scripts.values(), graded):
        graded |= {Aspect.MESSAGE}
    if Aspect.MESSAGE not in graded:
        form = AnswerForm()
    by_task = {
        task_id: ReferenceEpisode(
            task=tasks[task_id], script=script, parts=form.parts(script[-1]) if Aspect.MESSAGE in graded else None
        )
        for task_id, script in scripts.items()
    }
    read, missed = await _find_reads(subject, list(by_task.values()), right)
    return ReferenceEpisodes(
        by_task=by_task, form=form, has_expert=has_expert, failed=failed, graded=graded, read=read, missed=missed
    )


def _collect_expert_scripts(
    subject: Subject, tasks: Sequence[Task]
) -> tuple[dict[str, tuple[Message, ...]], dict[str, str]]:
    """Return the expert's scripts, and the errors for the tasks in which the expert fails, both keyed by task id."""
    scripts: dict[str, tuple[Message, ...]] = {}
    failed: dict[str, str] = {}
    for task in tasks:
        try:
            scripts[task.id] = _expert_script(subject, task)
        except UndecidedError as error:
            failed[task.id] = str(error)
    return scripts, failed


async def _search_scripts(subject: Subject, tasks: Sequence[Task]) -> dict[str, tuple[Message, ...]]:
    """Return scripts for a recipe without an expert, from the first search that finds any."""
    scripts = {name: (message,) for name, message in (await _find_paid(subject, tasks)).items()}
    scripts = scripts or await find_submitted(subject, tasks)
    scripts = scripts or {one.task.id: _write_script(one) for one in await make_plans(subject) if one.is_whole}
    return scripts or await find_answers_after_reading(subject)


def _write_script(plan: Plan) -> tuple[Message, ...]:
    """Return the assistant messages that carry out a plan."""
    return (*(tool_call(one.tool, **one.arguments) for one in plan.calls), answer("Done."))


async def _right_episodes(
    subject: Subject, tasks: Mapping[str, Task], scripts: Mapping[str, tuple[Message, ...]]
) -> dict[str, Trajectory]:
    """Run the reference scripts of some tasks without grading, and return the episodes keyed by task id. Raises
    OutOfTimeError if there is no time even for one episode, since the graded aspects would then be a guess."""
    episodes: dict[str, Trajectory] = {}
    for task in [one for one in subject.sample if one.id in scripts][:NUM_PROBED]:
        try:
            episodes[task.id] = await subject.run_episode(task, saying(EXPERT, scripts[task.id]), graded=False)
        except OutOfTimeError:
            if not episodes:
                raise
        except UndecidedError:
            continue
    return episodes


def _is_answer(form: AnswerForm, scripts: Iterable[Sequence[Message]], graded: frozenset[Aspect]) -> bool:
    """Return True if the last message counts as an answer, although replacing it with another task's last message did
    not lower the grade.

    If no change lowers the grade, the grader may be wrong, and other rules must test it. If the grade requires certain
    words, the message is an answer if it has a recognized format, and a closing remark if not.
    """
    if not graded & {Aspect.STATE, Aspect.CALLS}:
        return True
    if form.tool is not None:
        return Aspect.STATE not in graded and _is_submitted(form.tool, scripts)
    return Aspect.WORDS in graded and (form.is_json or bool(form.tags))


def _is_submitted(tool: str, scripts: Iterable[Sequence[Message]]) -> bool:
    """Return True if every script calls the tool exactly once, so that its arguments are the answer."""
    return all(
        [one["function"]["name"] for message in script for one in message.get("tool_calls") or ()].count(tool) == 1
        for script in scripts
    )


def _expert_script(subject: Subject, task: Task) -> tuple[Message, ...]:
    """Return the expert's messages in order. Raises UndecidedError if the expert fails or returns no message."""
    environment = subject.make_environment(observed=False)
    what = f"{type(environment).__name__}.demonstrate of task {task.id}"
    try:
        with subject.watch.calling(what):
            script = tuple(environment.demonstrate(copy.deepcopy(task)))
    except Exception as error:
        raise UndecidedError(f"{what} failed: {error!r}") from error
    if not script:
        raise UndecidedError(f"{what} returned no message; return the assistant's messages.")
    return script


async def _find_paid(subject: Subject, tasks: Sequence[Task]) -> dict[str, Message]:
    """Return answers built from the tasks' fields in a format that the scorer accepts, keyed by task id. The result is
    empty if there is no such format."""
    for first in tasks[:NUM_TRIED]:
        prompt = "\n".join(get_text(message) for message in first.messages)
        for way, message in write_answers(first, prompt):
            if await is_paid(subject, as_trajectory(first, message)):
                written = {task.id: dict(write_answers(task, prompt)) for task in tasks}
                return {task_id: ways[way] for task_id, ways in written.items() if way in ways}
    return {}


async def _find_reads(
    subject: Subject, references: Sequence[ReferenceEpisode], right: Mapping[str, Trajectory]
) -> tuple[frozenset[tuple[str, ...]], frozenset[tuple[str, ...]]]:
    read: set[tuple[str, ...]] = set()
    missed: set[tuple[str, ...]] = set()
    graders: tuple[tuple[GraderName, object], ...] = (("reward", subject.reward), ("scorer", subject.scorer))
    await subject.grade_ahead(
        [*right.values(), *(as_trajectory(reference.task, reference.answer) for reference in references[:NUM_READ])]
    )
    for reference in [*(one for one in references if one.task.id in right), *references[:NUM_READ]]:
        for name, grader in graders:
            if grader is not None:
                fields = ReadFields(reference.task.fields)
                # The rules on the reward report failures.
                task = replace(reference.task, fields=fields)
                episode = right.get(reference.task.id)
                read_by = as_trajectory(task, reference.answer) if episode is None else replace(episode, task=task)
                with suppress(GradingFailedError):
                    await subject.grade_with(name, read_by)
                read |= fields.read
                missed |= fields.missed
    return frozenset(read), frozenset(missed)


def make_silence() -> Message:
    """Return an assistant message without text."""
    return answer("")
