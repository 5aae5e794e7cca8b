"""Plans for recipes without an expert: a search for calls that reach the state requested by a task.

A task that is graded by its final state has the expected state in a field. The search starts at the state after
`reset`, and adds the call whose result is closest to the expected state. It repeats this step until it reaches the
expected state or its limits. Calls that worked in one task are tried first in the next task.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import operator
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeGuard, final
from weakref import WeakKeyDictionary

from sparring.checks.evidence.answer_forms import canonical, get_text
from sparring.checks.evidence.arguments import Known, fit_to_schema, list_schema_values, split_words
from sparring.checks.evidence.explore import Call, explore_task, is_refusal
from sparring.checks.evidence.legal_calls import combine_likeliest
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.wanted_state import WantedState, find_wanted_state
from sparring.checks.running.time_budget import OutOfTimeError, UndecidedError, load_of_machine
from sparring.environments import ToolError, execute
from sparring.environments.base import final_state, reset
from sparring.types import Json, Task

NUM_PLANNED = 24
"""The maximum number of tasks for which plans are made."""
NUM_CALLS = 8000
"""The maximum number of calls for all tasks. Resets count as calls, so that a busy machine finds the same plans.
TASK_CALLS limits one task; LEARNING_CALLS limits each of the first tasks, from which the others learn."""
TASK_CALLS = 1000
LEARNING_CALLS = 3000
NUM_LEARNT = 2
SECONDS = 8.0
"""The time limit in seconds on an idle machine, after which the remaining tasks are skipped."""
MOST_CALLS = 6
"""The maximum number of calls in a plan."""
MOST_NODES = 10
"""The maximum number of states from which to look for the next call."""
MOST_TRIED = 64
"""The maximum number of calls to one tool to try as the next call."""
MOST_VALUES = 8
"""The maximum number of values for one argument."""
NUM_FUTILE = 32
"""After this number of calls without a change, a tool is not tried again as the next call."""
MOST_EFFECTS = 30
"""The maximum number of calls to one tool with an effect that are remembered for one task."""
DETOUR = 2.5
"""The largest increase of the distance that a call may cause."""
SLOW_SECONDS = 0.1
"""If an episode takes more seconds than this on an idle machine, no plans are made."""

Place: TypeAlias = tuple[str, ...]
"""The keys from the whole state to a part of it; `[]` means any position in a list."""
Leaf: TypeAlias = tuple[Place, str]
"""A place and its value as canonical JSON."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a plan and its result."""

    call: Call
    answer: str
    """The result of the tool."""
    is_refused: bool
    is_accident: bool = False
    """True if an exception came from the tool's own code without a `raise` or `assert` there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The calls that came closest to the state requested by a task."""

    task: Task
    wanted: Json
    states: tuple[Json, ...]
    """The states after `reset` and after each call."""
    steps: tuple[Step, ...]
    refused: tuple[Step, ...]
    """Calls that changed nothing, although similar calls in other tasks changed something."""
    effects: tuple[tuple[Step, Json, Json], ...]
    """Tried calls that changed something, with the states before and after."""
    ends: bool = False
    """True if the last call ends the episode."""

    @property
    def is_whole(self) -> bool:
        """True if the calls reach the required state."""
        return not measure_distance(self.states[-1], self.wanted)

    @property
    def is_direct(self) -> bool:
        """True if each call changes the state."""
        return all(canonical(one) != canonical(two) for one, two in itertools.pairwise(self.states))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(one.call for one in self.steps)

    @property
    def missing(self) -> Counter[Leaf]:
        """The required leaves that are not in the final state."""
        return list_leaves(self.wanted) - list_leaves(self.states[-1])

    @property
    def surplus(self) -> Counter[Leaf]:
        """The leaves of the final state that are not required."""
        return list_leaves(self.states[-1]) - list_leaves(self.wanted)


def list_leaves(value: Json, place: Place = ()) -> Counter[Leaf]:
    """Return the scalars of a state with their places. A list item is one leaf, without its position."""
    found: Counter[Leaf] = Counter()
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            found.update(list_leaves(item, (*place, str(key))))
    elif isinstance(value, list | tuple):
        for item in value:
            found[(*place, "[]"), canonical(item)] += 1
    else:
        found[place, canonical(value)] += 1
    return found


