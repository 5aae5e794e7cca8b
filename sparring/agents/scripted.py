"""Scripted policies, which need no model, and the session through which the built-in tool loop uses them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from sparring.errors import UsageError
from sparring.runtime.plugins import call
from sparring.types import Message, Outcome, Sampling, StopReason, Task, ToolSchema, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to a scripted policy for its next message."""

    task: Task
    """The task with its ground truth, which scripted experts and cheats read."""
    messages: Sequence[Message]
    tools: Sequence[ToolSchema]
    """All tools of the environment, including those that only the prompt describes."""
    turn: int
    """The index of the turn, from 0."""


def scripted_turn(index: int, message: Message, fingerprint: str, num_tokens: int | None = None) -> Turn:
    """Return a turn that no model sampled. By default, it has one token per byte of its message, so that rewards with a
    token cost can be computed."""
    written = [message.get("content") or "", message.get("tool_calls") or ""]
    count = sum(len(str(one).encode()) for one in written) if num_tokens is None else num_tokens
    return Turn(
        id=index, parent=index - 1 if index else None, branch_reason=None, prompt_ids=(), token_ids=(0,) * count,
        sampled_logprobs=(0.0,) * count, versions=((0, count),), fingerprint=fingerprint, stop_reason=StopReason.STOP,
        sampling=Sampling(), message=message, num_computed_tokens=0, seconds=0.0,
    )  # fmt: skip


def as_trajectory(task: Task, *messages: Message) -> Trajectory:
    """Return an episode that consists of these assistant messages, without an environment."""
    return Trajectory(
        id=f"written/{task.id}",
        task=task,
        attempt=0,
        turns=tuple(scripted_turn(index, message, "written") for index, message in enumerate(messages)),
        messages=(*task.messages, *messages),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
    )


Act: TypeAlias = Callable[[Asked], Message | Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """A policy that replaces a model. Its name identifies its episodes: `Subject.play` runs the policy of each name
    only once per task."""

    name: str
    act: Act = field(compare=False)
    script: Sequence[Message] | None = field(default=None, compare=False)
    """The policy's messages, or None if they are not known in advance."""


def saying(name: str, script: Sequence[Message]) -> ScriptedPolicy:
    """Return the policy that answers with these messages in order, and with empty messages after them."""
    silence: Message = {"role": "assistant", "content": ""}
    return ScriptedPolicy(name, lambda asked: script[asked.turn] if asked.turn < len(script) else silence, script)


@final
class PolicySession:
    """A session with a scripted policy. Other policies of the episode answer with a fixed text."""

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
        """Return the session of another policy. Raises UsageError for a policy that the recipe does not name."""
        if name not in self._others:
            raise UsageError(f"the recipe does not name the policy {name!r}; add [policies.{name}].")
        silent = ScriptedPolicy(name, lambda *_: {"role": "assistant", "content": "I have nothing to add."})
        return PolicySession(silent, self._task, ())

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        # Lets concurrent episodes take turns.
        await asyncio.sleep(0)
        asked = Asked(task=self._task, messages=messages, tools=self._tools, turn=len(self.turns))
        message = copy.deepcopy(dict(await call(self._policy.act, asked)))
        calls = message.get("tool_calls") or ()
        if calls:
            # These are the ids that real sessions would assign.
            named = [{**one, "id": f"call_{len(self.turns)}_{index}"} for index, one in enumerate(calls)]
            message["tool_calls"] = named
        self.turns += (scripted_turn(len(self.turns), message, f"scripted:{self._policy.name}"),)
        return message
