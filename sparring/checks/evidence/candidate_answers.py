"""Answers built from the texts in a recipe: the example in its prompt, texts in the code of its graders, and the
original or changed values of its tasks.

No reference answer is needed: the rules compare the reward with the scorer.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from sparring.agents.scripted import saying
from sparring.checks.evidence.answer_forms import ANSWER_TAGS, find_frames, find_tagged, get_text, parse_object
from sparring.checks.evidence.explore import Call, explore_task
from sparring.checks.evidence.field_paths import list_paths
from sparring.checks.evidence.grading_inputs import Aspect, replace_last_message
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, split_into_turns
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.subject import GraderName, GradingFailedError, Subject
from sparring.checks.evidence.survey import find_reading_tools
from sparring.checks.rules.prompt import get_prompt
from sparring.checks.running.time_budget import Deadline, OutOfTimeError, UndecidedError
from sparring.environments import answer
from sparring.evaluation.independence import objects_reached
from sparring.types import Json, Message, Task, Trajectory

NUM_TASKS = 12
MOST_TASKS = 36
"""The maximum number of tasks to use. After the first NUM_TASKS, only answers that are the same in all tasks are
tried."""
SECONDS = 3.0
MOST_LITERALS = 24
MOST_VALUES = 24
"""The maximum number of values of task fields to try."""
MOST_FRAMES = 4
LONGEST = 80
"""The maximum number of characters of a string that counts as an answer."""
EXAMPLE = "the example in the prompt"
EMPTY = "an answer without content"
CODE = "a text in the code of the graders"
_NOTHING = ("", "Done.", "[]", "{}", "null", "nan", "inf", "-1", "1e999", "None", '""')
_LISTS: tuple[tuple[str, Callable[[list[Json]], list[Json]]], ...] = (
    ("one element of", lambda items: items[:1]),
    ("all but the last of", lambda items: items[:-1]),
    ("an element twice of", lambda items: [*items[:-1], items[0]]),
)
"""Changes to a list. The list's name follows each description."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer, its value, and a description of the value's source. The description is the same in all tasks."""

    source: str
    value: str
    message: Message


@dataclass(frozen=True, slots=True)
class GradedCandidate:
    """A candidate as the last message of an episode, with its grades."""

    candidate: Candidate
    after: str
    """A description of the calls before the answer."""
    trajectory: Trajectory
    failed: GraderName | None = None
    failure: str = ""

    @property
    def task(self) -> Task:
        return self.trajectory.task

    @property
    def reward(self) -> float | None:
        """The total reward, or None without a reward."""
        return None if self.trajectory.reward is None else self.trajectory.reward.total

    @property
    def score(self) -> float | None:
        return self.trajectory.score

    @property
    def shown(self) -> dict[str, Json]:
        """The values that a finding shows as evidence."""
        return {
            "task": self.task.id,
            "said": get_text(self.candidate.message)[:200],
            "after": self.after,
            "reward": self.reward,
            "score": self.score,
        }


async def grade_candidates(subject: Subject) -> list[GradedCandidate]:
    """Return the graded candidates of a few tasks, both without calls before the answer and after calls to the
    read-only tools. They are computed once. The list is empty without an environment, with an LLM judge, or if episodes
    are slow."""
    if "candidates" not in subject.shared:
        found: list[GradedCandidate] = []
        subject.shared["candidates"] = found
        if subject.environment_class is None or subject.model_judges or subject.timing.episode_seconds > SLOW_SECONDS:
            return found
        ends = Deadline(SECONDS)
        with subject.timing.as_far_as_it_goes():
            for index, task in enumerate(_tasks(subject)):
                candidates = [one async for one in _candidates(subject, task, are_few=index >= NUM_TASKS)]
                async for after, base in _find_bases(subject, task, are_few=index >= NUM_TASKS):
                    for one in candidates:
                        if ends.is_over:
                            return found
                        found.append(await _graded(subject, one, after, replace_last_message(base, one.message)))
    return subject.shared["candidates"]


def _tasks(subject: Subject) -> list[Task]:
    sampled = {task.id for task in subject.sample}
    return [*subject.sample, *(one for one in subject.looked_at if one.id not in sampled)][:MOST_TASKS]


async def _graded(subject: Subject, candidate: Candidate, after: str, trajectory: Trajectory) -> GradedCandidate:
    try:
        return GradedCandidate(candidate, after, await subject.grade(trajectory))
    except GradingFailedError as error:
        return GradedCandidate(candidate, after, trajectory, error.grader, str(error))


async def _find_bases(subject: Subject, task: Task, *, are_few: bool) -> AsyncIterator[tuple[str, Trajectory]]:
    """Yield each episode whose last message will be replaced, and a description of its calls. Episodes that the
    environment ends are left out."""
    end = answer("Done.")
    calls = [] if are_few else await _list_reading_calls(subject, task)
    for after, script in (("nothing", []), ("calls to the read-only tools", split_into_turns(subject, calls))):
        if after != "nothing" and not script:
            continue
        try:
            played = await subject.run_episode(task, saying(f"candidates after {after}", [*script, end]), graded=False)
        except OutOfTimeError:
            raise
        except UndecidedError:
            continue
        if played.messages[-1].get("role") == "assistant":
            yield after, played


async def _list_reading_calls(subject: Subject, task: Task) -> list[Call]:
    """Return one legal call of each read-only tool."""
    if subject.lacks("environment") is not None or not subject.tools:
        return []
    found = await explore_task(subject, task)
    return [legal[0].call for name in await find_reading_tools(subject) if (legal := found.legal(name))]


async def _candidates(subject: Subject, task: Task, *, are_few: bool) -> AsyncIterator[Candidate]:
    prompt = await get_prompt(subject, task)
    frames = await _find_frames(subject, prompt)
    seen: set[str] = set()
    for source, value in _values(subject, task, prompt, frames):
        if are_few and source not in (EMPTY, EXAMPLE):
            break
        for before, after in frames:
            text = f"{before}{value}{after}"
            if text not in seen:
                seen.add(text)
                yield Candidate(source, value, answer(text))


async def _find_frames(subject: Subject, prompt: str) -> list[tuple[str, str]]:
    """Return the texts before and after an answer. They come from the reference answers if these are known, and
    otherwise from the prompt."""
    references = await find_references(subject)
    if (
        references is not None
        and Aspect.MESSAGE in references.graded
        and references.form.tool is None
        and len(references.form.tags) < 2
    ):
        tag = references.form.tag
        inner = (f"<{tag}>", f"</{tag}>") if tag else ("", "")
        return [(references.form.before + inner[0], inner[1] + references.form.after)]
    tags = list(dict.fromkeys(tag for tag, body in find_tagged(prompt) if len(body) <= LONGEST))
    tags = tags or [tag for tag in ANSWER_TAGS if re.search(rf"<{tag}>", prompt)]
    found = [("", ""), *((f"<{tag}>", f"</{tag}>") for tag in tags)]
    if not tags:
        found += find_frames(prompt)
    return list(dict.fromkeys(found))[:MOST_FRAMES]


def _values(subject: Subject, task: Task, prompt: str, frames: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the source and the text of each value."""
    for one in _NOTHING:
        yield EMPTY, one
    shown = [
        prompt[at + len(start) :].partition(end)[0] for start, end in frames if end and (at := prompt.find(start)) >= 0
    ]
    for one in shown:
        yield EXAMPLE, one
    literals = collect_literals(subject)
    for one in literals:
        yield CODE, one
    if literals:
        yield "all texts in the code of the graders", " ".join(literals)
    paths = list_paths(task)
    scalars = [(path, value) for path, value in paths.items() if isinstance(value, str | int | float)]
    for path, value in scalars[:MOST_VALUES]:
        yield f"`{path}`", str(value)
    as_json = any(one.lstrip().startswith("[") for one in shown)
    for path, value in paths.items():
        if (
            isinstance(value, list | tuple)
            and len(value) > 1
            and all(isinstance(one, str | int | float) for one in value)
        ):
            for what, change in _LISTS:
                items = change(list(value))
                yield f"{what} `{path}`", json.dumps(items) if as_json else ", ".join(map(str, items))