def measure_distance(state: Json, wanted: Json) -> float:
    """Return the distance between a state and the required state, which is 0 if they are equal. Each missing or surplus
    list item adds 1. Each other value that differs or is missing adds 2, or less if it is a similar number or text. A
    different order of a list adds up to 0.1."""
    if canonical(state) == canonical(wanted):
        return 0.0
    if isinstance(state, Mapping) and isinstance(wanted, Mapping):
        return sum(
            measure_distance(state[key], wanted[key])
            if key in state and key in wanted
            else 2.0 * max(1, len(list_leaves(wanted.get(key, state.get(key)))))
            for key in state.keys() | wanted.keys()
        )
    if isinstance(state, list | tuple) and isinstance(wanted, list | tuple):
        first, second = Counter(map(canonical, state)), Counter(map(canonical, wanted))
        apart = (first - second).total() + (second - first).total()
        moved = sum(canonical(a) != canonical(b) for a, b in zip(state, wanted, strict=False))
        return apart + 0.1 * moved / max(1, len(wanted))
    if isinstance(state, str) and isinstance(wanted, str) and state and wanted:
        same = sum(1 for _ in itertools.takewhile(bool, map(operator.eq, state, wanted)))
        return 2.0 - same / max(len(state), len(wanted))
    if _is_number(state) and _is_number(wanted):
        apart = abs(state - wanted)
        return 1.0 + apart / (apart + 1.0)
    return 2.0


def _is_number(value: Json) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


@final
@dataclass
class _Work:
    """The remaining budget: a number of calls, and a deadline after which the remaining tasks are skipped."""

    ends: float = field(default_factory=lambda: time.monotonic() + SECONDS * load_of_machine())
    for_all: int = NUM_CALLS
    for_task: int = 0

    def begin(self, most: int) -> None:
        """Start the budget of the next task."""
        self.for_task = min(most, self.for_all)

    def count(self, num: int) -> None:
        """Subtract a number of calls from the budget."""
        self.for_task -= num
        self.for_all -= num

    @property
    def is_done(self) -> bool:
        """True if the calls of this task are used up. Raises OutOfTimeError if the time is used up."""
        if time.monotonic() > self.ends:
            raise OutOfTimeError("the search for plans took too long")
        return self.for_task <= 0


_plans: WeakKeyDictionary[Subject, tuple[list[Plan], bool]] = WeakKeyDictionary()
"""The plans of each subject, and whether tasks were left out for lack of time."""


async def make_plans(subject: Subject) -> list[Plan]:
    """Return a plan for each of some tasks, computed once. The list is empty if no field of the tasks contains a state
    that gets full marks. If there was no time for some tasks, the rule that calls this function is reported as cut
    short."""
    if subject not in _plans:
        _plans[subject] = await _make_all(subject)
    plans, is_cut = _plans[subject]
    if is_cut:
        subject.timing.cut_short()
    return plans


async def _make_all(subject: Subject) -> tuple[list[Plan], bool]:
    if subject.environment_class is None or subject.model_judges:
        return [], False
    made: list[Plan] = []
    habits: list[dict[str, str]] = []
    ways: list[str] = []
    num_tried = 0
    work, slow = _Work(), SLOW_SECONDS * load_of_machine()
    sample = {task.id: task for task in (*subject.sample, *subject.looked_at)}
    for task in list(sample.values())[:NUM_PLANNED]:
        is_hopeless = len(made) > NUM_LEARNT and not any(one.is_whole for one in made)
        if is_hopeless or work.for_all <= 0 or (num_tried > 3 * NUM_LEARNT and not ways):
            break
        num_tried += 1
        try:
            idle = (await _run(subject, task, ())).states[-1]
            wanted = None if idle is None else await find_wanted_state(subject, task, idle, ways)
            if wanted is not None:
                if subject.timing.episode_seconds > slow:
                    return made, True
                work.begin(LEARNING_CALLS if len(made) < NUM_LEARNT else TASK_CALLS)
                made.append(await _Search(subject, task, wanted, wanted.graded(idle), habits, work).plan())
                if canonical((await _run(subject, task, ())).states[-1]) != canonical(idle):
                    return [], False  # effects of one episode remain in the next one, which other rules report
        except OutOfTimeError:
            return made, True
        except UndecidedError:
            continue
    return made, False


