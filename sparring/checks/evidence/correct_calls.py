"""Verdicts on episodes that are graded by their calls or their final state. The episodes are compared with the expert's
episodes, and with the values that the task requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from weakref import WeakKeyDictionary

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.agents.scripts import actions_of, left_out
from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.changed_calls import remove_rows
from sparring.checks.evidence.grading_inputs import Aspect, grade
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, ReferenceEpisodes, find_references
from sparring.checks.evidence.subject import GraderName, Subject, UndecidedError
from sparring.types import Json, Trajectory

NUM_COMPARED = 8
"""The maximum number of tasks whose fields are compared with the effects of the expert's calls."""
COMPARING_SECONDS = 3.0
_DEPTH = 4


class Verdict(Enum):
    """The verdict on an episode that differs from the expert's episode."""

    RIGHT = "does what the expert does"
    WRONG = "cannot be right"
    DOUBTFUL = "differs from a task field that the grader does not read, or lacks something that the expert keeps"
    UNKNOWN = "does something else, which may be equally good"


_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A part of an episode's effects that equals a field of the task in each of the expert's episodes."""

    place: _Path
    field: _Path
    is_read: bool


class Deeds:
    """The effects of the expert's calls in each task, the state without any call, and the parts that the task's fields
    request."""

    def __init__(self, subject: Subject, references: ReferenceEpisodes) -> None:
        self._subject, self._references = subject, references
        self._known: dict[str, tuple[Json, Json]] = {}
        self._asked: list[_Asked] | None = None
        self._ignored: frozenset[str] | None = None

    async def verdict(self, reference: ReferenceEpisode, trajectory: Trajectory) -> tuple[Verdict, str]:
        """Return the verdict on an episode and its reason. Raises UndecidedError if the expert's episode cannot be
        run."""
        idle, right = await self.idle_and_right(reference)
        done = self._done(trajectory)
        if canonical(done) == canonical(right):
            return Verdict.RIGHT, ""
        if canonical(done) == canonical(idle):
            return Verdict.WRONG, "no call has an effect"
        doubt = ""
        for asked in await self._all_asked():
            wanted, got = _get_at(reference.task.fields, asked.field), _get_at(done, asked.place)
            if _unordered(wanted) != _unordered(got):
                reason = f"{_named(asked.place)} differs from the task's field {_named(asked.field)}"
                if asked.is_read:
                    return Verdict.WRONG, reason
                doubt = reason
        if _is_smaller(done, right, idle):
            if not _find_effects(idle, right) & _find_effects(idle, done):
                return (
                    Verdict.WRONG,
                    "it has none of the expert's effects, and removes or reduces something that the expert keeps",
                )
            if not _find_effects(idle, right) <= _find_effects(idle, done):
                doubt = "it lacks some of the expert's effects, and removes or reduces something that the expert keeps"
        return (Verdict.DOUBTFUL, doubt) if doubt else (Verdict.UNKNOWN, "")

    async def idle_and_right(self, reference: ReferenceEpisode) -> tuple[Json, Json]:
        """Return the effects of an episode without calls, and the effects of the expert's episode."""
        if reference.task.id not in self._known:
            right = await self._subject.run_episode(
                reference.task, self._references.policy(reference.task), graded=False
            )
            idle = await self._subject.run_episode(reference.task, make_idle_policy(reference), graded=False)
            if self._ignored is None:
                self._ignored = (
                    frozenset() if right.final_state is not None else await self._ignored_tools(reference, right)
                )
            self._known[reference.task.id] = self._done(idle), self._done(right)
        return self._known[reference.task.id]

    def _done(self, trajectory: Trajectory) -> Json:
        """Return the effects of an episode: its final state or, without one, the successful calls to each tool, if they
        are graded."""
        if trajectory.final_state is not None:
            return trajectory.final_state
        calls: dict[str, list[Json]] = {}
        for one in trajectory.transitions:
            if one.get("error") is None and one["tool"] not in (self._ignored or ()):
                calls.setdefault(str(one["tool"]), []).append(one["arguments"])
        return calls

    async def _ignored_tools(self, reference: ReferenceEpisode, right: Trajectory) -> frozenset[str]:
        """Return the tools that the expert uses but whose absence does not lower the grade, such as lookups."""
        judge: GraderName = "reward" if self._subject.scorer is None else "scorer"
        best = await grade(self._subject, judge, right)
        calls, ignored = actions_of(reference.script), set()
        for tool in {one.tool for one in calls}:
            script = left_out(reference.script, [one for one in calls if one.tool == tool])
            played = await self._subject.run_episode(reference.task, saying(f"without {tool}", script), graded=False)
            given = await grade(self._subject, judge, played)
            if best is not None and given is not None and given >= best - 1e-9:
                ignored.add(tool)
        return frozenset(ignored)

    async def _all_asked(self) -> list[_Asked]:
        if self._asked is None:
            began, known = time.monotonic(), []
            for reference in self._references.sampled(self._subject)[:NUM_COMPARED]:
                if len(known) >= 2 and time.monotonic() - began > COMPARING_SECONDS:
                    break
                try:
                    known.append((reference, *await self.idle_and_right(reference)))
                except UndecidedError:
                    continue
            self._asked = list(_find_asked(known, self._references.read))
        return self._asked


