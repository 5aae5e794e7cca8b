"""Choose the good conversations of a log, and make tasks of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparring.data import split_apart
from sparring.errors import UsageError
from sparring.traces.conversation import Conversation, prefix_digests
from sparring.traces.tools import LoggedTool
from sparring.types import Json, Task

FRACTIONS = {"held_out": 0.2, "validation": 0.1}
TASKS_PER_VALUE = 10
"""The values of an argument with so many tasks per value, on average, are a closed set such as a plan or a reason. They do
not identify what a task is about, and a policy needs all of them in training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTask:
    """A task, the conversation whose answers count as right, and the other conversations in which the user writes the
    same."""

    task: Task
    example: Conversation
    good: tuple[Conversation, ...]
    """The good conversations, with the example."""
    unmarked: tuple[Conversation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The tasks of a log by split, and what was decided about them."""

    splits: Mapping[str, Sequence[LoggedTask]]
    left_out: Mapping[str, int]
    has_marks: bool
    shared_entities: frozenset[str]
    closed_arguments: tuple[str, ...]
    """The arguments whose values may be in several splits, because they have few values or the user did not name them."""
    num_contradicted: int
    """The number of tasks whose good conversations have different answers."""

    @property
    def tasks(self) -> list[LoggedTask]:
        return [one for members in self.splits.values() for one in members]


def select_tasks(
    conversations: Sequence[Conversation], tools: Mapping[str, LoggedTool], *, apart: Sequence[str] = (), seed: int
) -> Selection:
    """Make one task of all conversations in which the user writes the same, if one of them is good. If no conversation is
    marked, all count as good.

    Splits share no value of the arguments in `apart`, by default of all arguments that identify what a task is about.
    Raises UsageError if no call has an argument in `apart`.
    """
    has_marks = any(one.is_good is not None for one in conversations)
    by_request: dict[bytes, list[Conversation]] = defaultdict(list)
    for one in conversations:
        by_request[_request(one)].append(one)
    left_out = Counter[str]()
    tasks: list[LoggedTask] = []
    num_contradicted = 0
    for members in by_request.values():
        good = [one for one in members if one.is_good or not has_marks]
        unmarked = [one for one in members if has_marks and one.is_good is None]
        left_out["it is marked as bad"] += sum(one.is_good is False for one in members)
        if not good:
            left_out["it is not marked, and the user writes the same in no good conversation"] += len(unmarked)
            continue
        num_contradicted += len({one.answers for one in good}) > 1
        task = _task(good[0], f"task-{len(tasks) + 1:04}", tools)
        tasks.append(LoggedTask(task=task, example=good[0], good=tuple(good), unmarked=tuple(unmarked)))
    by_id = {one.task.id: one for one in tasks}
    entities, closed = _entities(tasks, apart)
    splits, shared = split_apart([one.task for one in tasks], entities, FRACTIONS, seed=seed)
    return Selection(
        splits={name: [by_id[task.id] for task in members] for name, members in splits.items()},
        left_out={reason: count for reason, count in left_out.items() if count},
        has_marks=has_marks,
        shared_entities=shared,
        closed_arguments=closed,
        num_contradicted=num_contradicted,
    )


def writes_of(conversation: Conversation, tools: Mapping[str, LoggedTool]) -> list[dict[str, Json]]:
    """Return the calls of tools that write, in order."""
    return [
        {"tool": call.tool, "arguments": dict(call.arguments)} for call in conversation.calls if tools[call.tool].writes
    ]


def _task(example: Conversation, id: str, tools: Mapping[str, LoggedTool]) -> Task:
    opening = example.opening
    fields = {
        "answers": list(example.answers),
        "writes": writes_of(example, tools),
        "log": list(example.messages[len(opening) :]),
    }
    return Task(id=id, messages=opening, fields=fields)


def _request(conversation: Conversation) -> bytes:
    """Return a digest of the opening and of the user's later messages, which are sent whatever the policy answers."""
    later = [{"role": "user", "content": text} for text in conversation.replies]
    *_, digest = prefix_digests([*conversation.opening, *later])
    return digest


def _entities(tasks: Sequence[LoggedTask], apart: Sequence[str]) -> tuple[dict[str, frozenset[str]], tuple[str, ...]]:
    """Return what identifies each task, by its id, and the arguments that do not identify a task.

    A task without a value that identifies it is identified by its opening.
    """
    values = {one.task.id: _values(one.example) for one in tasks}
    num_tasks = Counter(name for found in values.values() for name in {name for name, _ in found})
    num_values = Counter(name for name, _ in frozenset[tuple[str, str]]().union(*values.values()))
    for name in apart:
        if name not in num_values:
            known = ", ".join(sorted(num_values)) or "none"
            raise UsageError(
                f"no call of the good conversations has an argument {name!r}; their arguments are {known}."
            )
    closed = {
        name
        for name, num in num_values.items()
        if (name not in apart if apart else num * TASKS_PER_VALUE <= num_tasks[name])
    }
    entities = {}
    for one in tasks:
        found = frozenset(f"{name}={value}" for name, value in values[one.task.id] if name not in closed)
        *_, opening = prefix_digests(one.example.opening)
        entities[one.task.id] = found or frozenset({f"opening {opening.hex()[:16]}"})
    return entities, tuple(sorted(closed))


def _values(conversation: Conversation) -> frozenset[tuple[str, str]]:
    """Return the texts and whole numbers in the arguments of calls, each with the argument's name."""
    found = set()
    for call in conversation.calls:
        for name, value in call.arguments.items():
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, str | int) and not isinstance(one, bool) and str(one).strip():
                    found.add((name, str(one).strip().lower()))
    return frozenset(found)
