"""A breadth-first search for the fewest calls that get full marks. It applies if there are only a few possible calls.

If the search visited every reachable state and no state gets full marks, the task cannot be solved.
"""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from sparring.agents.scripted import as_trajectory
from sparring.checks.evidence.explore import Call, explore_task
from sparring.checks.evidence.grading_inputs import is_paid
from sparring.checks.evidence.legal_calls import leaves
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.writing_tools import find_writing_tools
from sparring.checks.running.time_budget import Deadline, OutOfTimeError, UndecidedError
from sparring.environments import Environment, answer, execute, tool_call
from sparring.environments.base import final_state, reset
from sparring.types import Json, Message, Task

MOST_CALLS = 40
"""The maximum number of calls in a walk."""
MOST_MOVES = 12
"""The maximum number of different calls at each step, if schemas list the values of all arguments."""
MOST_NAMED = 40
"""The same limit, if texts of the task are also tried."""
MOST_STATES = 4000
SECONDS = 0.9
"""The time limit for one task, in seconds of CPU time."""
NUM_COMPARED = 6
"""The number of states for which all calls are repeated in a fresh environment, to compare the result."""
_LONGEST_NAME = 30


@dataclass(frozen=True, slots=True)
class WalkResult:
    """The result of the search in one task."""

    task: Task
    calls: tuple[Call, ...] | None
    """The fewest calls that get full marks, or None if no calls do."""
    ends: bool
    """True if these calls end the episode."""
    is_all: bool
    """True if every reachable state was seen."""
    num_states: int


@dataclass(frozen=True, slots=True)
class _Node:
    kept: bytes
    """The attributes of the environment, pickled for restoring them."""
    key: bytes
    """The same attributes, pickled for comparing them."""
    calls: tuple[Call, ...]
    transitions: tuple[Mapping[str, Json], ...]


async def walk_states(subject: Subject, task: Task) -> WalkResult | None:
    """Return the result of the search in a task, which is computed once. Return None if there are too many different
    calls, or if the attributes of an environment cannot be compared."""
    known: dict[str, WalkResult | None] = subject.shared.setdefault("walked", {})
    if task.id not in known:
        moves = await list_moves(subject, task, most=MOST_NAMED, is_named=True)
        try:
            known[task.id] = await _Walk(subject, task, moves).walk() if moves else None
        except OutOfTimeError:
            raise
        except UndecidedError:
            known[task.id] = None  # state elsewhere, for example in files, is not restored
    return known[task.id]


async def list_moves(subject: Subject, task: Task, *, most: int = MOST_MOVES, is_named: bool = False) -> list[Call]:
    """Return all different calls if the arguments of every tool are chosen from a few values, and otherwise an empty
    list. With `is_named`, return all calls that may change something. For tools with one text argument, these include
    calls with texts from the task's fields."""
    moves: list[Call] = []
    names = _list_names(task) if is_named else []
    for name, tool in subject.tools.items():
        properties = tool.schema["function"].get("parameters", {}).get("properties", {})
        required = [one for one in properties if one in tool.required]
        pools = [_list_values(properties[one]) for one in required]
        if all(pools):
            moves += [Call(name, dict(zip(required, chosen, strict=True))) for chosen in itertools.product(*pools)]
        elif is_named and len(required) == 1 and properties[required[0]].get("type") == "string":
            moves += [Call(name, {required[0]: value}) for value in names]
        elif is_named and name not in await find_writing_tools(subject):
            continue
        elif is_named or not (await explore_task(subject, task)).legal(name):
            return []
        else:
            moves += [one.call for one in (await explore_task(subject, task)).legal(name)]
        if len(moves) > most:
            return []
    return list({str(one): one for one in moves}.values())


def _list_values(part: Mapping[str, Any]) -> Sequence[Json]:
    """Return all values that a schema lists."""
    return [True, False] if part.get("type") == "boolean" else part.get("enum", ())


def _list_names(task: Task) -> list[str]:
    """Return short strings and keys in the task's fields."""
    found = dict.fromkeys(text for key, value in leaves(task.fields) for text in (value, key) if isinstance(text, str))
    return [text for text in found if 0 < len(text) <= _LONGEST_NAME and text not in task.fields]


