"""Can what a task asks for be brought about with the tools? Found out without an expert, by looking for the calls."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.agents.scripted import saying
from sparring.checks.answers import canonical
from sparring.checks.episodes import clipped
from sparring.checks.graded import is_paid
from sparring.checks.plans import Leaf, Place, Plan, Step, leaves_of, plans_of
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.checks.survey import documented
from sparring.environments import Environment, answer
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST = 2
"""Tasks in which the same is seen, before it is reported."""
MANY_DONE = 0.1
"""Share of the tasks that are done when they begin, from which it is reported."""
MOSTLY = 0.3
"""Share of the tasks whose state is reached, from which a call that fails in another task is at fault there."""
ANY = "*"
"""For a key that an argument of the call names."""
NUM_SHOWN = 4
_CONFIRM = "Run `sparring check RECIPE --only data` again: the finding is gone."


@dataclass(frozen=True, slots=True)
class _Seen:
    """Something seen in one task."""

    plan: Plan
    step: Step
    what: str
    """In words that are the same in all tasks where the same is wrong."""
    expected: Json
    got: Json

    @property
    def shown(self) -> dict[str, Json]:
        return {
            "task": self.plan.task.id, "call": str(self.step.call), "answer": clipped(self.step.said),
            "expected": self.expected, "got": self.got,
        }  # fmt: skip


@check("data.unreachable", needs=("environment",))
async def unreachable(subject: Subject) -> Iterable[Finding]:
    """Tools can bring about the final state that a task asks for, each by the call that names what it changes.

    Where the final state that is paid is a field of the tasks, or made of their fields, calls that lead to it are looked for,
    with the values that are wanted, and with what worked in other tasks. A warning where the state comes close and a written
    value is not the wanted one (cut off, rounded, in other case), where a call that works in other tasks is refused or fails
    in the tool's own code, where a call changes something else beside what is asked, and where one has to name another thing
    than it changes. No policy can be right in such a task, or only by a detour. An error where a value is wanted that the
    schema of the one argument that writes such values rules out. Correct the tool, or the expected state. Where no calls are
    found and nothing of this is seen, nothing is said.
    """
    plans = await plans_of(subject)
    ruled_out = list(_ruled_out(subject, plans))
    if ruled_out:
        return ruled_out
    seen: list[_Seen] = []
    num_whole = sum(one.is_whole for one in plans)
    for plan in plans:
        found = [*_nearly(plan), *_beside(plan), *_elsewhere(plan)]
        if not found and num_whole >= MOSTLY * len(plans):
            found += _refused(plan)
        seen += found
    kinds: dict[str, list[_Seen]] = defaultdict(list)
    for one in seen:
        kinds[one.what].append(one)
    return [
        _finding(what, those, len(plans)) for what, those in kinds.items()
        if len({one.plan.task.id for one in those}) >= min(FEWEST, len(plans))
    ]  # fmt: skip


@check("data.done_already", needs=("environment",))
async def done_already(subject: Subject) -> Iterable[Finding]:
    """Tasks ask for something: an episode that does nothing and says "Done." is not paid.

    A warning where one in ten tasks and more is as it should be when it begins, and the expert, where there is one, has something
    to do there. Such tasks teach to do nothing, and count as solved in every evaluation. Make tasks whose expected state differs
    from the first one; where refusing to act is the task, have the scorer read what is said.
    """
    assert subject.environment_class is not None, "the rule needs an environment"
    if subject.environment_class.final_state is Environment.final_state:
        return []
    done: list[str] = []
    num = 0
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            episode = await subject.play(task, saying("says done", (answer("Done."),)), judged=False)
            expert = subject.expert(task)
            if expert is not None:
                played = await subject.play(task, expert, judged=False)
                if canonical(played.final_state) == canonical(episode.final_state):
                    continue
            num += 1
            if episode.final_state is not None and await is_paid(subject, episode):
                done.append(task.id)
    if len(done) < max(1, MANY_DONE * num):
        return []
    return [
        Finding(
            rule="data.done_already", severity=Severity.WARNING,
            symptom=f"Doing nothing is paid in {len(done)} of {num} tasks: {done[0]}, say.",
            evidence={"tasks": done, "of": num},
            change="Make these tasks so that what they ask for is not there when they begin; or take them out.",
            confirm=_CONFIRM,
        )
    ]  # fmt: skip


def _finding(what: str, seen: Sequence[_Seen], num_plans: int) -> Finding:
    first = seen[0]
    num = len({one.plan.task.id for one in seen})
    return Finding(
        rule="data.unreachable", severity=Severity.WARNING,
        symptom=f"{what} in {num} of {num_plans} tasks: {first.step.call} in task {first.plan.task.id}.",
        evidence={"episodes": [one.shown for one in seen[:NUM_SHOWN]], "tasks": num, "of": num_plans},
        change=f"Compare `{first.step.call.tool}` with `expected` and `got` in the evidence; correct the tool, or the state that "
        "the tasks expect.",
        confirm=_CONFIRM,
    )  # fmt: skip


def _ruled_out(subject: Subject, plans: Sequence[Plan]) -> Iterator[Finding]:
    """Values that the tasks want in a place where one tool alone writes, and its argument that stands there takes others."""
    writers: dict[Place, set[str]] = defaultdict(set)
    stores: dict[tuple[str, str], set[Place]] = defaultdict(set)
    for plan in plans:
        for step, before, after in plan.effects:
            given = set(map(str, step.call.arguments.values()))
            for place, text in _placed(after) - _placed(before):
                written = tuple(ANY if part in given else part for part in place)
                writers[written].add(step.call.tool)
                for key in (key for key, value in step.call.arguments.items() if canonical(value) == text):
                    stores[step.call.tool, key].add(written)
    for (tool, key), places in sorted(stores.items()):
        own = [one for one in places if writers[one] == {tool}]
        wanted: dict[str, list[str]] = defaultdict(list)
        for plan in plans:
            for place, text in _placed(plan.wanted) - _placed(plan.states[0]):
                if any(_is_in(place, one) for one in own):
                    wanted[text].append(plan.task.id)
        part = subject.tools[tool].schema["function"]["parameters"]["properties"][key]
        out = {text: tasks for text, tasks in wanted.items() if _rules_out(part, _value(text))}
        tasks = sorted({task for those in out.values() for task in those})
        if len(out) < len(wanted) and len(tasks) >= FEWEST and not _is_told_elsewhere(subject, tool, out):
            values = [_value(text) for text in out]
            yield Finding(
                rule="data.unreachable", severity=Severity.ERROR,
                symptom=f"`{tool}` does not take {values[0]!r} as `{key}`, which {len(tasks)} of {len(plans)} tasks want: "
                f"{tasks[0]}, say.",
                evidence={"wanted": values[:NUM_SHOWN], "schema": part, "tasks": tasks},
                change=f"Have `{key}` of `{tool}` take these values, or make tasks that want what it takes.",
                confirm=_CONFIRM,
            )  # fmt: skip


def _placed(state: Json, place: Place = ()) -> Counter[Leaf]:
    """The scalars of a state with the keys on the way to them, those of rows of lists, too."""
    if isinstance(state, Mapping | list | tuple):
        items = state.items() if isinstance(state, Mapping) else (("[]", one) for one in state)
        return Counter(leaf for key, item in items for leaf in _placed(item, (*place, str(key))).elements())
    return Counter([(place, canonical(state))])


def _is_in(place: Place, written: Place) -> bool:
    return len(place) == len(written) and all(two in (one, ANY) for one, two in zip(place, written, strict=True))


def _rules_out(part: Mapping[str, Json], value: Json) -> bool:
    """Whether an argument takes values of this type, and not this one."""
    if "enum" in part:
        return value not in part["enum"] and type(value) in map(type, part["enum"])
    if isinstance(value, bool) or not isinstance(value, int | float) or part.get("type") not in ("integer", "number"):
        return False
    return not part.get("minimum", value) <= value <= part.get("maximum", value)


def _is_told_elsewhere(subject: Subject, tool: str, values: Iterable[str]) -> bool:
    """Whether another tool is said to bring about such a value: `close` writes closed."""
    others = " ".join(documented(subject, one) for one in subject.tools if one != tool)
    others += " ".join(one for one in subject.tools if one != tool).lower()
    texts = [value.lower() for text in values if isinstance(value := _value(text), str)]
    return any(text[:4] in others for text in texts if text)


def _nearly(plan: Plan) -> Iterator[_Seen]:
    """Values that the plan wrote and that are nearly the wanted ones, where nothing else is missing."""
    if plan.is_whole or not plan.steps:
        return
    missing, surplus = list(plan.missing), dict(plan.surplus)
    for place, text in missing:
        got = next((other for there, other in surplus if there == place), None)
        difference = None if got is None else difference_of(_value(text), _value(got))
        if difference is not None and got is not None:
            step = next(
                (
                    one
                    for one, after in zip(plan.steps, plan.states[1:], strict=True)
                    if (place, got) in leaves_of(after)
                ),
                plan.steps[-1],
            )
            what = f"What `{step.call.tool}` writes is not what is there afterwards ({difference})"
            yield _Seen(plan, step, what, _value(text), _value(got))


def difference_of(wanted: Json, got: Json) -> str | None:
    """How a value is nearly the wanted one, in words; None where it is another one."""
    if isinstance(wanted, bool) or isinstance(got, bool):
        return None
    if isinstance(wanted, int | float) and isinstance(got, int | float):
        if math.isclose(wanted, got, rel_tol=1e-9, abs_tol=1e-9):
            return "a sum of floating point numbers"
        if not math.isfinite(wanted):
            return None
        is_rounded = wanted != int(wanted) and any(got == round(wanted, digits) for digits in (0, 1, 2))
        return "rounded" if is_rounded or got == math.floor(wanted) != wanted else None
    if isinstance(wanted, str) and isinstance(got, str):
        if wanted.strip().casefold() == got.strip().casefold():
            return "in other case or with other blanks"
        if len(got) >= 3 and wanted.startswith(got):
            return f"cut off after {len(got)} characters" if len(wanted) - len(got) > 1 else "cut off"
        is_ascii = got.encode("ascii", "ignore") == wanted.encode("ascii", "ignore") or len(got) == len(wanted)
        same = sum(a == b for a, b in zip(wanted, got, strict=False))
        return "other characters" if is_ascii and not wanted.isascii() and same >= len(wanted) / 2 else None
    if isinstance(wanted, str | int | float) and isinstance(got, str | int | float) and str(wanted) == str(got):
        return "of another type"
    return None


def _beside(plan: Plan) -> Iterator[_Seen]:
    """Calls that do a part of what is asked and undo what was right: in a plan, or where there is none in what was tried."""
    steps = list(zip(plan.steps, plan.states, plan.states[1:], strict=False)) if plan.is_whole else plan.effects
    left = plan.missing + plan.surplus
    kept = {place for place, _ in leaves_of(plan.wanted) if place[-1:] != ("[]",)}
    for step, before, after in steps:
        old, new, right = leaves_of(before), leaves_of(after), leaves_of(plan.wanted)
        done = ((right - old) & new) + ((old - right) - new)
        lost = (old & right) - new
        if not plan.is_whole:
            # Where something else is asked to be, taking away what is there does no part of it.
            done = Counter({one: num for one, num in (done & left).items() if one in right or one[0] not in kept})
        if lost and done and (plan.is_whole or lost.total() <= done.total()):
            what = f"`{step.call.tool}` changes something else beside what is asked"
            yield _Seen(plan, step, what, _shown(list(lost)), _shown(list(new - old)))
            return


def _elsewhere(plan: Plan) -> Iterator[_Seen]:
    """Tools whose calls mostly name one thing that the state knows, and change another."""
    aside: dict[str, list[_Seen]] = defaultdict(list)
    num_at_home: Counter[str] = Counter()
    for step, before, after in plan.effects:
        old, new = leaves_of(before), leaves_of(after)
        known = {part for place, _ in old for part in place}
        arguments = {str(value) for value in step.call.arguments.values()}
        named = arguments & known
        changed = {part for place, _ in (old - new) + (new - old) for part in place}
        if named and arguments & changed:
            num_at_home[step.call.tool] += 1
        elif named:
            what = f"`{step.call.tool}` names one thing and changes another"
            aside[step.call.tool].append(_Seen(plan, step, what, sorted(named), _shown(list(new - old))))
    for tool, seen in aside.items():
        if len(seen) > num_at_home[tool]:
            yield seen[0]


def _refused(plan: Plan) -> Iterator[_Seen]:
    """A call like those that work in other tasks, and does nothing in this one."""
    left = {part for place, text in plan.missing + plan.surplus for part in (*place, text)}
    refused = [] if plan.is_whole else [one for one in plan.refused if one.is_accident or _is_needed(one, left)]
    if refused:
        step = max(refused, key=lambda one: (one.is_accident, _num_left(one, left)))
        does = "fails in its own code" if step.is_accident else "does not do what is asked"
        what = f"`{step.call.tool}` {does}, although it does{' not' * step.is_accident} in other tasks,"
        yield _Seen(plan, step, what, _shown(list(plan.missing)), _shown(list(plan.surplus)))


def _num_left(step: Step, left: set[str]) -> int:
    """How many arguments of a call stand in what is not yet as it is wanted."""
    return sum(bool(left & {str(value), canonical(value)}) for value in step.call.arguments.values())


def _is_needed(step: Step, left: set[str]) -> bool:
    """Whether all arguments of a call differ and stand in what is not yet as it is wanted: a tool may refuse other calls for
    good reasons."""
    values = [value for value in step.call.arguments.values() if not isinstance(value, bool)]
    is_distinct = len(set(map(str, values))) == len(values)
    return is_distinct and all({str(value), canonical(value)} & left for value in values)


def _value(text: str) -> Json:
    return json.loads(text)


def _shown(leaves: Sequence[tuple[tuple[str, ...], str]]) -> Json:
    return [f"{'.'.join(place)}: {clipped(text, 120)}" for place, text in leaves[:NUM_SHOWN]]