@dataclass(frozen=True, slots=True)
class _End:
    states: tuple[Json, ...]
    steps: tuple[Step, ...]
    is_over: bool


async def _run(subject: Subject, task: Task, calls: Sequence[Call]) -> _End:
    """Make calls in a fresh environment, and return the final state. Raises the same errors as `Subject.opened`."""
    own = copy.deepcopy(task)
    steps: list[Step] = []
    async with subject.opened(own) as environment:
        await reset(environment, own)
        for call in calls:
            result = await execute(environment, call.tool, copy.deepcopy(dict(call.arguments)))
            raised = subject.watch.raised if result.error is ToolError.TOOL_RAISED else None
            steps.append(Step(call, result.content, is_refusal(result), subject.own_code.is_accident(raised)))
            if environment.is_done:
                break
        state = copy.deepcopy(await final_state(environment, task))
        return _End((state,), tuple(steps), bool(environment.is_done))


@dataclass(frozen=True, slots=True)
class _Candidate:
    value: Json
    source: str
    """The origin of the value, in words that mean the same in other tasks."""
    words: Place
    """The names of the keys above the value."""


@dataclass(frozen=True, slots=True)
class _Node:
    far: float
    steps: tuple[Step, ...]
    states: tuple[Json, ...]
    habits: tuple[dict[str, str], ...]
    is_over: bool = False


