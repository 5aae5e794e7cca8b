"""Whether an episode that is graded by what it did is right: compared with the expert's, and with what the task asks for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from weakref import WeakKeyDictionary

from sparring.agents.scripted import ScriptedPolicy, saying
from sparring.agents.scripts import actions_of, left_out
from sparring.checks.actions import without
from sparring.checks.answers import canonical
from sparring.checks.golds import Gold, Golds, golds_of
from sparring.checks.graded import Aspect, grade
from sparring.checks.subject import JudgeName, Subject, UndecidedError
from sparring.types import Json, Trajectory

NUM_COMPARED = 8
"""Tasks whose fields are compared with what the expert did, where it is quick."""
COMPARING_SECONDS = 3.0
_DEPTH = 4


class Verdict(Enum):
    """What is known of an episode that was played in another way than the expert's."""

    RIGHT = "does what the expert does"
    WRONG = "cannot be right"
    DOUBTFUL = (
        "differs from a field of the task that the judge does not read, or lacks something that the expert leaves"
    )
    UNKNOWN = "does something else, which may be as good"


_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A part of what was done that is, in the expert's episodes, always what a field of the task holds."""

    place: _Path
    field: _Path
    is_read: bool


class Deeds:
    """What the expert did in each task, what is there when nothing is done, and what the tasks ask for."""

    def __init__(self, subject: Subject, golds: Golds) -> None:
        self._subject, self._golds = subject, golds
        self._known: dict[str, tuple[Json, Json]] = {}
        self._asked: list[_Asked] | None = None
        self._ignored: frozenset[str] | None = None

    async def verdict(self, gold: Gold, trajectory: Trajectory) -> tuple[Verdict, str]:
        """With its reason. Raises UndecidedError when the expert's episode cannot be played."""
        idle, right = await self.idle_and_right(gold)
        done = self._done(trajectory)
        if canonical(done) == canonical(right):
            return Verdict.RIGHT, ""
        if canonical(done) == canonical(idle):
            return Verdict.WRONG, "nothing is done"
        doubt = ""
        for asked in await self._all_asked():
            wanted, got = _at(gold.task.fields, asked.field), _at(done, asked.place)
            if _unordered(wanted) != _unordered(got):
                reason = f"{_named(asked.place)} is not what the task's field {_named(asked.field)} holds"
                if asked.is_read:
                    return Verdict.WRONG, reason
                doubt = reason
        if _is_smaller(done, right, idle):
            if not _effects(idle, right) & _effects(idle, done):
                return Verdict.WRONG, "nothing of what the expert does is done, and what was there is gone"
            if not _effects(idle, right) <= _effects(idle, done):
                doubt = "not all of what the expert does is done, and what was there is gone"
        return (Verdict.DOUBTFUL, doubt) if doubt else (Verdict.UNKNOWN, "")

    async def idle_and_right(self, gold: Gold) -> tuple[Json, Json]:
        """What is done when nothing is called, and what the expert does."""
        if gold.task.id not in self._known:
            right = await self._subject.play(gold.task, self._golds.policy(gold.task), judged=False)
            idle = await self._subject.play(gold.task, idle_policy(gold), judged=False)
            if self._ignored is None:
                self._ignored = frozenset() if right.final_state is not None else await self._ignored_tools(gold, right)
            self._known[gold.task.id] = self._done(idle), self._done(right)
        return self._known[gold.task.id]

    def _done(self, trajectory: Trajectory) -> Json:
        """What an episode did: its final state, or its graded calls that worked where the environment reports no state."""
        if trajectory.final_state is not None:
            return trajectory.final_state
        calls: dict[str, list[Json]] = {}
        for one in trajectory.transitions:
            if one.get("error") is None and one["tool"] not in (self._ignored or ()):
                calls.setdefault(str(one["tool"]), []).append(one["arguments"])
        return calls

    async def _ignored_tools(self, gold: Gold, right: Trajectory) -> frozenset[str]:
        """Tools that the expert uses and whose absence does not lower the grade: lookups, say."""
        judge: JudgeName = "reward" if self._subject.scorer is None else "scorer"
        best = await grade(self._subject, judge, right)
        calls, ignored = actions_of(gold.script), set()
        for tool in {one.tool for one in calls}:
            script = left_out(gold.script, [one for one in calls if one.tool == tool])
            played = await self._subject.play(gold.task, saying(f"without {tool}", script), judged=False)
            given = await grade(self._subject, judge, played)
            if best is not None and given is not None and given >= best - 1e-9:
                ignored.add(tool)
        return frozenset(ignored)

    async def _all_asked(self) -> list[_Asked]:
        if self._asked is None:
            began, known = time.monotonic(), []
            for gold in self._golds.sampled(self._subject)[:NUM_COMPARED]:
                if len(known) >= 2 and time.monotonic() - began > COMPARING_SECONDS:
                    break
                try:
                    known.append((gold, *await self.idle_and_right(gold)))
                except UndecidedError:
                    continue
            self._asked = list(_find_asked(known, self._golds.read))
        return self._asked


