"""The built-in agent: it offers the tools, runs the policy's calls, and stops when the policy answers without a call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from sparring.agents.result import LIMITS, AgentResult, overtime
from sparring.environments.base import Environment, available_schemas, final_state, read_property, reply, reset
from sparring.environments.calls import ToolError, execute
from sparring.protocols import SessionLike
from sparring.types import Json, Message, Outcome, StopReason, Task

_MALFORMED: Mapping[str, str] = {
    "not_closed": "it is not closed",
    "not_json": "it is not valid JSON",
    "no_name": "it names no tool",
    "arguments_not_object": "its arguments are not a JSON object",
}

_TOO_LATE = "error: not run, since the time of the episode is over"
_STOPPED = "error: stopped, since the time of the episode is over"


async def play(task: Task, environment: Environment, session: SessionLike, *, max_turns: int) -> AgentResult:
    """Run one episode; the caller closes the environment (see `environments.opened`).

    An answer without tool calls ends the episode, unless the environment replies to it as the user. Invalid calls are
    counted, and the policy gets an error message for each. InfrastructureError is raised unchanged.
    """
    # The other half of the overtime is left for the final state and for closing the environment.
    patience = 0.0 if session.seconds_left is None else overtime(session.seconds_left) / 2
    messages = await reset(environment, task)
    transitions: list[Mapping[str, Json]] = []
    counts: Counter[str] = Counter({"turns": 0, "tool_calls": 0, "tool_errors": 0, "malformed_tool_calls": 0})
    counts.update({f"tool_errors/{kind.value}": 0 for kind in ToolError})

    async def ended(outcome: Outcome, error: str | None = None) -> AgentResult:
        return AgentResult(
            outcome=outcome,
            messages=tuple(messages),
            metrics={name: float(count) for name, count in counts.items()},
            transitions=tuple(transitions),
            final_state=await final_state(environment, task),
            error=error,
        )

    for turn in range(max_turns):
        try:
            message = await session.chat(messages, available_schemas(environment))
        except tuple(LIMITS) as error:
            return await ended(LIMITS[type(error)], str(error))
        counts["turns"] += 1
        messages.append(message)
        calls, malformed = message.get("tool_calls") or (), message.get("malformed_tool_calls") or ()
        if not calls and session.turns[-1].stop_reason is StopReason.LENGTH:
            return await ended(Outcome.MAX_TOKENS)
        if not calls and not malformed:
            try:
                text = await reply(environment, messages, session, task)
            except tuple(LIMITS) as error:
                return await ended(LIMITS[type(error)], str(error))
            if text is None:
                return await ended(Outcome.FINISHED)
            messages.append({"role": "user", "content": text})
            continue
        messages.extend(await _answered(calls, environment, session, transitions, counts, turn=turn, patience=patience))
        messages.extend(_complained(malformed))
        counts["malformed_tool_calls"] += len(malformed)
        if read_property(environment, "is_done"):
            return await ended(Outcome.FINISHED)
    return await ended(Outcome.MAX_TURNS)


async def _answered(
    calls: Sequence[Json],
    environment: Environment,
    session: SessionLike,
    transitions: list[Mapping[str, Json]],
    counts: Counter[str],
    *,
    turn: int,
    patience: float,
) -> list[Message]:
    """Run the calls of one message in order, and return their tool messages. After the episode's time limit, no call
    starts, and a running call gets `patience` more seconds. Otherwise, a policy could make so many calls, or such slow
    calls, that the episode would seem to hang."""
    answers: list[Message] = []
    for call in calls:
        left = session.seconds_left
        if left is not None and left <= 0:
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": _TOO_LATE})
            continue
        function = call["function"]
        try:
            async with asyncio.timeout(None if left is None else left + patience):
                result = await execute(environment, function["name"], function["arguments"])
        except TimeoutError:
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": _STOPPED})
            continue
        transitions.append({"turn": turn, **result.transition})
        counts["tool_calls"] += 1
        if result.error is not None:
            counts["tool_errors"] += 1
            counts[f"tool_errors/{result.error.value}"] += 1
        answers.append({"role": "tool", "tool_call_id": call["id"], "content": result.content})
    return answers


def _complained(malformed: Sequence[Json]) -> list[Message]:
    """Return error messages for calls that could not be parsed.

    These are user messages, since a call that cannot be parsed has no id that a tool message could refer to.
    """
    return [
        {
            "role": "user",
            "content": f"error: the tool call cannot be read: {_MALFORMED.get(call['problem'], call['problem'])}",
        }
        for call in malformed
    ]