_deeds: WeakKeyDictionary[Subject, Deeds] = WeakKeyDictionary()


async def find_deeds(subject: Subject) -> Deeds | None:
    """Return the effects of the expert's calls, or None if neither the calls nor the final state is graded, or if no
    correct episode is known."""
    references = await find_references(subject)
    if references is None or not references.graded & {Aspect.STATE, Aspect.CALLS}:
        return None
    if subject not in _deeds:
        _deeds[subject] = Deeds(subject, references)
    return _deeds[subject]


def make_idle_policy(reference: ReferenceEpisode) -> ScriptedPolicy:
    """Return a policy that calls no tool and sends the text of the expert's last message."""
    last = reference.script[-1]
    message = {"role": "assistant", "content": last.get("content") or "Done."}
    return saying("does nothing", (message,))


def _find_asked(
    known: Sequence[tuple[ReferenceEpisode, Json, Json]], read: frozenset[tuple[str, ...]]
) -> Iterator[_Asked]:
    """Yield the largest parts that equal a field in every task, if the tasks differ in this field and the expert had to
    change something."""
    if len(known) < 2:
        return
    (first, _, right), *_ = known
    fields = list(_walk_places(first.task.fields))
    taken: list[_Path] = []
    for place, _ in _walk_places(right):
        if any(place[: len(one)] == one for one in taken):
            continue
        values = [canonical(_get_at(done, place)) for *_, done in known]
        if len(set(values)) < 2 or all(
            canonical(_get_at(idle, place)) == value for (_, idle, _), value in zip(known, values, strict=True)
        ):
            continue
        for field, _ in fields:
            if field and values == [canonical(_get_at(reference.task.fields, field)) for reference, *_ in known]:
                taken.append(place)
                yield _Asked(place, field, _is_read(field, read))
                break


def _is_read(field: _Path, read: frozenset[tuple[str, ...]]) -> bool:
    """Return True if a grader reads a field, either directly or as part of a value that contains it."""
    names = tuple(map(str, field))
    whole = max((one for one in read if names[: len(one)] == one), key=len, default=None)
    return whole is not None and (whole == names or not any(one[:-1] == whole for one in read))


def _walk_places(value: Json, path: _Path = ()) -> Iterator[tuple[_Path, Json]]:
    """Yield every part of a value with its path, the whole value first."""
    yield path, value
    if len(path) >= _DEPTH:
        return
    items: Sequence[tuple[str | int, Json]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, item in items:
        yield from _walk_places(item, (*path, key))


def _get_at(value: Json, path: _Path) -> Json:
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key, "(missing)")
        elif isinstance(value, list | tuple) and isinstance(key, int):
            value = value[key] if key < len(value) else "(missing)"
        else:
            return "(missing)"
    return value


def _named(path: _Path) -> str:
    return repr(".".join(map(str, path))) if path else "the final state"


def _find_effects(before: Json, after: Json, path: _Path = ()) -> set[tuple[_Path, str]]:
    """Return what is new after an episode: values with their paths, and list items without their positions."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found: set[tuple[_Path, str]] = set()
        for key, value in after.items():
            found |= _find_effects(before.get(key), value, (*path, key))
        return found
    if isinstance(before, list) and isinstance(after, list):
        return {(path, canonical(row)) for row in remove_rows(after, before)}
    return {(path, canonical(after))} if canonical(before) != canonical(after) else set()


def _is_smaller(done: Json, right: Json, idle: Json) -> bool:
    """Return True if something that the expert leaves unchanged is missing, or is a smaller number."""
    if isinstance(right, Mapping) and isinstance(idle, Mapping):
        if not isinstance(done, Mapping):
            return False
        kept = right.keys() & idle.keys()
        return bool(kept - done.keys()) or any(_is_smaller(done[key], right[key], idle[key]) for key in kept)
    if isinstance(right, list) and isinstance(idle, list):
        return isinstance(done, list) and len(done) < min(len(right), len(idle))
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (done, right, idle))
    return numbers and right == idle and done < right  # type: ignore[operator]


def _unordered(value: Json) -> str:
    """Return the same string for values that differ only in the order of lists."""
    if isinstance(value, Mapping):
        return canonical({key: _unordered(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return canonical(sorted(map(_unordered, value)))
    return canonical(value)
