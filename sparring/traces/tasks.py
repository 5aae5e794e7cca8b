"""Choose the good conversations of a log, and make tasks of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparring.data import split_apart
from sparring.traces.conversation import Conversation, prefix_digests
from sparring.traces.tools import LoggedTool
from sparring.types import Json, Task

FRACTIONS = {"held_out": 0.2, "validation": 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTask:
    """A task, the conversation whose answers count as right, and the other conversations with the same opening."""

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
    num_contradicted: int
    """The number of tasks whose good conversations have different answers."""

    @property
    def tasks(self) -> list[LoggedTask]:
        return [one for members in self.splits.values() for one in members]


def select_tasks(conversations: Sequence[Conversation], tools: Mapping[str, LoggedTool], *, seed: int) -> Selection:
    """Make one task of all conversations with the same opening, if one of them is good. If no conversation is marked, all
    count as good."""
    has_marks = any(one.is_good is not None for one in conversations)
    by_opening: dict[bytes, list[Conversation]] = defaultdict(list)
    for one in conversations:
        *_, digest = prefix_digests(one.opening)
        by_opening[digest].append(one)
    left_out = Counter[str]()
    tasks: list[LoggedTask] = []
    num_contradicted = 0
    for members in by_opening.values():
        good = [one for one in members if one.is_good or not has_marks]
        unmarked = [one for one in members if has_marks and one.is_good is None]
        left_out["it is marked as bad"] += sum(one.is_good is False for one in members)
        if not good:
            left_out["it is not marked, and no good conversation has the same opening"] += len(unmarked)
            continue
        num_contradicted += len({one.answers for one in good}) > 1
        task = _task(good[0], f"task-{len(tasks) + 1:04}", tools)
        tasks.append(LoggedTask(task=task, example=good[0], good=tuple(good), unmarked=tuple(unmarked)))
    by_id = {one.task.id: one for one in tasks}
    entities = {one.task.id: _entities(one.example) for one in tasks}
    splits, shared = split_apart([one.task for one in tasks], entities, FRACTIONS, seed=seed)
    return Selection(
        splits={name: [by_id[task.id] for task in members] for name, members in splits.items()},
        left_out={reason: count for reason, count in left_out.items() if count},
        has_marks=has_marks,
        shared_entities=shared,
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


def _entities(conversation: Conversation) -> frozenset[str]:
    """Return the texts and whole numbers in the arguments of calls, with the argument's name. They identify what the
    conversation is about."""
    found = set()
    for call in conversation.calls:
        for name, value in call.arguments.items():
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, str | int) and not isinstance(one, bool) and str(one).strip():
                    found.add(f"{name}={one}".strip().lower())
    return frozenset(found)
