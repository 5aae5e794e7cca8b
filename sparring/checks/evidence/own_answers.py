"""How the reward of an own agent grades final answers: empty ones, those of the task's fields, and changed ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparring.checks.evidence.own_agent import OwnEpisode, get_own_agent
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.wire_policies import make_answerer
from sparring.types import Json, Task

UNSURE = "I do not know."
_MOST_FIELDS = 6
_MOST_LABELS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The rewards that final answers to one task get, if they are given at once."""

    task: Task
    episodes: Mapping[str, OwnEpisode] = field(default_factory=dict)
    """The episodes by what the answer is: `nothing`, `unsure`, and the answers made from the task's fields."""
    right: str | None = None
    """The text of the answer that gets a higher reward than every answer without content, or None."""
    field_name: str | None = None
    """The task's field that holds the right answer."""

    def reward(self, kind: str) -> float | None:
        """Return the reward of an answer, or None if it was not played or not rewarded."""
        return self.episodes[kind].reward if kind in self.episodes else None


async def find_answers(subject: Subject, task: Task) -> Answers:
    """Return the rewards of answers to a task, which are computed once for all rules. Raises OutOfTimeError."""
    known: dict[str, Answers] = subject.shared.setdefault("own answers", {})
    if task.id not in known:
        known[task.id] = await _find(subject, task)
    return known[task.id]


async def _find(subject: Subject, task: Task) -> Answers:
    agent = get_own_agent(subject)
    episodes: dict[str, OwnEpisode] = {}

    async def play(kind: str, text: str) -> float | None:
        episodes[kind] = await agent.play(task, make_answerer(text, name=f"answers at once: {kind}"))
        return episodes[kind].reward

    empty = [await play("nothing", ""), await play("unsure", UNSURE)]
    baseline = max((one for one in empty if one is not None), default=None)
    right, name = None, None
    best = baseline
    for key, value in _fields(task)[:_MOST_FIELDS]:
        text = value if isinstance(value, str) else json.dumps(value)
        reward = await play(f"the field {key}", text)
        if reward is not None and best is not None and reward > best:
            best, right, name = reward, text, key
    if right is not None and name is not None:
        labels = dict.fromkeys(str(other.fields[name]) for other in subject.looked_at if name in other.fields)
        others = [label for label in labels if label != right]
        await play("white space around it", f"  {right}\n")
        await play("a sentence", f"The answer is {right}.")
        await play("its negation", f"It is not {right}.")
        if others:
            await play("the answer of another task", others[0])
            await play("every answer", " ".join([*others[: _MOST_LABELS - 1], right]))
    return Answers(task=task, episodes=episodes, right=right, field_name=name)


def _fields(task: Task) -> list[tuple[str, Json]]:
    """Return the fields whose value may be an answer, those with a telling name first."""
    usual = ("answer", "label", "target", "expected", "solution", "truth", "reference", "output", "result")
    given = [(key, value) for key, value in task.fields.items() if isinstance(value, str | int | float) and value != ""]
    return sorted(given, key=lambda pair: not any(name in pair[0].lower() for name in usual))
