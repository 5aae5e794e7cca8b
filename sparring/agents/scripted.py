"""Policies that need no model, and the session through which the real tool loop asks them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from sparring.errors import UsageError
from sparring.plugins import call
from sparring.types import Message, Outcome, Sampling, StopReason, Task, ToolSchema, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a scripted policy is asked: its next message."""

    task: Task
    """Ground truth included: experts and cheats read it."""
    messages: Sequence[Message]
    tools: Sequence[ToolSchema]
    """All of the environment, also those that only the prompt describes."""
    turn: int
    """From 0."""


def scripted_turn(index: int, message: Message, fingerprint: str, num_tokens: int | None = None) -> Turn:
    """A turn that no model sampled. It has a token for each byte of its message, so that rewards priced by tokens see them."""
    written = [message.get("content") or "", message.get("tool_calls") or ""]
    count = sum(len(str(one).encode()) for one in written) if num_tokens is None else num_tokens
    return Turn(
        id=index, parent=index - 1 if index else None, branch_reason=None, prompt_ids=(), token_ids=(0,) * count,
        sampled_logprobs=(0.0,) * count, versions=((0, count),), fingerprint=fingerprint, stop_reason=StopReason.STOP,
        sampling=Sampling(), message=message, num_computed_tokens=0, seconds=0.0,
    )  # fmt: skip


def as_trajectory(task: Task, *messages: Message) -> Trajectory:
    """An episode in which the assistant said just this, without any world."""
    return Trajectory(
        id=f"written/{task.id}", task=task, attempt=0,
        turns=tuple(scripted_turn(index, message, "written") for index, message in enumerate(messages)),
        messages=(*task.messages, *messages), outcome=Outcome.FINISHED, reward=None, score=None,
    )  # fmt: skip


Act: TypeAlias = Callable[[Asked], Message | Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """Who plays instead of a model. Its name tells episodes apart: `Subject.play` plays each name once a task."""

    name: str
    act: Act = field(compare=False)
    script: Sequence[Message] | None = field(default=None, compare=False)
    """What it says, where that is known beforehand."""


def saying(name: str, script: Sequence[Message]) -> ScriptedPolicy:
    """The policy that says these messages in order, and nothing more after them."""
    silence: Message = {"role": "assistant", "content": ""}
    return ScriptedPolicy(name, lambda asked: script[asked.turn] if asked.turn < len(script) else silence, script)


@final
class PolicySession:
    """Implements `protocols.SessionLike` with a scripted policy. Further policies of the episode have nothing to say."""

    def __init__(
        self, policy: ScriptedPolicy, task: Task, tools: Sequence[ToolSchema], others: Collection[str] = ()
    ) -> None:
        self.turns: tuple[Turn, ...] = ()
        self._policy, self._task, self._tools = policy, task, tools
        self._others = others

    @property
    def id(self) -> str:
        return f"{self._policy.name}/{self._task.id}"

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        return self.turns

    @property
    def seconds_left(self) -> float | None:
        return None

    def of(self, name: str) -> PolicySession:
        """Raises UsageError for a policy that the recipe does not name."""
        if name not in self._others:
            raise UsageError(f"the recipe names no policy {name!r}; add [policies.{name}].")
        silent = ScriptedPolicy(name, lambda *_: {"role": "assistant", "content": "I have nothing to add."})
        return PolicySession(silent, self._task, ())

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        # Episodes that are played side by side take turns.
        await asyncio.sleep(0)
        asked = Asked(task=self._task, messages=messages, tools=self._tools, turn=len(self.turns))
        message = copy.deepcopy(dict(await call(self._policy.act, asked)))
        calls = message.get("tool_calls") or ()
        if calls:
            # Ids as sessions give them.
            named = [{**one, "id": f"call_{len(self.turns)}_{index}"} for index, one in enumerate(calls)]
            message["tool_calls"] = named
        self.turns += (scripted_turn(len(self.turns), message, f"scripted:{self._policy.name}"),)
        return message
