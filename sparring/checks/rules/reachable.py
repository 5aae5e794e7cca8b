"""Rules on reachable states: the tools must be able to produce what a task requires. Without an expert, the rules
search for the calls."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.agents.scripted import saying
from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.grading_inputs import is_paid
from sparring.checks.evidence.legal_calls import leaves
from sparring.checks.evidence.plan_detours import find_detours, find_left_over, find_scaled, find_spread
from sparring.checks.evidence.plans import Leaf, Place, Plan, Step, list_leaves, make_plans
from sparring.checks.evidence.scripted_episodes import clip
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import get_documentation
from sparring.environments import Environment, answer
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST = 2
"""The minimum number of tasks with the same defect before the rule reports it."""
SELDOM = 0.1
"""If the defect occurs in a smaller share of the tasks, the plans may just be unusual."""
MANY_DONE = 0.1
"""The rule reports tasks that are already solved at the start if they are at least this share of all tasks."""
MOSTLY = 0.3
"""A call that fails in a task is reported if it works in at least this share of the tasks whose required state is
reached."""
ANY = "*"
"""A placeholder for a key that an argument of the call names."""
NUM_SHOWN = 4
_CONFIRM = "Run `sparring check RECIPE --only data` again: the finding is gone."


@dataclass(frozen=True, slots=True)
class _Seen:
    """An observation in one task."""

    plan: Plan
    step: Step
    what: str
    """A description that is the same in all tasks with the same defect."""
    expected: Json
    got: Json

    @property
    def shown(self) -> dict[str, Json]:
        return {
            "task": self.plan.task.id,
            "call": str(self.step.call),
            "answer": clip(self.step.answer),
            "expected": self.expected,
            "got": self.got,
        }


async def unreachable(subject: Subject) -> Iterable[Finding]:
    """Tools can produce the final state that a task requires, with calls whose arguments identify the items that they
    change.

    If the rewarded final state equals a field of the tasks, or consists of their fields, the rule searches for calls
    that lead to it. The search uses the required values and the calls that worked in other tasks. The rule warns in
    these cases. The state comes close, but a written value differs from the required value (truncated, rounded, in a
    different case). A call that works in other tasks is refused or fails in the tool's own code. A call also changes
    something else. A call must specify a different item than the one that it changes. No policy can solve such a task
    without a detour. The rule reports an error if the schema of the one argument that writes such values excludes a
    required value. Correct the tool, or the expected state. If the search finds neither calls nor one of these defects,
    the rule reports nothing.
    """
    plans = await make_plans(subject)
    ruled_out = list(_ruled_out(subject, plans))
    if ruled_out:
        return ruled_out
    kinds: dict[str, list[_Seen]] = defaultdict(list)
    for plan in plans:
        for one in _find_defects(subject, plan, plans):
            kinds[one.what].append(one)
    return [
        _finding(what, those, len(plans))
        for what, those in kinds.items()
        if len({one.plan.task.id for one in those}) >= min(_fewest(those, len(plans)), len(plans))
    ]


def _find_defects(subject: Subject, plan: Plan, plans: Sequence[Plan]) -> list[_Seen]:
    """Return what keeps a plan from producing the required state, or makes it take a detour."""
    found = [*_nearly(plan), *_find_next_to(plan), *_elsewhere(plan)]
    if not found and sum(one.is_whole for one in plans) >= MOSTLY * len(plans):
        found += _refused(plan)
    if not found:
        shown = (*find_scaled(subject, plan), *find_detours(plan, plans), *find_left_over(plan), *find_spread(plan))
        found += [_Seen(plan, one.step, one.what, one.expected, one.got) for one in shown]
    return found


def _fewest(seen: Sequence[_Seen], num_plans: int) -> int:
    """Return the minimum number of tasks in which the rule must observe a defect before it reports it. The number is
    larger if these tasks can be solved despite the defect."""
    return max(FEWEST, math.ceil(SELDOM * num_plans)) if all(one.plan.is_whole for one in seen) else FEWEST


async def done_already(subject: Subject) -> Iterable[Finding]:
    """Tasks require an action: an episode that does nothing and answers "Done." is not rewarded.

    The rule warns if at least one in ten tasks is already solved when it begins, and the expert, if there is one, takes
    actions in it. Such tasks teach the policy to do nothing, and every evaluation counts them as solved. Make tasks
    whose expected state differs from their initial state. If the correct behavior is to refuse to act, let the scorer
    read the answer.
    """
    assert subject.environment_class is not None, "the rule needs an environment"
    if subject.environment_class.final_state is Environment.final_state:
        return []
    done, num = await _find_done(subject)
    if len(done) < max(1, MANY_DONE * num):
        return []
    return [
        Finding(
            rule="data.done_already",
            severity=Severity.WARNING,
            symptom=f"Doing nothing is rewarded in {len(done)} of {num} tasks, for example in task {done[0]}.",
            evidence={"tasks": done, "of": num},
            change="Change these tasks so that the requested state does not exist when they begin, or remove them.",
            confirm=_CONFIRM,
        )
    ]


async def _find_done(subject: Subject) -> tuple[list[str], int]:
    """Return the tasks in which doing nothing is rewarded, and the number of tasks that were tried. Tasks in which the
    expert changes nothing are left out."""
    done: list[str] = []
    num = 0
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            episode = await subject.run_episode(task, saying("says done", (answer("Done."),)), graded=False)
            expert = subject.expert(task)
            if expert is not None:
                played = await subject.run_episode(task, expert, graded=False)
                if canonical(played.final_state) == canonical(episode.final_state):
                    continue
            num += 1
            if episode.final_state is not None and await is_paid(subject, episode):
                done.append(task.id)
    return done, num


def _finding(what: str, seen: Sequence[_Seen], num_plans: int) -> Finding:
    first = seen[0]
    num = len({one.plan.task.id for one in seen})
    return Finding(
        rule="data.unreachable",
        severity=Severity.WARNING,
        symptom=f"{what} in {num} of {num_plans} tasks: {first.step.call} in task {first.plan.task.id}.",
        evidence={"episodes": [one.shown for one in seen[:NUM_SHOWN]], "tasks": num, "of": num_plans},
        change=f"Compare `{first.step.call.tool}` with `expected` and `got` in the evidence. Correct the tool, or the "
        f"state that the tasks expect.",
        confirm=_CONFIRM,
    )


def _ruled_out(subject: Subject, plans: Sequence[Plan]) -> Iterator[Finding]:
    """Yield findings on required values in a place that only one tool writes to, if the tool's argument excludes
    them."""
    writers, stores = _find_written_places(plans)
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
        if len(out) < len(wanted) and len(tasks) >= FEWEST and not _is_shown_elsewhere(subject, tool, out):
            values = [_value(text) for text in out]
            yield Finding(
                rule="data.unreachable",
                severity=Severity.ERROR,
                symptom=f"`{tool}` does not accept {values[0]!r} as `{key}`, which {len(tasks)} of {len(plans)} tasks "
                f"require, for example task {tasks[0]}.",
                evidence={"wanted": values[:NUM_SHOWN], "schema": part, "tasks": tasks},
                change=f"Let `{key}` of `{tool}` accept these values, or make tasks that require accepted values.",
                confirm=_CONFIRM,
            )


def _find_written_places(
    plans: Sequence[Plan],
) -> tuple[dict[Place, set[str]], dict[tuple[str, str], set[Place]]]:
    """Return the tools that write to each place, and the places in which each argument of a tool is stored."""
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
    return writers, stores


def _placed(state: Json, place: Place = ()) -> Counter[Leaf]:
    """Return the scalars of a state, including those in rows of lists, with the keys on the way to them."""
    if isinstance(state, Mapping | list | tuple):
        is_row = place[-1:] == ("[]",)
        items = (
            state.items()
            if isinstance(state, Mapping)
            else ((str(index) if is_row else "[]", one) for index, one in enumerate(state))
        )
        return Counter(leaf for key, item in items for leaf in _placed(item, (*place, str(key))).elements())
    return Counter([(place, canonical(state))])


def _is_in(place: Place, written: Place) -> bool:
    return len(place) == len(written) and all(two in (one, ANY) for one, two in zip(place, written, strict=True))


def _rules_out(part: Mapping[str, Json], value: Json) -> bool:
    """Return True if an argument accepts values of this type, but not this value."""
    if "enum" in part:
        return value not in part["enum"] and type(value) in map(type, part["enum"])
    if isinstance(value, bool) or not isinstance(value, int | float) or part.get("type") not in ("integer", "number"):
        return False
    return not part.get("minimum", value) <= value <= part.get("maximum", value)


def _is_shown_elsewhere(subject: Subject, tool: str, values: Iterable[str]) -> bool:
    """Return True if another tool is named after one of these values, as `close` may write `closed`."""
    others = " ".join(get_documentation(subject, one) for one in subject.tools if one != tool)
    others += " ".join(one for one in subject.tools if one != tool).lower()
    texts = [value.lower() for text in values if isinstance(value := _value(text), str)]
    return any(text[:4] in others for text in texts if text)


def _nearly(plan: Plan) -> Iterator[_Seen]:
    """Yield values that the plan wrote and that are nearly equal to the required values, if nothing else is missing."""
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
                    if (place, got) in list_leaves(after)
                ),
                plan.steps[-1],
            )
            what = f"The value that `{step.call.tool}` writes differs from the stored value ({difference})"
            yield _Seen(plan, step, what, _value(text), _value(got))


def difference_of(wanted: Json, got: Json) -> str | None:
    """Return a description of how a value differs from the required value, or None if the two are not similar."""
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
            return "in another case or with other blanks"
        if len(got) >= 3 and wanted.startswith(got):
            return f"cut off after {len(got)} characters" if len(wanted) - len(got) > 1 else "cut off"
        is_ascii = got.encode("ascii", "ignore") == wanted.encode("ascii", "ignore") or len(got) == len(wanted)
        same = sum(a == b for a, b in zip(wanted, got, strict=False))
        return "other characters" if is_ascii and not wanted.isascii() and same >= len(wanted) / 2 else None
    if isinstance(wanted, str | int | float) and isinstance(got, str | int | float) and str(wanted) == str(got):
        return "of another type"
    return None


def _find_next_to(plan: Plan) -> Iterator[_Seen]:
    """Yield calls that do part of the task, but also undo something that was already correct. The calls are those of a
    plan or, without a plan, all calls that were tried."""
    steps = list(zip(plan.steps, plan.states, plan.states[1:], strict=False)) if plan.is_whole else plan.effects
    left = plan.missing + plan.surplus
    kept = {place for place, _ in list_leaves(plan.wanted) if place[-1:] != ("[]",)}
    for step, before, after in steps:
        old, new, right = list_leaves(before), list_leaves(after), list_leaves(plan.wanted)
        done = ((right - old) & new) + ((old - right) - new)
        lost = (old & right & list_leaves(plan.states[0])) - new
        if not plan.is_whole:
            # If the task requires another item, removing the existing item is not part of the task.
            done = Counter({one: num for one, num in (done & left).items() if one in right or one[0] not in kept})
        if lost and done and (plan.is_whole or lost.total() <= done.total()):
            what = f"`{step.call.tool}` changes something else in addition to what is requested"
            yield _Seen(plan, step, what, _shown(list(lost)), _shown(list(new - old)))
            return


def _elsewhere(plan: Plan) -> Iterator[_Seen]:
    """Yield tools whose calls mostly specify one item of the state but change another."""
    aside: dict[str, list[_Seen]] = defaultdict(list)
    num_at_home: Counter[str] = Counter()
    for step, before, after in plan.effects:
        old, new = list_leaves(before), list_leaves(after)
        known = {part for place, _ in old for part in place}
        arguments = {str(value) for value in step.call.arguments.values()}
        named = arguments & known
        differing = (old - new) + (new - old)
        changed = {part for place, _ in differing for part in place}
        rows = {str(one) for place, text in differing if place[-1:] == ("[]",) for _, one in leaves(_value(text))}
        if named and (arguments & changed or named & rows):
            num_at_home[step.call.tool] += 1
        elif named:
            what = f"`{step.call.tool}` names one item and changes another"
            aside[step.call.tool].append(_Seen(plan, step, what, sorted(named), _shown(list(new - old))))
    for tool, seen in aside.items():
        if len(seen) > num_at_home[tool]:
            yield seen[0]


def _refused(plan: Plan) -> Iterator[_Seen]:
    """Yield a call that does nothing in this task, although similar calls work in other tasks."""
    left = {part for place, text in plan.missing + plan.surplus for part in (*place, text)}
    refused = [] if plan.is_whole else [one for one in plan.refused if one.is_accident or _is_needed(one, left)]
    if refused:
        step = max(refused, key=lambda one: (one.is_accident, _num_left(one, left)))
        does = "fails in its own code" if step.is_accident else "does not do what is requested"
        what = f"`{step.call.tool}` {does}, although it does{' not' * step.is_accident} in other tasks,"
        yield _Seen(plan, step, what, _shown(list(plan.missing)), _shown(list(plan.surplus)))


def _num_left(step: Step, left: set[str]) -> int:
    """Return how many arguments of a call appear in the part of the state that is not yet as required."""
    return sum(bool(left & {str(value), canonical(value)}) for value in step.call.arguments.values())


def _is_needed(step: Step, left: set[str]) -> bool:
    """Return True if all arguments of a call differ and appear in the part of the state that is not yet as required. A
    tool may refuse other calls for good reasons."""
    values = [value for value in step.call.arguments.values() if not isinstance(value, bool)]
    is_distinct = len(set(map(str, values))) == len(values)
    return is_distinct and all({str(value), canonical(value)} & left for value in values)


def _value(text: str) -> Json:
    return json.loads(text)


def _shown(leaves: Sequence[tuple[tuple[str, ...], str]]) -> Json:
    return [f"{'.'.join(place)}: {clip(text, 120)}" for place, text in leaves[:NUM_SHOWN]]