@final
@dataclass
class _Search:
    """The search for the plan of one task."""

    subject: Subject
    task: Task
    asked: WantedState
    idle: Json
    habits: list[dict[str, str]]
    """Calls in plans of other tasks: the tool, and the source of each argument."""
    work: _Work
    known: Known = field(default_factory=Known)

    @property
    def wanted(self) -> Json:
        """The state that the task requests."""
        return self.asked.state

    async def plan(self) -> Plan:
        """Return the best plan that a search finds within the budget, always continuing from the closest state."""
        for message in self.task.messages:
            self.known.add_text(get_text(message), "prompt")
        for tried in (await explore_task(self.subject, self.task)).tried:
            if tried.is_legal:
                self.known.add_legal(tried.call.arguments)
        openings = await self._openings()
        best = start = _Node(measure_distance(self.idle, self.wanted), (), (self.idle,), ())
        frontier, seen, numbers = [(best.far, 0, best)], {canonical(self.idle)}, itertools.count(1)
        refused: list[Step] = []
        effects: list[tuple[Step, Json, Json]] = []
        num_effects = Counter[str]()
        for _ in range(MOST_NODES):
            if not frontier or best.far == 0 or self.work.is_done:
                break
            _, _, node = heapq.heappop(frontier)
            if len(node.steps) >= MOST_CALLS:
                continue
            found: list[_Node] = []
            for opening in openings if node is start else [()]:
                async for child, call, sources in self._children(node, opening):
                    last, (state, after) = child.steps[-1], child.states[-2:]
                    is_idle = canonical(after) == canonical(state)
                    is_known = {"": call.tool, **sources} in self.habits
                    is_asked = all(map(_is_asked, sources.values()))
                    is_accident = last.is_accident and any(one[""] == call.tool for one in self.habits)
                    if is_idle and ((is_known and is_asked) or (is_accident and (is_known or is_asked))):
                        refused.append(last)
                    if not is_idle and (num_effects[call.tool] < MOST_EFFECTS or child.far <= node.far):
                        num_effects[call.tool] += 1
                        effects.append((last, state, after))
                    if child.far < node.far + DETOUR and canonical(child.states[-1]) not in seen:
                        seen.add(canonical(child.states[-1]))
                        found.append(child)
                        if child.far == 0 or (child.far < node.far and child.habits[-1] in self.habits):
                            break
                if any(one.far < node.far for one in found):
                    break
            for child in found:
                heapq.heappush(frontier, (child.far, next(numbers), child))
                best = min(best, child, key=lambda one: (one.far, len(one.steps)))
        self.habits += [one for one in best.habits if best.far == 0 and one not in self.habits]
        return Plan(
            task=self.task,
            wanted=self.wanted,
            states=best.states,
            steps=best.steps,
            refused=tuple(refused),
            effects=tuple(effects),
            ends=best.is_over,
        )

    async def _children(
        self, node: _Node, opening: Sequence[Call]
    ) -> AsyncIterator[tuple[_Node, Call, dict[str, str]]]:
        """Yield the nodes that are one more call away."""
        state, futile = node.states[-1], Counter[str]()
        before = [*(one.call for one in node.steps), *opening]
        if opening:
            state = self.asked.graded((await _run(self.subject, self.task, before)).states[-1])
        for call, sources in self._calls(state, futile):
            if self.work.is_done:
                return
            self.work.count(len(before) + 2)
            end = await _run(self.subject, self.task, [*before, call])
            if len(end.steps) <= len(before):
                continue
            after = self.asked.graded(end.states[-1])
            futile[call.tool] += canonical(after) == canonical(state)
            opened = (*node.states, *(state for _ in opening), after)
            habits = (*node.habits, {"": call.tool, **sources})
            yield _Node(measure_distance(after, self.wanted), end.steps, opened, habits, end.is_over), call, sources

    async def _openings(self) -> list[tuple[Call, ...]]:
        """Return possible first calls: none, and the calls that some tools need before they work."""
        found = await explore_task(self.subject, self.task)
        needed = [one.before for name in self.subject.tools for one in found.legal(name)[:1] if one.before]
        return [(), *dict.fromkeys(needed)][:3] if all(map(_is_hashable, needed)) else [(), *needed[:2]]

    def _calls(self, state: Json, futile: Mapping[str, int]) -> Iterator[tuple[Call, dict[str, str]]]:
        """Yield calls to try next. Calls that resemble earlier successful calls come first."""
        pools = {tool: self._pools(tool, state) for tool in self.subject.tools}
        tried: set[str] = set()
        for habit in self.habits:
            tool = habit[""]
            chosen = {
                name: next((one for one in pools[tool].get(name, ()) if one.source == source), None)
                for name, source in habit.items()
                if name
            }
            if all(one is not None for one in chosen.values()):
                call = Call(tool, {name: one.value for name, one in chosen.items() if one is not None})
                if str(call) not in tried and self.subject.problem_with(tool, call.arguments) is None:
                    tried.add(str(call))
                    yield call, {name: one.source for name, one in chosen.items() if one is not None}
        for tool in self.subject.tools:
            required = [name for name in pools[tool] if name in self.subject.tools[tool].required]
            if not all(pools[tool][name] for name in required):
                continue
            num = 0
            for chosen in _combine([pools[tool][name] for name in required]):
                call = Call(tool, {name: one.value for name, one in zip(required, chosen, strict=True)})
                if num >= MOST_TRIED or futile.get(tool, 0) >= NUM_FUTILE:
                    break
                if str(call) in tried or self.subject.problem_with(tool, call.arguments) is not None:
                    continue
                tried.add(str(call))
                num += 1
                yield call, {name: one.source for name, one in zip(required, chosen, strict=True)}

    def _pools(self, tool: str, state: Json) -> dict[str, list[_Candidate]]:
        """Return values for each argument of a tool: first from the parts of the state that must change, then from the
        prompt and the schema."""
        properties = self.subject.tools[tool].schema["function"].get("parameters", {}).get("properties", {})
        differing = list(_find_differing(state, self.wanted))
        return {name: self._ranked(tool, name, schema, differing) for name, schema in properties.items()}

    def _ranked(
        self, tool: str, name: str, schema: Mapping[str, Json], differing: Sequence[_Candidate]
    ) -> list[_Candidate]:
        asked = set(split_words(name))
        near = {canonical(one.value) for one in differing}
        nearby = list(_find_nearby(self.task.fields, near, "field"))
        known = [
            _Candidate(one.value, f"known {one.source}", one.words) for one in self.known.ranked(tool, name, schema, ())
        ]
        own = [_Candidate(value, f"schema {number}", ()) for number, value in enumerate(list_schema_values(schema))]
        rated: list[tuple[float, int, _Candidate]] = []
        for index, one in enumerate((*differing, *nearby, *known, *own)):
            fitted = fit_to_schema(one.value, schema)
            if fitted is not None:
                named = {word for part in one.words for word in split_words(part)}
                rank = index / 4 - 3 * len(asked & named) + 3 * (type(fitted) is not type(one.value))
                rated.append((rank, index, replace(one, value=fitted)))
        unique: dict[str, _Candidate] = {}
        for _, _, one in sorted(rated, key=lambda one: one[:2]):
            unique.setdefault(canonical(one.value), one)
        return list(unique.values())[:MOST_VALUES]


