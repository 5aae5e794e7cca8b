"""A test of whether one policy, task, tool or last action has more lost episodes than can be explained by chance.

An attempt is lost in its last turn. Therefore, attempts are counted for policies and tasks, but turns for tools and
actions. Otherwise, if two tools had the same failure rate, the test would report the one that is called more often.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from sparring.findings import Finding, Severity
from sparring.types import Json, Message

FALSE_ALARMS = 0.01
"""The maximum share of runs with random losses in which a finding is reported."""
FEWEST_LOST = 3
"""The minimum number of losses of one value for a report."""
MOST_ACTIONS = 20_000
"""The maximum number of distinct actions that are counted. Later actions are not compared."""
_MOST_LETTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """A value that has more losses than can be explained by chance."""

    kind: str
    """`policy`, `task`, `tool` or `action`."""
    value: str
    num_lost: int
    num_played: int
    num_deaths: int
    """The number of these losses that are the death of a worker process."""
    all_lost: int
    all_played: int
    """The number of attempts of all policies or tasks, or of turns of all tools or actions."""
    p_value: float
    """The one-sided p-value of Fisher's exact test, times the number of compared values (Bonferroni)."""


@final
class Losses:
    """Counts attempts and turns, and how many of them were lost. Only one thread may use it."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, list[int]]] = {"policy": {}, "task": {}, "tool": {}, "action": {}}
        """The number of lost attempts or turns, the number of all, and the number of losses by the death of a worker, by kind
        and value."""
        self._deaths: set[tuple[str, str, str]] = set()
        """The deaths that are counted, by kind and value."""
        self._names: dict[str, str] = {}
        """The start of each action's text, by its digest."""
        self._num_asked = 0
        self._reported: set[tuple[str, str]] = set()

    def count(
        self, policy: str, task: str, turns: Sequence[Message], *, is_lost: bool, death: str | None = None
    ) -> None:
        """Count one attempt. `turns` contains the messages of the policies. A turn without a call counts as the tool
        `answer`.

        `death` names the worker process that ended with the episode. The process may have had many episodes of a task, which
        were lost by one event, so each death counts once for each value.
        """
        self._add("policy", policy, is_lost, death)
        self._add("task", task, is_lost, death)
        for place, turn in enumerate(turns, 1):
            is_last = is_lost and place == len(turns)
            tool, action = _acted(turn)
            self._add("tool", tool, is_last, death if is_last else None)
            digest = hashlib.sha256(action.encode(errors="replace")).hexdigest()[:16]
            if digest in self._names or len(self._names) < MOST_ACTIONS:
                self._names.setdefault(digest, action[:_MOST_LETTERS])
                self._add("action", digest, is_last, death if is_last else None)

    def _add(self, kind: str, value: str, is_lost: bool, death: str | None) -> None:
        if death is not None:
            if (kind, value, death) in self._deaths:
                return
            self._deaths.add((kind, value, death))
        counts = self._counts[kind].setdefault(value, [0, 0, 0])
        counts[0] += is_lost
        counts[1] += 1
        counts[2] += death is not None

    def gatherings(self, level: float = FALSE_ALARMS) -> Iterator[Gathering]:
        """Yield, for each kind, the value with the smallest p-value if that p-value is at most `level`."""
        num_compared = sum(
            played >= FEWEST_LOST
            for values in self._counts.values()
            if len(values) > 1
            for _, played, _ in values.values()
        )
        for kind, values in self._counts.items():
            all_lost, all_played = (sum(counts[place] for counts in values.values()) for place in (0, 1))
            if len(values) < 2:
                continue
            found = [
                (min(1.0, num_compared * upper_tail(lost, played, all_lost, all_played)), -lost, value)
                for value, (lost, played, _) in values.items()
                if lost >= FEWEST_LOST
            ]
            if found and min(found)[0] <= level:
                p_value, _, value = min(found)
                lost, played, deaths = values[value]
                yield Gathering(
                    kind=kind,
                    value=self._names.get(value, value),
                    num_lost=lost,
                    num_played=played,
                    num_deaths=deaths,
                    all_lost=all_lost,
                    all_played=all_played,
                    p_value=p_value,
                )

    def finding(self, step: int | None = None) -> Finding | None:
        """Return a finding about values that have not been reported yet, or None if there are none. The n-th call uses
        the level FALSE_ALARMS / (n (n + 1)), so that all calls together raise false alarms in at most FALSE_ALARMS of
        runs."""
        self._num_asked += 1
        level = FALSE_ALARMS / (self._num_asked * (self._num_asked + 1))
        new = [one for one in self.gatherings(level) if (one.kind, one.value) not in self._reported]
        if not new:
            return None
        self._reported |= {(one.kind, one.value) for one in new}
        evidence: dict[str, Json] = {one.kind: _evidence(one) for one in new}
        first = min(new, key=lambda one: one.p_value)
        unit = "attempts" if first.kind in ("policy", "task") else "turns"
        died = f" {first.num_deaths} of these losses are the death of a worker process." if first.num_deaths else ""
        worker = "Find out in the log how the worker processes ended (a signal, memory, exit). " if died else ""
        return Finding(
            rule="rollouts.lost_together",
            severity=Severity.WARNING,
            symptom=f"Lost episodes are concentrated in the {first.kind} {first.value!r}: {first.num_lost} of its "
            f"{first.num_played} {unit} were lost, but {first.all_lost - first.num_lost} of the "
            f"{first.all_played - first.num_played} others.{died}",
            evidence=evidence,
            change=f"{worker}Read the last turns of these episodes and the ledger's reasons. If the policy can cause the "
            "failure, have the environment score it as the policy's action instead of raising InfrastructureError; otherwise "
            "fix the failing part.",
            confirm="No new finding of this rule, and rollout/lost falls.",
            step=step,
        )


def upper_tail(lost: int, played: int, all_lost: int, all_played: int) -> float:
    """Return the probability of at least `lost` losses among `played` attempts that are drawn from `all_played`
    attempts, of which `all_lost` were lost (hypergeometric)."""

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    lowest = max(lost, played + all_lost - all_played)
    total = log_choose(all_played, played)
    terms = (
        math.exp(log_choose(all_lost, k) + log_choose(all_played - all_lost, played - k) - total)
        for k in range(lowest, min(played, all_lost) + 1)
    )
    return min(1.0, math.fsum(terms))


def _acted(message: Message) -> tuple[str, str]:
    """Return two strings: the tools that a turn calls, and its calls or its answer."""
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    if not calls:
        return "answer", f"answer {message.get('content') or ''}"
    tools = ", ".join(sorted({str(call.get("name")) for call in calls}))
    return tools, "; ".join(f"{call.get('name')} {_text(call.get('arguments'))}" for call in calls)


def _text(arguments: Json) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True, default=repr)


def _evidence(one: Gathering) -> dict[str, Json]:
    return {
        "value": one.value,
        "lost": one.num_lost,
        "played": one.num_played,
        "deaths_of_workers": one.num_deaths,
        "all_lost": one.all_lost,
        "all_played": one.all_played,
        "p_value": one.p_value,
    }