@final
class _Walk:
    """The search in one task. It restores the attributes of an environment instead of repeating all calls."""

    def __init__(self, subject: Subject, task: Task, moves: Sequence[Call]) -> None:
        self._subject, self._task, self._moves = subject, task, moves
        self._ends = Deadline(SECONDS)
        self._num_compared = 0

    async def walk(self) -> WalkResult | None:
        """Run the search. Return None if the environment cannot be restored."""
        own = copy.deepcopy(self._task)
        async with self._subject.opened(own) as environment:
            await reset(environment, own)
            first = _save_attributes(environment)
            if first is None:
                return None
            seen, frontier = {first[1]}, [_Node(*first, (), ())]
            for _ in range(MOST_CALLS):
                found: list[_Node] = []
                for node, move in itertools.product(frontier, self._moves):
                    if self._ends.is_over or len(seen) > MOST_STATES:
                        return self._came_to(None, seen)
                    child, state, is_over = await self._after(environment, node, move)
                    if child is None or not await self._is_faithful(child):
                        return None
                    if child.key in seen:
                        continue
                    seen.add(child.key)
                    if await self._pays(child, state, is_over=is_over):
                        return self._came_to(child, seen, ends=is_over)
                    if not is_over:
                        found.append(child)
                if not found:
                    return self._came_to(None, seen, is_all=len(seen) > 1)
                frontier = found
            return self._came_to(None, seen)

    def _came_to(self, node: _Node | None, seen: set[bytes], *, ends: bool = False, is_all: bool = False) -> WalkResult:
        return WalkResult(self._task, None if node is None else node.calls, ends, is_all, len(seen))

    async def _after(self, environment: Environment, node: _Node, move: Call) -> tuple[_Node | None, Json, bool]:
        """Return the node after a call, the final state at that node, and whether the episode is over. The node is None
        if the attributes cannot be stored."""
        _restore_attributes(environment, node.kept)
        result = await execute(environment, move.tool, dict(move.arguments))
        is_over = bool(environment.is_done)
        state = await final_state(environment, self._task)
        kept = _save_attributes(environment)
        if kept is None:
            return None, None, False
        turn = {"turn": len(node.calls), **result.transition}
        return _Node(*kept, (*node.calls, move), (*node.transitions, turn)), state, is_over

    async def _is_faithful(self, node: _Node) -> bool:
        """Return True if the same calls in a fresh environment give the same attributes and results. Only a few nodes
        are compared."""
        if len(node.calls) < 2 or self._num_compared >= NUM_COMPARED:
            return True
        self._num_compared += 1
        own = copy.deepcopy(self._task)
        async with self._subject.opened(own) as environment:
            await reset(environment, own)
            results = [(await execute(environment, one.tool, dict(one.arguments))).content for one in node.calls]
            kept = _save_attributes(environment)
            return kept is not None and kept[1] == node.key and results == [one["result"] for one in node.transitions]

    async def _pays(self, node: _Node, state: Json, *, is_over: bool) -> bool:
        exchanged = list(itertools.chain.from_iterable(map(_write_messages, node.transitions)))
        last = () if is_over else (answer("Done."),)
        written = as_trajectory(self._task, *exchanged[::2], *last)
        episode = replace(
            written, messages=(*self._task.messages, *exchanged, *last), transitions=node.transitions, final_state=state
        )
        return await is_paid(self._subject, episode)


def _write_messages(transition: Mapping[str, Json]) -> Iterator[Message]:
    """Yield the message with a call, and the message with its result."""
    call = tool_call(transition["tool"], **transition["arguments"])
    yield call
    yield {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": transition["result"]}


def _save_attributes(environment: Environment) -> tuple[bytes, bytes] | None:
    """Return two forms of an environment's attributes, one to restore and one to compare, or None if they cannot be
    pickled."""
    own = {name: value for name, value in sorted(vars(environment).items()) if not callable(value)}
    written = io.BytesIO()
    pickler = pickle.Pickler(written)
    pickler.fast = True  # without references, so that equal values are pickled to equal bytes
    try:
        pickler.dump(_sort_sets(own))
        return pickle.dumps(own), written.getvalue()
    except Exception:  # noqa: BLE001 - the user's own objects may raise anything
        return None


def _sort_sets(value: Any) -> Any:
    """Return a value with all sets converted to sorted lists."""
    if type(value) is dict:
        return {key: _sort_sets(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_sort_sets(one) for one in value]
    return ["set", *sorted(value, key=repr)] if isinstance(value, set | frozenset) else value


def _restore_attributes(environment: Environment, kept: bytes) -> None:
    own = vars(environment)
    for name in [name for name, value in own.items() if not callable(value)]:
        del own[name]
    own.update(pickle.loads(kept))