def collect_literals(subject: Subject) -> list[str]:
    """Return the string constants in the user's own reward and scorer code. A grader may search an answer for such a
    string."""
    if "literals of graders" not in subject.shared:
        found: dict[str, None] = {}
        own = subject.own_code
        for judge in (subject.reward, subject.scorer):
            for function in objects_reached(judge, types.FunctionType) if judge is not None else ():
                if own.owns(function.__code__.co_filename):
                    found |= dict.fromkeys(_texts(function))
        subject.shared["literals of graders"] = [one for one in found if _is_answer(one)][:MOST_LITERALS]
    return subject.shared["literals of graders"]


def _texts(function: types.FunctionType) -> Iterator[str]:
    codes = [function.__code__]
    doc = function.__doc__
    while codes:
        code = codes.pop()
        for one in code.co_consts:
            if isinstance(one, types.CodeType):
                codes.append(one)
            yield from (text for text in _flat(one) if text != doc)
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, str | tuple | list | set | frozenset | dict):
                yield from _flat(value)


def _flat(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list | set | frozenset | dict):
        for one in list(value)[:MOST_LITERALS]:
            yield from _flat(one)


def _is_answer(text: str) -> bool:
    """Return True if a string may be part of an answer: it has one or a few words, and is neither a pattern nor a
    tag."""
    return re.fullmatch(r"[^\W_][\w .,'-]{0,59}", text) is not None and parse_object(text) is None