def _is_asked(source: str) -> bool:
    """Return True if a value comes from a part of the state that must change or from a name in the prompt, and is not a
    guess."""
    is_named = source.startswith("known prompt:") and not source.endswith(":")
    return is_named or source.startswith(("wanted", "there", "key", "difference"))


def _is_hashable(calls: Sequence[Call]) -> bool:
    try:
        hash(tuple(calls))
    except TypeError:
        return False
    return True


def _combine(pools: Sequence[Sequence[_Candidate]]) -> Iterator[tuple[_Candidate, ...]]:
    """Yield combinations of one value from each pool, the most likely first. Combinations of different values come
    before combinations with equal values."""
    return iter(sorted(combine_likeliest(pools), key=lambda one: len({canonical(c.value) for c in one}) < len(one)))


def _find_differing(state: Json, wanted: Json, place: Place = ()) -> Iterator[_Candidate]:
    """Yield the parts that must change: the required values, the current values, and the keys above them."""
    if isinstance(state, Mapping) and isinstance(wanted, Mapping):
        for key in [*wanted, *(key for key in state if key not in wanted)]:
            if (key in state) != (key in wanted) or canonical(state.get(key)) != canonical(wanted.get(key)):
                yield from _find_differing(state.get(key), wanted.get(key), (*place, str(key)))
        return
    if isinstance(state, list | tuple) and isinstance(wanted, list | tuple):
        before, after = Counter(map(canonical, state)), Counter(map(canonical, wanted))
        yield from _leaves([one for one in wanted if canonical(one) in after - before], "wanted", place[-1:])
        yield from _leaves([one for one in state if canonical(one) in before - after], "there", place[-1:])
    else:
        yield from _leaves(wanted, "wanted", place[-1:])
        yield from _leaves(state, "there", place[-1:])
        if _is_number(state) and _is_number(wanted):
            yield _Candidate(abs(round(wanted - state, 6)), "difference", ())
    for depth, key in enumerate(place):
        yield _Candidate(key, f"key {depth}", place[:depth])


def _leaves(value: Json, source: str, words: Place) -> Iterator[_Candidate]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{source} {key}", (*words, str(key)))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{source} {number}", words)
        if value and not any(isinstance(one, Mapping | list | tuple) for one in value):
            yield _Candidate(list(value), source, words)
    elif value is not None:
        yield _Candidate(value, source, words)


def _find_nearby(value: Json, near: set[str], source: str) -> Iterator[_Candidate]:
    """Yield the other values of objects that contain one of the values in `near`, and the keys of these objects."""
    if isinstance(value, Mapping):
        scalars = {key: item for key, item in value.items() if not isinstance(item, Mapping | list | tuple)}
        if any(canonical(one) in near or canonical(str(one)) in near for one in (*scalars.values(), *scalars)):
            for number, (key, item) in enumerate(scalars.items()):
                yield _Candidate(item, f"{source} {number}", (str(key),))
                if canonical(item) in near:
                    yield _Candidate(str(key), f"{source} key", ())
        for key, item in value.items():
            if isinstance(item, Mapping) and any(canonical(one) in near for one in item.values() if one is not None):
                yield _Candidate(str(key), f"{source} key", ())
            yield from _find_nearby(item, near, source)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_nearby(item, near, source)