_deeds: WeakKeyDictionary[Subject, Deeds] = WeakKeyDictionary()


async def deeds_of(subject: Subject) -> Deeds | None:
    """None where what was done is not graded, or no right episode is known."""
    golds = await golds_of(subject)
    if golds is None or not golds.graded & {Aspect.STATE, Aspect.CALLS}:
        return None
    if subject not in _deeds:
        _deeds[subject] = Deeds(subject, golds)
    return _deeds[subject]


def idle_policy(gold: Gold) -> ScriptedPolicy:
    """Says what the expert says last, and does nothing."""
    last = gold.script[-1]
    said = {"role": "assistant", "content": last.get("content") or "Done."}
    return saying("does nothing", (said,))


def _find_asked(known: Sequence[tuple[Gold, Json, Json]], read: frozenset[tuple[str, ...]]) -> Iterator[_Asked]:
    """The largest parts that a field holds in every task, where tasks differ and the expert had to change something."""
    if len(known) < 2:
        return
    (first, _, right), *_ = known
    fields = list(_places(first.task.fields))
    taken: list[_Path] = []
    for place, _ in _places(right):
        if any(place[: len(one)] == one for one in taken):
            continue
        values = [canonical(_at(done, place)) for *_, done in known]
        if len(set(values)) < 2 or all(
            canonical(_at(idle, place)) == value for (_, idle, _), value in zip(known, values, strict=True)
        ):
            continue
        for field, _ in fields:
            if field and values == [canonical(_at(gold.task.fields, field)) for gold, *_ in known]:
                taken.append(place)
                yield _Asked(place, field, _is_read(field, read))
                break


def _is_read(field: _Path, read: frozenset[tuple[str, ...]]) -> bool:
    """Whether a judge reads a field: by itself, or the whole that it is a part of."""
    names = tuple(map(str, field))
    whole = max((one for one in read if names[: len(one)] == one), key=len, default=None)
    return whole is not None and (whole == names or not any(one[:-1] == whole for one in read))


def _places(value: Json, path: _Path = ()) -> Iterator[tuple[_Path, Json]]:
    """Every part of a value with its path, the whole first."""
    yield path, value
    if len(path) >= _DEPTH:
        return
    items: Sequence[tuple[str | int, Json]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, item in items:
        yield from _places(item, (*path, key))


def _at(value: Json, path: _Path) -> Json:
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


def _effects(before: Json, after: Json, path: _Path = ()) -> set[tuple[_Path, str]]:
    """What is there afterwards and was not before: values by their path, and rows of a list wherever they stand."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found: set[tuple[_Path, str]] = set()
        for key, value in after.items():
            found |= _effects(before.get(key), value, (*path, key))
        return found
    if isinstance(before, list) and isinstance(after, list):
        return {(path, canonical(row)) for row in without(after, before)}
    return {(path, canonical(after))} if canonical(before) != canonical(after) else set()


def _is_smaller(done: Json, right: Json, idle: Json) -> bool:
    """Whether something is gone, or a number smaller, that the expert leaves as it was."""
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
    """One text for values that differ in nothing but the order of lists."""
    if isinstance(value, Mapping):
        return canonical({key: _unordered(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return canonical(sorted(map(_unordered, value)))
    return canonical(value)
