"""Metrics of the policy's actions: calls per tool, the form of answers, and the states that the policy saw."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import final

from sparring.environments.calls import ToolError
from sparring.types import Trajectory


def action_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the calls and errors per episode for each tool (if the environment logs calls), and the share of turns for
    each form of answer."""
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for entry in (entry for one in trajectories for entry in one.transitions):
        tool, error = entry.get("tool"), entry.get("error")
        # The policy may invent any name, so unknown tools are counted only together, as tool_errors/unknown_tool.
        if tool is None or error == ToolError.UNKNOWN_TOOL:
            continue
        calls[str(tool)] += 1
        errors[str(tool)] += error is not None
    metrics = {f"rollout/tools/{tool}/calls": calls[tool] / len(trajectories) for tool in sorted(calls)}
    metrics |= {f"rollout/tools/{tool}/errors": errors[tool] / len(trajectories) for tool in sorted(calls)}
    forms: Counter[str] = Counter()
    for message in (turn.message for one in trajectories for turn in one.turns):
        malformed, called = message.get("malformed_tool_calls"), message.get("tool_calls")
        forms["malformed" if malformed else "called" if called else "text"] += 1
    total = max(1, forms.total())
    return metrics | {f"rollout/format/{form}": forms[form] / total for form in ("called", "malformed", "text")}


@final
class StateVisits:
    """Counts the distinct environment states in a step, and how many of them did not occur in any earlier step.

    A state consists of a task, a tool and the tool's result, as in the environment's own log of calls. The states that
    occurred are stored as a set of 2**23 bits (1 MiB). If there are a million distinct states, about one in seventeen
    is mistaken for a known state. A resumed run starts with an empty set.
    """

    NUM_BITS = 2**23

    def __init__(self) -> None:
        self._seen = bytearray(self.NUM_BITS // 8)

    def metrics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Return the counts `rollout/states/distinct` and `rollout/states/new`, or no metrics if no environment logs
        its calls."""
        states = set(_states(trajectories))
        if not states:
            return {}
        new = 0
        for state in states:
            place, bit = divmod(state % self.NUM_BITS, 8)
            if not self._seen[place] >> bit & 1:
                self._seen[place] |= 1 << bit
                new += 1
        return {"rollout/states/distinct": float(len(states)), "rollout/states/new": float(new)}


def _states(trajectories: Sequence[Trajectory]) -> Iterator[int]:
    for one in trajectories:
        for entry in one.transitions:
            seen = json.dumps([one.task.id, entry.get("tool"), entry.get("result")], sort_keys=True, default=repr)
            yield int.from_bytes(hashlib.blake2b(seen.encode("utf-8", "replace"), digest_size=8).digest())
