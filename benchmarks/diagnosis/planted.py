"""Faults that wrap the environment, reward and scorer of any recipe, selected by name.

The name states the fault and its amount. `ToolsRaise_60` is the recipe's environment with tools that raise an exception
in six of ten calls, and `labels_wrong_50` is its reward with a wrong reference answer for half of the tasks. The
recipe's folder is on the module search path, and the faults wrap its `environment.py`. The faults of an episode depend
on its task or on a seeded generator.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sparring.environments import Environment
from sparring.types import Json, Reward, Task, Trajectory

Grader = Callable[[Trajectory], float]

LABELS = ("answer", "number")
"""Fields of tasks that hold the reference answer."""


def __getattr__(name: str) -> Any:
    """Return a reward or scorer `fault_PERCENT`, or an environment `Fault_PERCENT`."""
    fault, _, percent = name.rpartition("_")
    makers = REWARDS if fault in REWARDS else ENVIRONMENTS
    if fault not in makers or not percent.isdigit():
        raise AttributeError(name)
    return makers[fault](int(percent) / 100)


def _own() -> Any:
    return importlib.import_module("environment")


def _paid(given: float | Reward) -> float:
    return given.total if isinstance(given, Reward) else given


def _is_hit(task: Task, share: float) -> bool:
    """Return whether the fault applies to a task. The result is the same for all episodes of the task."""
    return random.Random(f"planted-{task.id}").random() < share


def _relabelled(trajectory: Trajectory) -> Trajectory:
    fields = trajectory.task.fields
    wrong = {name: _other(fields[name], trajectory.task.id) for name in LABELS if name in fields}
    return replace(trajectory, task=replace(trajectory.task, fields={**fields, **wrong}))


def _other(label: Json, seed: str) -> Json:
    """Return a different answer of the same kind: a letter, a number, or a record of them."""
    rng = random.Random(seed)
    if isinstance(label, Mapping):
        return {name: _other(value, f"{seed}-{name}") for name, value in label.items()}
    if isinstance(label, int):
        return (label + rng.randrange(1, 16)) % 16
    if str(label).isdigit():
        return str((int(str(label)) + rng.randrange(1, 10)) % 10)
    return rng.choice([key for key in "abcdefghijklmnop" if key != label])


def labels_wrong(share: float) -> Grader:
    """Return the reward with a wrong reference answer for a share of the tasks."""

    def reward(trajectory: Trajectory) -> float:
        is_wrong = _is_hit(trajectory.task, share)
        return _paid(_own().reward(_relabelled(trajectory) if is_wrong else trajectory))

    return reward


def labels_wrong_scorer(share: float) -> Grader:
    """Return a scorer that uses the same wrong reference answers."""
    reward = labels_wrong(share)
    return lambda trajectory: min(1.0, max(0.0, reward(trajectory)))


def contradicts(share: float) -> Grader:
    """Return the reward, inverted for a share of the tasks, so that every answer except the correct one is rewarded."""

    def reward(trajectory: Trajectory) -> float:
        paid = _paid(_own().reward(trajectory))
        return 1.0 - paid if _is_hit(trajectory.task, share) else paid

    return reward


def constant(value: float) -> Grader:
    """Return a reward that is the same for every episode."""
    return lambda trajectory: value


def never_reads(share: float) -> Grader:
    """Return a reward for an answer format that the prompt does not ask for."""

    def reward(trajectory: Trajectory) -> float:
        text = str(trajectory.messages[-1].get("content"))
        return _paid(_own().reward(trajectory)) if text.startswith("Final answer:") else 0.0

    return reward


def pays_any(share: float) -> Grader:
    """Return a reward for any last message without a call."""
    return lambda trajectory: float(
        trajectory.messages[-1]["role"] == "assistant" and not trajectory.messages[-1].get("tool_calls")
    )


def pays_length(share: float) -> Grader:
    """Return a reward mostly for many sampled tokens, which rewards a correct answer far less."""
    return lambda trajectory: 0.1 * _paid(_own().reward(trajectory)) + min(1.0, trajectory.num_sampled_tokens / 100)


def pays_calls(share: float) -> Grader:
    """Return a reward mostly for tool calls, which rewards a correct answer far less."""

    def reward(trajectory: Trajectory) -> float:
        calls = sum(one["role"] == "tool" for one in trajectory.messages)
        return 0.1 * _paid(_own().reward(trajectory)) + min(1.0, calls / 5)

    return reward


def pays_short(share: float) -> Grader:
    """Return a reward mostly for few sampled tokens, which rewards a correct answer far less."""
    return lambda trajectory: 0.1 * _paid(_own().reward(trajectory)) + max(0.0, 1 - trajectory.num_sampled_tokens / 50)


def noise(share: float) -> Grader:
    """Return the recipe's reward, replaced by a random value for a share of the episodes."""

    def reward(trajectory: Trajectory) -> float:
        rng = random.Random(f"noise-{trajectory.id}")
        is_drawn = rng.random() < share
        return float(rng.random() < 0.5) if is_drawn else _paid(_own().reward(trajectory))

    return reward


def _environment() -> type[Environment]:
    """Return the class of the recipe's environment. If several classes are imported, return the one with the tools."""
    found = [one for one in vars(_own()).values() if isinstance(one, type) and issubclass(one, Environment)]
    return next(one for one in found if one is not Environment)


def tools_raise(share: float) -> type[Environment]:
    """Return the environment, in which a share of the calls raises an exception."""

    class ToolsRaise(_environment()):
        async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> Json:
            if random.random() < share:
                raise KeyError(f"no shard for {json.dumps(arguments)}")
            return await super().call_tool(name, arguments)

    return ToolsRaise


def is_lost(share: float) -> type[Environment]:
    """Return the environment whose reset raises an exception in a share of the episodes."""

    class IsLost(_environment()):
        def reset(self, task: Task) -> Any:
            if random.random() < share:
                raise OSError("no database connection is left")
            return super().reset(task)

    return IsLost


REWARDS: Mapping[str, Callable[[float], Grader]] = {
    one.__name__: one
    for one in (
        labels_wrong,
        labels_wrong_scorer,
        contradicts,
        constant,
        never_reads,
        pays_any,
        pays_length,
        pays_calls,
        pays_short,
        noise,
    )
}
ENVIRONMENTS: Mapping[str, Callable[[float], type[Environment]]] = {"ToolsRaise": tools_raise, "IsLost": is_lost}
